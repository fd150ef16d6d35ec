"""`ofms.simulate` with the user's own models and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ofms
from ofms.core.schedule import Schedule
from ofms.core.selection_loss import selection_loss
from ofms.policies import MODULES
from ofms.policies.fleet import Fleet
from ofms.runs.config import available
from ofms.simulator.simulation import make_simulation
from tests.problems import PROBLEMS, image_problem, policy_of, regression_problem


def test_own_models_and_data() -> None:
    dictionary, stream = regression_problem()
    options: dict[str, Any] = {"preset": "theory", "budget": "3", "bandwidth": "100%"}
    result = ofms.simulate(policy="ofms-ft", models=dictionary, stream=stream, **options)
    assert result.score.shape == (stream.clients,)
    assert result.bound is not None
    assert (result.clients["most_held"] <= result.clients["budget"]).all()
    assert result.rounds["mean"].shape == (stream.rounds,)
    assert result.folder is None


def test_regret_follows_its_definition() -> None:
    """Σ_t ⟨p_t, L_t⟩ - min_k Σ_t L_tk, from the records of the exchanges."""
    dictionary, stream = image_problem()
    result = ofms.simulate(
        policy="ofms-ft",
        models=dictionary,
        stream=stream,
        preset="theory",
        budget="3",
        bandwidth="100%",
        interval=5,
        learning_rate=0.3,
    )
    catalogue = dictionary.catalogue()
    budgets = np.full(stream.clients, 3 * int(catalogue.storage.max()))
    fleet = Fleet(catalogue, budgets, int(budgets.sum()), Schedule(stream.rounds, 5))
    policy = policy_of("ofms-ft", fleet, learning_rate=0.3, loss_bound="saturate")
    client_losses, losses = 0.0, 0.0
    for exchange in make_simulation(policy, fleet, dictionary, stream, seed=0).exchanges():
        bounded = selection_loss(exchange.losses, "saturate")
        client_losses = client_losses + (exchange.expected_weights[:, None] * bounded).sum(axis=(1, 2))
        losses = losses + bounded.sum(axis=1)
    assert result.regret() == pytest.approx(client_losses - np.min(losses, axis=1))
    assert result.rounds["regret"][-1] == pytest.approx(np.mean(result.regret()))


def test_a_run_without_hindsight_is_the_same_and_has_no_regret() -> None:
    dictionary, stream = regression_problem()
    seen, unseen = (
        ofms.simulate(policy="ofms-ft", models=dictionary, stream=stream, budget="3", warm_up=2, hindsight=hindsight)
        for hindsight in (True, False)
    )
    with pytest.raises(ofms.InvalidInput, match="hindsight"):
        unseen.regret()
    assert unseen.figures["regret"] is None
    assert unseen.score.tolist() == seen.score.tolist()


def test_history_is_kept_for_the_given_number_of_clients() -> None:
    dictionary, stream = regression_problem()
    result = ofms.simulate(models=dictionary, stream=stream, history=2)
    assert result.history["held"].shape == (stream.rounds, 2, len(dictionary))
    assert result.history["regret"][-1].tolist() == result.regret()[:2].tolist()
    assert ofms.simulate(models=dictionary, stream=stream, history=0).history == {}


def test_a_run_is_written_to_a_new_folder_only(tmp_path: Path) -> None:
    dictionary, stream = regression_problem()
    result = ofms.simulate(models=dictionary, stream=stream, out=tmp_path / "run")
    assert result.folder == tmp_path / "run"
    assert (tmp_path / "run" / "summary.json").exists()
    with pytest.raises(ofms.InvalidInput, match=r"out = .*it already exists"):
        ofms.simulate(models=dictionary, stream=stream, out=tmp_path / "run")


def test_a_stream_with_nan_is_refused() -> None:
    dictionary, stream = regression_problem()
    stream.x[2, 3, 0] = np.nan
    with pytest.raises(ofms.InvalidInput, match="stream inputs = not finite: see client 2, round 4"):
        ofms.simulate(models=dictionary, stream=stream)


def test_classes_without_an_output_of_the_models_are_refused() -> None:
    dictionary, stream = image_problem()
    stream.y[0, 0] = 3
    with pytest.raises(ofms.InvalidInput, match="stream targets = 3: the models predict classes 0 to 2"):
        ofms.simulate(models=dictionary, stream=stream)


def test_more_rounds_than_the_stream_has_are_refused() -> None:
    dictionary, stream = regression_problem()
    with pytest.raises(ofms.InvalidInput, match="it has fewer clients or rounds than requested"):
        ofms.simulate(models=dictionary, stream=stream, rounds=1000)


def test_none_counts_as_not_given() -> None:
    """A wrapper may pass None: the field then comes from the stream, the experiment or the preset."""
    dictionary, stream = regression_problem(clients=60, rounds=8)
    options: dict[str, Any] = {
        "models": dictionary,
        "stream": stream,
        "budget": "3",
        "bandwidth": "100%",
        "preset": "theory",
        "policy": "ofms-ft",
    }
    result = ofms.simulate(**options, clients=None, rounds=None, seed=None, window=None)
    assert (result.config.clients, result.config.rounds, result.config.seed) == (60, 8, 0)
    assert result.config.settings["window"] == 1
    assert ofms.simulate(**options, clients=3).score.shape == (3,)


def test_a_result_is_printed_plotted_and_saved(tmp_path: Path) -> None:
    dictionary, stream = regression_problem()
    options: dict[str, Any] = {"preset": "theory", "budget": "3", "bandwidth": "100%"}
    result = ofms.simulate(policy="ofms-ft", models=dictionary, stream=stream, **options)
    text = str(result)
    assert text.splitlines()[0].startswith("own stream, 6 clients, 20 rounds, seed 0")
    assert "ofms-ft" in text
    assert "the best model in hindsight" in text
    page = result._repr_html_()
    assert page.startswith("<pre>")
    assert "<svg" in page
    clients = result.to_pandas()
    assert clients["score"].tolist() == result.score.tolist()
    assert clients["regret"].tolist() == result.regret().tolist()
    rounds = result.to_pandas("rounds")
    assert rounds.index.tolist() == list(range(1, 21))
    assert rounds["mean"].iloc[-1] == pytest.approx(result.mean)
    assert len(result.plot().axes) == 1
    with pytest.raises(ofms.InvalidInput, match="rows = layers: use clients, rounds, models or weights"):
        result.to_pandas("layers")  # type: ignore[arg-type]
    folder = result.save(tmp_path / "saved")
    again = ofms.simulate(str(folder / "config.toml"), models=dictionary, stream=stream)
    assert again.score.tolist() == result.score.tolist(), "a saved run can be repeated"
    with pytest.raises(ofms.InvalidInput, match="it already exists"):
        result.save(folder)


def test_the_frozen_score_is_that_of_the_same_choices_without_fine_tuning() -> None:
    """With a learning rate of 0, choices do not depend on losses, so both runs choose the same models."""
    dictionary, stream = regression_problem()
    common: dict[str, Any] = {
        "policy": "ofms-ft",
        "models": dictionary,
        "stream": stream,
        "budget": "3",
        "bandwidth": "100%",
        "learning_rate": 0.0,
    }
    tuned = ofms.simulate(preset="theory", fine_tuning_rate=0.05, **common)
    frozen = ofms.simulate(preset="theory", fine_tuning_rate=0, **common)
    assert tuned.clients["frozen_score"].tolist() == pytest.approx(frozen.score.tolist(), rel=1e-6)
    assert tuned.mean != pytest.approx(frozen.mean, rel=1e-3)
    assert "frozen_score" not in frozen.clients


@pytest.mark.parametrize("policy", MODULES)
@pytest.mark.parametrize("preset", available("presets"))
def test_every_policy_runs_with_every_preset(policy: str, preset: str) -> None:
    dictionary, stream = regression_problem(rounds=4)
    result = ofms.simulate(models=dictionary, stream=stream, policy=policy, preset=preset, budget="3", bandwidth="60%")
    assert np.isfinite(result.score).all()


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("policy", MODULES)
def test_every_policy_runs_as_in_the_theorems(policy: str, problem: str) -> None:
    """With unequal memory and several rounds an exchange; the loss is bounded, so that (a1) holds."""
    dictionary, stream = PROBLEMS[problem](clients=5, rounds=10)
    result = ofms.simulate(
        models=dictionary,
        stream=stream,
        policy=policy,
        preset="theory",
        interval=3,
        budget="3:60%,4:40%",
        bandwidth="100%",
    )
    assert np.isfinite(result.score).all()
    covered = result.figures["bound"] is not None
    assert covered == (result.figures["not_covered"] is None) == (policy in ("ofms-ft", "budgeted-experts"))
    if policy != "late-hedge":  # Its losses are bounded by its own rule.
        assert result.config.settings["loss_bound"] == ("clip" if stream.task == "regression" else "saturate")
        assert np.abs(result.regret()).max() <= 10
    if result.bound is not None:
        assert (result.regret() <= result.bound).all()
