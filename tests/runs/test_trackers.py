"""Metrics in TensorBoard and MLflow, read back with their own libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ofms
from tests.problems import regression_problem

OPTIONS: dict[str, Any] = {"budget": "3", "bandwidth": "60%", "preset": "theory", "rounds": 8}


def test_tensorboard_gets_every_round(tmp_path: Path) -> None:
    dictionary, stream = regression_problem()
    result = ofms.simulate(models=dictionary, stream=stream, out=tmp_path / "run", tracker="tensorboard", **OPTIONS)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("mean")] == list(range(1, 9))
    assert [event.value for event in events.Scalars("regret")] == pytest.approx(result.rounds["regret"].tolist())
    assert events.Scalars("final/mean")[0].value == pytest.approx(result.mean)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    dictionary, stream = regression_problem()
    result = ofms.simulate(models=dictionary, stream=stream, out=tmp_path / "run", tracker="mlflow", **OPTIONS)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("ofms")
    assert experiment is not None
    run = client.search_runs([experiment.experiment_id])[0]
    assert run.info.status == "FINISHED"
    assert run.data.params["budget"] == "3"
    history = sorted(client.get_metric_history(run.info.run_id, "mean"), key=lambda metric: metric.step)
    assert [metric.value for metric in history] == pytest.approx(result.rounds["mean"].tolist())
    assert run.data.metrics["final_mean"] == pytest.approx(result.mean)


def test_an_invalid_tracker_is_refused(tmp_path: Path) -> None:
    dictionary, stream = regression_problem()
    with pytest.raises(ofms.InvalidInput, match="tracker = paper: use tensorboard or mlflow"):
        ofms.simulate(models=dictionary, stream=stream, out=tmp_path / "run", tracker="paper", **OPTIONS)
    with pytest.raises(ofms.InvalidInput, match="a run that is written"):
        ofms.simulate(models=dictionary, stream=stream, tracker="tensorboard", **OPTIONS)
    assert not (tmp_path / "run").exists()
