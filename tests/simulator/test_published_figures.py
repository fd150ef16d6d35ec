"""The paper's Air figures on its authors' own models, and what was measured beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofms import simulate


def thousandths(seeds: range, reference: Path, **settings: Any) -> tuple[float, float]:
    """Mean and std over clients, averaged over seeds, in 10⁻³."""
    results = [simulate("air", models=reference / "air", seed=seed, hindsight=False, **settings) for seed in seeds]
    return 1e3 * float(np.mean([each.mean for each in results])), 1e3 * float(np.mean([each.std for each in results]))


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
