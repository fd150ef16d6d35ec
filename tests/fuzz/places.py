"""Valid files of every kind, made by the package itself, and a folder for changed copies of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from ofms.cli import _main
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.report import page
from ofms.runs import checkpoint
from ofms.runs.folder import CLIENTS, HISTORY, SUMMARY
from tests.deployments import DirectFleet, make_fleet
from tests.devices import problem

EXPERIMENT: dict[str, Any] = {
    "summary": "three clients",
    "budget": "3",
    "bandwidth": "60%",
    "interval": 1,
    "models": "models",
    "preset": "published",
    "stream": {
        "file": "stream.csv",
        "task": "regression",
        "target": "y",
        "client": "name",
        "features": ["a", "b", "c"],
        "site": "site",
        "most_dropped": 0.1,
    },
    "policies": {
        "late-hedge": {"window": 4, "warm_up": 2},
        "ofms-ft": {"learning_rate": 0.5, "window": 3, "warm_up": 1, "loss_bound": "clip"},
        "mab": {"learning_rate": 0.1},
    },
}
# With everything that changes a run while it runs, and clients whose updates are hostile.
CHANGING: dict[str, Any] = EXPERIMENT | {
    "budget": {"pump": 3, "*": "3"},
    "bandwidth": "100%",
    "policy": "ofms-ft",
    "seed": 3,
    "history": 2,
    "aggregation": "clipped:2",
    "attack": "largest:0.4",
    "trust": {"packages": ["pumps"], "folders": ["."]},
    "events": [
        {"exchange": 2, "join": ["valve"], "add": ["net5"], "interval": 2},
        {"exchange": 3, "retire": ["net0"], "budget": {"pump": "2"}, "rollback": {"net1": 1}},
        {"exchange": 4, "drift": [0, "1-2"], "bandwidth": "80%", "aggregation": "median"},
        {"exchange": 5, "leave": ["fan"], "policy": "mab", "settings": {"learning_rate": 0.2}},
    ],
}
DRIFTING: dict[str, Any] = EXPERIMENT | {
    "policy": "ofms-ft",
    "drift": "switch",
    "doubling": 3,
    "seed": 1,
    "history": 1,
    "clients": 3,
    "rounds": 8,
}
EXPERIMENTS = (EXPERIMENT, CHANGING, DRIFTING)
# Policies with few settings and with many.
POLICIES = ("late-hedge", "ofms-ft", "mab")
PRETRAINING: dict[str, Any] = {
    "summary": "tiny networks",
    "dataset": "digits",
    "clients": 2,
    "rounds": 4,
    "budget": "3",
    "bandwidth": "60%",
    "pretraining": {
        "epochs": 1,
        "batch_size": 512,
        "seed": 0,
        "common": {"rate": 0.1, "optimizer": "sgd", "momentum": 0.5, "initialisation": "default"},
        "networks": [
            {"name": "tiny", "architecture": "mlp", "options": {"inputs": 64, "hidden": [2], "outputs": 10}},
        ],
    },
}


class Place:
    """`valid` has valid files. `work` is below further folders, so that a path that climbs out stays visible."""

    def __init__(self, folder: Path) -> None:
        self.valid, self.work = folder / "valid", folder / "above" / "work"
        self.valid.mkdir(parents=True)
        self.work.mkdir(parents=True)
        _write_inputs(self.valid)
        _write_runs(self.valid)
        _write_fleet(self.valid)

    def fresh(self, *names: str) -> Path:
        """The empty working folder with copies of valid files and folders."""
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name in names:
            source = self.valid / name
            if source.is_dir():
                shutil.copytree(source, self.work / name)
            else:
                shutil.copyfile(source, self.work / name)
        return self.work


def _write_inputs(folder: Path) -> None:
    import tomli_w

    dictionary, stream = problem()
    dictionary.write(folder / "models")
    np.savez(folder / "stream.npz", x=stream.x, y=stream.y, names=np.array(["fan", "pump", "valve"]))
    table(folder).to_csv(folder / "stream.csv", index=False)
    for name, experiment in {"own": EXPERIMENT, "changing": CHANGING, "drifting": DRIFTING}.items():
        (folder / f"{name}.toml").write_text(tomli_w.dumps(experiment))


def table(folder: Path) -> pandas.DataFrame:
    """The stream as a table."""
    _, stream = problem()
    columns: dict[str, Any] = dict(zip("abc", stream.x.reshape(-1, 3).T, strict=True))
    names = np.repeat(["fan", "pump", "valve"], stream.rounds)
    sites = np.repeat(["north", "south", "north"], stream.rounds)
    return pandas.DataFrame({"name": names, "site": sites, **columns, "y": stream.y.ravel()})


def _write_runs(folder: Path) -> None:
    own = str(folder / "own.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(page, "write_report", lambda *given: Path("none"))
        patch.setattr(checkpoint, "_MOST_TIME", float("inf"))
        assert _main(["run", own, "--save-models", "--out", str(folder / "run")]) == 0
        assert _main(["compare", own, "--policy", "mab", "--seeds", "1", "--out", str(folder / "results")]) == 0
        patch.setattr(checkpoint.Checkpoints, "remove", lambda self: None)
        assert _main(["run", own, "--checkpoint", "0", "--out", str(folder / "interrupted")]) == 0
    for name in (SUMMARY, CLIENTS, HISTORY):
        (folder / "interrupted" / name).unlink()
    (cell,) = (folder / "results").rglob("cells/*.json")
    shutil.copyfile(cell, folder / "cell.json")


def _write_fleet(folder: Path) -> None:
    """A deployment after two exchanges, and the stores of its devices: labels, and inputs that wait for theirs."""
    make_fleet(folder / "fleet")
    persistence, fleet = PersistentCoordinator(Deployment(folder / "fleet")), DirectFleet(folder / "stores")
    try:
        fleet.join(persistence)
        for _ in range(2):
            fleet.exchange(persistence)
        persistence.save()
        for client, content in persistence.coordinator.open(range(3)).items():
            fleet.devices[client].receive(content)
            fleet.devices[client].predict(fleet.stream.x[client, 0])
            fleet.label(client, [4])
    finally:
        fleet.close()
        persistence.close()
