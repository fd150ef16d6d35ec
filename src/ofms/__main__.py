"""The command `ofms`, also as `python -m ofms`. The first code that it runs handles signals."""

from __future__ import annotations

import os
import sys

try:
    _current = os.getcwd()
except OSError:  # It was removed, which the command line rejects.
    _current = ""
# Before any other import: the current folder is searched last, so that no file in it replaces a module.
sys.path[:] = [folder for folder in sys.path if folder not in ("", _current)] + [""]

from ofms.runs.interrupt import end_on_signals  # noqa: E402


def main() -> None:
    """Import and run the command line."""
    end_on_signals()
    from ofms.cli import main as run

    run()


if __name__ == "__main__":
    main()
