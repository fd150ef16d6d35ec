"""The event log of a deployment, to which all of its processes append lines."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LONGEST = 500


def log_event(path: Path, line: str) -> None:
    """Append a line with its time; one write, so that lines of several processes do not mix."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    shown = "".join(each if each.isprintable() else " " for each in line)
    content = f"{stamp} {' '.join(shown.split())[:_LONGEST]}\n".encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, content)
    finally:
        os.close(file)
