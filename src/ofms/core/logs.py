"""Logs of processes through Python's `logging`: text for people, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any, Literal, get_args

from ofms.core.errors import InvalidInput

Format = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")
# Processes of a deployment start each other and inherit it.
LEVEL_VARIABLE = "OFMS_LOG_LEVEL"


class TextFormatter(logging.Formatter):
    """Time, level if it is not `info`, and message, in one line."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"{timestamp(record.created)} {level}{_one_line(_message(record))}"


class JsonFormatter(logging.Formatter):
    """An object with time, level, logger and message.

    >>> record = logging.LogRecord("ofms.server", logging.INFO, "", 0, "exchange %d", (3,), None)
    >>> record.created = 0.0
    >>> JsonFormatter().format(record)
    '{"time": "1970-01-01T00:00:00Z", "level": "info", "logger": "ofms.server", "message": "exchange 3"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": timestamp(record.created), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps(fields | {"message": _message(record)}, ensure_ascii=False)


def configure_logs(level: str = "info", form: str = "text", stream: Any = None) -> None:
    """Write the logs of this process, and of the processes that it starts, from a level on to standard error."""
    if level not in LEVELS:
        raise InvalidInput("log-level", level, f"use one of {', '.join(LEVELS)}")
    if form not in get_args(Format):
        raise InvalidInput("log-format", form, f"use one of {', '.join(get_args(Format))}")
    os.environ[LEVEL_VARIABLE] = level
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger = logging.getLogger("ofms")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())


def is_logged(level: int) -> bool:
    """Whether this process logs a level, as the process that started it was told."""
    found = os.environ.get(LEVEL_VARIABLE, "info")
    return level >= logging.getLevelNamesMapping()[(found if found in LEVELS else "info").upper()]


def timestamp(seconds: float) -> str:
    """A time in UTC.

    >>> timestamp(0)
    '1970-01-01T00:00:00Z'
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    return text


def _one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
