"""The command `ofms`, also as `python -m ofms`. The first code that it runs handles signals."""

from __future__ import annotations

from ofms.runs.interrupt import end_on_signals


def main() -> None:
    """Import and run the command line."""
    end_on_signals()
    from ofms.cli import main as run

    run()


if __name__ == "__main__":
    main()
