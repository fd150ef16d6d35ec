"""The paper's Air figures on its authors' own models, and what was measured beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofms import Dictionary, simulate
from ofms.compute.threads import ThreadedCompute
from ofms.data import air, load_dataset


def thousandths(seeds: range, reference: Path, **settings: Any) -> tuple[float, float]:
    """Mean and std over clients of OFMS-FT, averaged over seeds, in 10⁻³."""
    options: dict[str, Any] = {"policy": "ofms-ft", "models": reference / "air", "hindsight": False} | settings
    results = [simulate("air", seed=seed, **options) for seed in seeds]
    return 1e3 * float(np.mean([each.mean for each in results])), 1e3 * float(np.mean([each.std for each in results]))


@pytest.mark.usefixtures("data_folder")
def test_the_papers_models_predict_no2_and_not_co(reference_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen models over all clients, ×10⁻³: 5.6 to 20.0; with CO as the target, as the text has it, 6.9 to 199."""
    dictionary = Dictionary.read(reference_folder / "air")

    def errors() -> list[float]:
        stream = load_dataset("air").stream(clients=100, rounds=200, seed=0)
        held = np.ones((100, len(dictionary)), dtype=np.bool_)
        weights = held / held.sum(axis=1, keepdims=True)
        with ThreadedCompute(dictionary, stream) as compute:
            losses = compute.evaluate((0, 200), held, weights, hindsight=False).result().losses
        return [1e3 * float(error) for error in losses.mean(axis=(0, 1))]

    no2 = errors()
    assert (min(no2), max(no2)) == pytest.approx((5.56, 19.98), abs=0.01)
    monkeypatch.setattr(air, "TARGET", "CO")
    monkeypatch.setattr(air, "FEATURES", tuple("NO2" if name == "CO" else name for name in air.FEATURES))
    co = errors()
    assert (min(co), max(co)) == pytest.approx((6.85, 199.3), abs=0.1)
    assert np.mean(no2) == pytest.approx(9.82, abs=0.01)
    assert np.mean(co) == pytest.approx(74.0, abs=0.1)


@pytest.mark.usefixtures("data_folder")
def test_one_seed_comes_close_to_the_paper(reference_folder: Path) -> None:
    mean, std = thousandths(range(1), reference_folder)
    assert mean == pytest.approx(7.46, abs=0.4)
    assert std == pytest.approx(5.1, abs=0.6)


@pytest.mark.slow
@pytest.mark.usefixtures("data_folder")
def test_five_seeds_give_the_papers_figure(reference_folder: Path) -> None:
    mean, std = thousandths(range(5), reference_folder)
    assert mean == pytest.approx(7.46, abs=0.30)
    assert std == pytest.approx(5.1, abs=0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("data_folder")
def test_five_seeds_give_the_papers_figure_with_less_memory(reference_folder: Path) -> None:
    assert thousandths(range(5), reference_folder, budget="2")[0] == pytest.approx(7.51, abs=0.35)


@pytest.mark.slow
@pytest.mark.usefixtures("data_folder")
def test_the_mean_of_the_clients_steps_gives_less(reference_folder: Path) -> None:
    assert thousandths(range(5), reference_folder, server_step=1)[0] == pytest.approx(8.2, abs=0.3)
