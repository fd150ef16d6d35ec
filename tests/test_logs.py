"""Logs of processes: text or JSON lines, from a level on."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ofms.coordinator.events import log_event, relay_event
from ofms.core.errors import InvalidInput
from ofms.core.logs import LEVEL_VARIABLE, TextFormatter, configure_logs, is_logged
from ofms.flower.processes import relay_line


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Where logs go; afterwards, logging is as before."""
    logger = logging.getLogger("ofms")
    before = logger.handlers[:], logger.level, logger.propagate
    monkeypatch.setenv(LEVEL_VARIABLE, "info")
    yield io.StringIO()
    logger.handlers[:], logger.level, logger.propagate = before
    logger.setLevel(before[1])


def test_text_names_time_and_level(stream: io.StringIO) -> None:
    configure_logs("info", "text", stream)
    log = logging.getLogger("ofms.device")
    log.debug("not shown")
    log.info("joined\n as %d", 3)
    log.warning("late")
    lines = stream.getvalue().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["joined as 3", "warning: late"]
    assert all(len(line.partition(" ")[0]) == 20 for line in lines)


def test_json_is_an_object_per_line(stream: io.StringIO) -> None:
    configure_logs("debug", "json", stream)
    log = logging.getLogger("ofms.device")
    log.debug('quotes " and\nlines')
    try:
        raise OSError("full")
    except OSError:
        log.exception("not written")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("debug", "ofms.device", 'quotes " and\nlines')
    assert (second["level"], second["message"]) == ("error", "not written: OSError: full")


@pytest.mark.parametrize(("level", "form"), [("loud", "text"), ("info", "xml")])
def test_another_level_or_format_is_refused(level: str, form: str) -> None:
    with pytest.raises(InvalidInput, match="use one of"):
        configure_logs(level, form)


def test_events_keep_their_time_and_level(stream: io.StringIO, tmp_path: Path) -> None:
    configure_logs("info", "json", stream)
    events = tmp_path / "events.log"
    log_event(events, "the server starts")
    log_event(events, "message rejected", logging.WARNING)
    log_event(events, "each message", logging.DEBUG)
    lines = events.read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["the server starts", "warning: message rejected"]
    for line in lines:
        relay_event(line.replace(line[:20], "2020-02-29T01:02:03Z"))
    relay_event("warning: not of the log")
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["level"], each["message"]) for each in found] == [
        ("info", "the server starts"),
        ("warning", "message rejected"),
        ("info", "warning: not of the log"),
    ]
    assert [each["time"] for each in found[:2]] == ["2020-02-29T01:02:03Z"] * 2
    configure_logs("warning", "text", stream)
    log_event(events, "quiet")
    relay_event("2020-02-29T01:02:03Z exchange 3")
    assert len(events.read_text().splitlines()) == 2
    assert len(stream.getvalue().splitlines()) == 3
    configure_logs("debug", "text", stream)
    log_event(events, "each message", logging.DEBUG)
    assert events.read_text().endswith("debug: each message\n")


def test_lines_of_flower_keep_their_level(stream: io.StringIO) -> None:
    configure_logs("info", "json", stream)
    for line in ("\x1b[92mINFO \x1b[0m:      Starting", "WARNING :   no answer", "DEBUG :     polls", "plain"):
        relay_line(line)
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["level"], each["message"]) for each in found] == [
        ("info", "Starting"),
        ("warning", "no answer"),
        ("info", "plain"),
    ]


def test_a_process_logs_as_the_one_that_started_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR]
    monkeypatch.delenv(LEVEL_VARIABLE, raising=False)
    assert [is_logged(level) for level in levels] == [False, True, True, True]
    for told, expected in (("debug", 4), ("warning", 2), ("error", 1), ("loud", 3)):
        monkeypatch.setenv(LEVEL_VARIABLE, told)
        assert sum(map(is_logged, levels)) == expected


def test_logs_go_to_standard_error_and_nowhere_else(stream: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.StreamHandler(stream)
    logging.getLogger().addHandler(root)
    try:
        configure_logs()
        logging.getLogger("ofms.device").info("once")
        logging.getLogger("ofms.device").debug("not shown")
    finally:
        logging.getLogger().removeHandler(root)
    assert os.environ[LEVEL_VARIABLE] == "info"
    assert capsys.readouterr().err.endswith("Z once\n")
    assert stream.getvalue() == ""


def test_other_loggers_and_characters(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the package's logger is set up; JSON keeps characters, text leaves out what a terminal would obey."""
    root = logging.getLogger().handlers[:]
    configure_logs("info", "json", stream)
    logging.getLogger("ofms.device").info("Pumpe für Öl")
    assert "für Öl" in stream.getvalue()
    logger = logging.getLogger("ofms")
    assert (logger.propagate, len(logger.handlers), logging.getLogger().handlers) == (False, 1, root)
    configure_logs("info", "text", stream)
    logging.getLogger("ofms.device").info("a\x1b[2Jb")
    line = stream.getvalue().splitlines()[-1]
    assert line.endswith(" a [2Jb")
    assert line.startswith(time.strftime("%Y-%m-%dT", time.gmtime()))
    monkeypatch.delenv(LEVEL_VARIABLE)
    assert (is_logged(logging.INFO), is_logged(logging.DEBUG)) == (True, False)
    for found in ("nonsense", "INFO"):
        monkeypatch.setenv(LEVEL_VARIABLE, found)
        assert (is_logged(logging.INFO), is_logged(logging.DEBUG)) == (True, False)


def test_standard_error_is_the_default(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    configure_logs()
    logging.getLogger("ofms.device").info("said")
    assert stream.getvalue().endswith(" said\n")


def test_a_record_has_the_time_of_its_event_and_an_error_that_was_not_raised() -> None:
    error = ValueError("no")
    record = logging.LogRecord("ofms", logging.ERROR, "", 0, "it failed", None, (ValueError, error, None))
    record.created = 0.0
    assert TextFormatter().format(record) == "1970-01-01T00:00:00Z error: it failed: ValueError: no"
