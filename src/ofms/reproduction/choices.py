"""Variants of the choices that the paper leaves open for its baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ofms.drawing.tables import Table
from ofms.reproduction.bench import POLICIES, Bench, Section
from ofms.reproduction.cells import Cell
from ofms.reproduction.summaries import paper, result_data
from ofms.runs.formatting import scale
from ofms.runs.result import Result

_COLUMN = "air"


class _Choice(NamedTuple):
    """One choice and its variants; slow ones are run with the first seed only."""

    label: str
    variants: list[dict[str, Any]]
    first_seed_only: bool = False


def choices(bench: Bench) -> Section:
    """Every choice that the paper does not specify, and whether the paper's figure is in its range."""
    name, title = "choices", "Unpublished choices"
    if _COLUMN not in bench.columns:
        return Section(name, title, "Measured on Air, which was not requested.")
    if not bench.has_cells(_COLUMN):
        return Section(name, title, "Measured on Air, whose dictionary is not trained yet.")
    models = len(bench.store.dictionary(_COLUMN)[0])
    figures = paper("comparison")[_COLUMN]
    rows, data = [], []
    for policy in (policy for policy in POLICIES if policy in figures and policy != "ofms-ft"):
        every: dict[str, Result] = {}
        for choice in _choices_of(policy, models):
            seeds = range(1) if choice.first_seed_only else bench.size.seed_range(_COLUMN)
            found = [
                result
                for given in choice.variants
                for result in bench.store.results(
                    Cell(_COLUMN, policy, seed, bench.size.given(_COLUMN) | given) for seed in seeds
                )
            ]
            rows.append([f"{POLICIES[policy]}: {choice.label}", *_figures(found, figures[policy][0])])
            # Several rows may show the same run: count it once.
            every |= {result.figures["command"]: result for result in found}
        rows.append([f"{POLICIES[policy]}: all of these", *_figures(list(every.values()), figures[policy][0])])
        data += [result_data(result) for result in every.values()]
    header = ["Air, MSE ×10⁻³", "runs", "mean", "range", "paper", "inside?"]
    table = Table(name, "Choices that the paper leaves open for its baselines", header, rows, data=data)
    text = "Air with the given dictionary. Each row varies one choice; the others have their default values."
    return Section(name, title, text, [table])


def _figures(found: Sequence[Result], published: float) -> list[str]:
    """Number of runs, their mean and range, the paper's figure, and whether it is inside."""
    if not found:
        return ["0", "–", "–", f"{published:.2f}", "–"]
    means = [scale(result.metric)[0] * result.mean for result in found]
    low, high = min(means), max(means)
    inside = "yes" if low <= published <= high else "no"
    return [str(len(means)), f"{np.mean(means):.2f}", f"{low:.2f} to {high:.2f}", f"{published:.2f}", inside]


def _choices_of(policy: str, models: int) -> list[_Choice]:
    single_model = [
        _Choice(f"each of the {models} models", [{"model": model} for model in range(models)], True),
        _Choice("batch sizes 1, 10, 32, 51", [{"batch_size": size} for size in (1, 10, 32, 51)], True),
        _Choice("all upload, or half of the clients", [{"upload_groups": groups} for groups in (1, 2)], True),
    ]
    exp3_client = [
        _Choice("random subsets, one per seed", [{}]),
        _Choice("the first models that fit", [{"subset": "first"}]),
        _Choice("feedback from all stored models", [{"feedback": "all"}]),
        _Choice("exploration 0.1", [{"exploration": 0.1}]),
    ]
    servers_mean = _Choice("the server's mean (3r2)", [{"server_step": 1}])
    rates = (1e-4, 1e-3, 1e-2)
    known = {
        "mab": [_Choice("defaults", [{}]), _Choice("exploration 0.1", [{"exploration": 0.1}])],
        "non-fed-oms": exp3_client,
        "b-fed-omft": [*exp3_client, servers_mean],
        "rms-ft": [
            _Choice("defaults", [{}]),
            _Choice("gradients of weight one", [{"gradient_weight": "one"}]),
            servers_mean,
        ],
        "fed-omd": single_model,
        "perfedavg": [
            *single_model,
            _Choice("adaptation rates 0.0001, 0.001, 0.01", [{"adaptation_rate": rate} for rate in rates], True),
        ],
    }
    return known[policy]
