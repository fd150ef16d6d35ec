"""What the paper leaves open for its baselines: every choice, run."""

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
    """One thing that varies; what of it takes long is run with the first seed only."""

    label: str
    variants: list[dict[str, Any]]
    first_seed_only: bool = False


def choices(bench: Bench) -> Section:
    """What the paper does not say of its baselines: every choice, and whether its figure lies among them."""
    name, title = "choices", "Unpublished choices"
    if _COLUMN not in bench.columns:
        return Section(name, title, "Measured on Air, which was not asked for.")
    if not bench.has_cells(_COLUMN):
        return Section(name, title, "Measured on Air, whose models are not trained yet.")
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
            # Several rows may show the same run.
            every |= {result.figures["command"]: result for result in found}
        rows.append([f"{POLICIES[policy]}: all of these", *_figures(list(every.values()), figures[policy][0])])
        data += [result_data(result) for result in every.values()]
    header = ["Air, MSE ×10⁻³", "runs", "mean", "range", "paper", "inside?"]
    table = Table(name, "What the paper leaves open for its baselines", header, rows, data=data)
    text = "Air on the given dictionary. A row varies one choice; the others are as in the experiment's file."
    return Section(name, title, text, [table])


def _figures(found: Sequence[Result], published: float) -> list[str]:
    """How many runs, their mean and range, the paper's figure, and whether it lies inside."""
    if not found:
        return ["0", "–", "–", f"{published:.2f}", "–"]
    means = [scale(result.metric)[0] * result.mean for result in found]
    low, high = min(means), max(means)
    inside = "yes" if low <= published <= high else "no"
    return [str(len(means)), f"{np.mean(means):.2f}", f"{low:.2f} to {high:.2f}", f"{published:.2f}", inside]


def _choices_of(policy: str, models: int) -> list[_Choice]:
    one_model = [
        _Choice(f"each of the {models} models", [{"model": model} for model in range(models)], True),
        _Choice("batches of 1, 10, 32, 51", [{"batch_size": size} for size in (1, 10, 32, 51)], True),
        _Choice("all upload, or half of the clients", [{"upload_groups": groups} for groups in (1, 2)], True),
    ]
    own_exp3 = [
        _Choice("random subsets, another with each seed", [{}]),
        _Choice("the first models that fit", [{"subset": "first"}]),
        _Choice("feedback of all stored models", [{"feedback": "all"}]),
        _Choice("exploration of 0.1", [{"exploration": 0.1}]),
    ]
    servers_mean = _Choice("the server's mean of (3r2)", [{"server_step": 1}])
    rates = (1e-4, 1e-3, 1e-2)
    known = {
        "mab": [_Choice("as in the file", [{}]), _Choice("exploration of 0.1", [{"exploration": 0.1}])],
        "non-fed-oms": own_exp3,
        "b-fed-omft": [*own_exp3, servers_mean],
        "rms-ft": [
            _Choice("as in the file", [{}]),
            _Choice("gradients over the share that is held", [{"gradient_weight": "inverse"}]),
            servers_mean,
        ],
        "fed-omd": one_model,
        "perfedavg": [
            *one_model,
            _Choice("adapting at 0.0001, 0.001, 0.01", [{"adaptation_rate": rate} for rate in rates], True),
        ],
    }
    return known[policy]
