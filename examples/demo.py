"""From nothing to a finished run: pre-train twenty small networks, run OFMS-FT and MAB, print one table.

Fifty clients each see mostly one digit. Each of the twenty models knows one digit well and the others badly; a client can
hold about a quarter of them at a time.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import ofms
from ofms.report.figures import draw_regret
from ofms.report.tables import comparison_table
from ofms.runs.config import load_experiment
from ofms.runs.dictionaries import train_dictionary

FOLDER = Path("runs/demo")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    models = FOLDER / "models"
    train_dictionary(load_experiment("digits"), "digits", progress=True).write(models)

    runs = []
    for name, options in (
        ("OFMS-FT, as published", {"policy": "ofms-ft", "preset": "published"}),
        ("OFMS-FT, as in the theorems", {"policy": "ofms-ft", "preset": "theory"}),
        ("MAB", {"policy": "mab", "preset": "theory"}),
    ):
        out = FOLDER / f"{options['policy']}-{options['preset']}"
        runs.append((name, ofms.simulate("digits", models=models, out=out, progress=True, **options)))

    picture = FOLDER / "regret.png"
    # Regrets in one loss: the published preset measures its own in the unbounded cross-entropy.
    draw_regret([(name, run) for name, run in runs if run.config.preset == "theory"], picture)
    first = runs[0][1]
    print(
        f"\n{first.config.clients} clients, {first.config.rounds} rounds, 20 models, memory for {first.config.budget}:\n"
    )
    print(comparison_table(runs, first))
    print(f"\nregret over rounds: {picture}\nruns and models: {FOLDER}", file=sys.stdout)


if __name__ == "__main__":
    main()
