"""What the command imports before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_help_and_version_import_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; sys.argv = ['ofms', {!r}]; from ofms.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'msgspec', 'pandas') if name in sys.modules])"
    )
    for option in ("--help", "--version"):
        ended = subprocess.run([sys.executable, "-c", code.format(option)], capture_output=True, text=True, check=True)
        assert ended.stdout.splitlines()[-1] == "[]"
    ended = subprocess.run(
        [sys.executable, "-c", "import ofms, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == "False False"


@pytest.mark.parametrize("name", ["signal", "threading", "time", "typing", "re", "click", "numpy", "json", "logging"])
def test_a_file_of_the_current_folder_replaces_no_module(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('replaced')\n")
    ended = subprocess.run(
        [sys.executable, "-m", "ofms", "list"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "late-hedge" in ended.stdout


def test_a_current_folder_that_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone} && exec {sys.executable} -m ofms list"
    ended = subprocess.run(command, shell=True, cwd=gone, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "ofms: current folder = No such file or directory: it was removed; change to another one\n"


@pytest.mark.parametrize("backend", ["nonsense", "svg"])
def test_a_backend_that_does_not_exist_is_not_used(backend: str) -> None:
    """Charts need none; one that exists is left to the user's own charts."""
    code = """
from ofms.drawing.charts import new_figure
new_figure(1, 1)
import matplotlib, os
print(os.environ["MPLBACKEND"], matplotlib.rcParams._get("backend") == "svg")
"""
    environment = os.environ | {"MPLBACKEND": backend}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == (f"{backend} {backend == 'svg'}\n", "")
