"""The event log of a deployment, to which all of its processes append lines."""

from __future__ import annotations

import calendar
import logging
import os
import re
import time
from pathlib import Path

from ofms.core.errors import one_line
from ofms.core.logs import LEVELS, is_logged, timestamp

_LONGEST = 500
_LINE = re.compile(rf"(?P<time>\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ) (?:(?P<level>{'|'.join(LEVELS)}): )?(?P<text>.*)")
_log = logging.getLogger("ofms.server")


def log_event(path: Path, line: str, level: int = logging.INFO) -> None:
    """Append a line with its time; one write, so that lines of several processes do not mix.

    A level other than `info` is named in the line; those that the server was told not to log are dropped.
    """
    if not is_logged(level):
        return
    named = "" if level == logging.INFO else f"{logging.getLevelName(level).lower()}: "
    content = f"{timestamp(time.time())} {named}{one_line(line, _LONGEST)}\n".encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, content)
    finally:
        os.close(file)


def relay_event(line: str) -> None:
    """Log a line of the event log, or another one, through `logging`, with its own time and level."""
    found = _LINE.fullmatch(line)
    level = logging.getLevelNamesMapping()[((found and found["level"]) or "info").upper()]
    if not _log.isEnabledFor(level):
        return
    record = _log.makeRecord(_log.name, level, "", 0, "%s", (line if found is None else found["text"],), None)
    if found is not None:
        record.created = calendar.timegm(time.strptime(found["time"], "%Y-%m-%dT%H:%M:%SZ"))
    _log.handle(record)
