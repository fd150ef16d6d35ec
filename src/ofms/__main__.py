"""The command `ofms`, also as `python -m ofms`. The first code that it runs handles signals."""

from __future__ import annotations

import os
import sys

from ofms.runs.interrupt import end_on_signals


def main() -> None:
    """Import and run the command line, with the current folder searched last: no file in it replaces a module."""
    end_on_signals()
    try:
        current = os.getcwd()
    except OSError:  # It was removed, which the command line rejects.
        current = ""
    sys.path[:] = [folder for folder in sys.path if folder not in ("", current)] + [""]
    from ofms.cli import main as run

    run()


if __name__ == "__main__":
    main()
