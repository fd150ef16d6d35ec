"""The examples run with the commands in their first lines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas

from ofms.device.client_policy import describe_policy
from ofms.plugins import Trust
from ofms.policies.registry import build_policy, settings_type
from tests.problems import fleet_of

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
OWN_POLICY = "examples.epsilon_greedy:algorithm"


def run(*arguments: str | Path, folder: Path) -> str:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {"PYTHONPATH": path}
    finished = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_own_models_and_data_from_python(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "own_models.py", folder=tmp_path)
    assert "ofms-ft" in printed
    assert "score" in printed


def test_own_models_and_data_with_the_command(tmp_path: Path) -> None:
    """The same stream as CSV, Parquet and arrays, and a repeated run, give the same figures."""
    folder = tmp_path / "own_data"
    ignored = shutil.ignore_patterns("models", "pumps.csv", "__pycache__")
    shutil.copytree(EXAMPLES / "own_data", folder, ignore=ignored)
    run("make_files.py", folder=folder)
    shorter = ("--policy", "ofms-ft", "--rounds", "60")
    command = ("-m", "ofms", "run", *shorter)
    expected = run(*command, "experiment.toml", "--out", "first", folder=folder).splitlines()[:5]
    assert "ofms-ft" in expected[2]

    compared = run(
        "-m", "ofms", "compare", "experiment.toml", *shorter, "--policy", "mab", "--seeds", "2", folder=folder
    )
    assert "OFMS-FT" in compared
    assert "experiment, MSE" in compared
    text = (folder / "experiment.toml").read_text()
    table = pandas.read_csv(folder / "pumps.csv")
    table.to_parquet(folder / "pumps.parquet")
    (folder / "parquet.toml").write_text(text.replace("pumps.csv", "pumps.parquet"))
    parts = [rows for _, rows in table.groupby("pump")]
    x = np.stack([rows[["speed", "temperature", "pressure"]].to_numpy() for rows in parts])
    np.savez(folder / "pumps.npz", x=x, y=np.stack([rows["next_pressure"].to_numpy() for rows in parts]))
    (folder / "npz.toml").write_text(
        text.partition("[stream]")[0] + '[stream]\nfile = "pumps.npz"\ntask = "regression"\n'
    )
    for source in ("parquet.toml", "npz.toml", "first/config.toml"):
        printed = run(*command, source, "--out", Path(source).stem, folder=folder)
        assert printed.splitlines()[:5] == expected, source

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    printed = run("-m", "ofms", "run", folder / "first" / "config.toml", "--out", "again", folder=elsewhere)
    assert printed.splitlines()[:5] == expected, "a run's configuration repeats it from any folder"
    printed = run(*command, folder / "experiment.toml", "--out", "third", folder=elsewhere)
    assert printed.splitlines()[:5] == expected, "so does the experiment"


def test_a_single_device(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "single_device.py", folder=tmp_path)
    assert "30 exchanges" in printed
    first, last = (float(word.rstrip(",")) for word in printed.split() if word.startswith("0.0"))
    assert last < first, "the error decreases"


def test_own_policy(tmp_path: Path) -> None:
    arguments = ["--policy", OWN_POLICY, "--set", "epsilon=0.05", "--rounds", "30", "--clients", "10"]
    assert OWN_POLICY in run("-m", "ofms", "run", *arguments, "--out", "run", folder=tmp_path)
    compared = run("-m", "ofms", "compare", "digits", "--seeds", "1", *arguments, folder=tmp_path)
    assert OWN_POLICY in compared
    trust = Trust(("examples",))
    settings = settings_type(OWN_POLICY, trust)(epsilon=0.5)
    policy = build_policy(OWN_POLICY, settings, fleet_of([2, 2, 2], [4, 4]), trust)
    assert describe_policy(policy, trust)["client"]["rule"]["exploration"] == 0.5, "a welcome can describe it"
    assert len((EXAMPLES / "epsilon_greedy.py").read_text().splitlines()) < 40
