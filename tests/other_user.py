"""Commands run as another user of the machine, which only root can do."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


def run_as_nobody(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user without any rights; skip the test where that is not possible."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can run commands as another user, with setpriv")
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run([*drop, *map(str, command)], capture_output=True, text=True, check=False, cwd="/")


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that all users can enter, unlike those of pytest, in a process without umask."""
    folder = Path(tempfile.mkdtemp())
    before = os.umask(0)
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        os.umask(before)
        shutil.rmtree(folder)
