"""A complete run from scratch: pre-train twenty small networks, run late hedging, OFMS-FT and MAB, print one table.

Fifty clients each see mostly one digit. Each of the twenty models is good at one digit and poor at the others; a client
can hold about a quarter of them at a time.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ofms
from ofms.report import write_report
from ofms.runs import comparison_table, draw_regret, load_experiment, train_dictionary

FOLDER = Path("runs/demo")
FROZEN = "late hedging, frozen"
ROWS: dict[str, dict[str, Any]] = {
    "late hedging": {"policy": "late-hedge"},
    FROZEN: {"policy": "late-hedge", "fine_tuning_rate": 0},
    "OFMS-FT, as published": {"policy": "ofms-ft", "preset": "published"},
    "OFMS-FT, as in the theorems": {"policy": "ofms-ft", "preset": "theory"},
    "MAB": {"policy": "mab", "preset": "theory"},
}


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    models = FOLDER / "models"
    train_dictionary(load_experiment("digits"), "digits", models, progress=True)

    runs = {}
    for name, given in ROWS.items():
        out = FOLDER / _folder(name)
        runs[name] = ofms.simulate("digits", models=models, out=out, progress=True, **given)

    picture = FOLDER / "regret.png"
    # Regret in the same loss: without preset `theory` it is measured in the unbounded cross-entropy.
    draw_regret([(name, run) for name, run in runs.items() if run.config.preset == "theory"], picture)
    # Of the frozen dictionary, for each client its own.
    frozen = runs[FROZEN]
    size = frozen.config
    print(f"\n{size.clients} clients, {size.rounds} rounds, 20 models, memory for {size.budget} of the largest:\n")
    print(comparison_table(list(runs.items()), frozen))
    folders = [FOLDER / _folder(name) for name in runs]
    page = write_report(folders, FOLDER / "report.html", [*runs])
    print(f"\nregret over rounds: {picture}\nreport: {page}\nruns and models: {FOLDER}")


def _folder(name: str) -> str:
    return name.replace(",", "").replace(" ", "-").lower()


if __name__ == "__main__":
    main()
