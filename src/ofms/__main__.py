"""`python -m ofms` runs the command `ofms`."""

from __future__ import annotations

from ofms.cli import main

if __name__ == "__main__":
    main()
