"""`python -m ofms` runs the command `ofms`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Import and run the command line, with the current folder searched last: no file in it replaces a module."""
    sys.path[:] = [folder for folder in sys.path if folder not in ("", os.getcwd())] + [""]
    from ofms.cli import main as run

    run()


if __name__ == "__main__":
    main()
