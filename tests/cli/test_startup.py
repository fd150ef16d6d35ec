"""What the command imports before it is needed."""

from __future__ import annotations

import subprocess
import sys


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
