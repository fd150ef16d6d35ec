"""`ofms deploy dashboard`: its queries ask for metrics and labels that a server exposes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ofms.coordinator.status import read_status
from ofms.coordinator.watch.metrics import metrics_of
from tests.cli.commands import assert_refused, run
from tests.watched_fleet import watched_fleet

# Set by Prometheus for each server that it reads.
_OF_PROMETHEUS = {"instance", "job"}


@pytest.fixture
def dashboard(tmp_path: Path) -> dict[str, Any]:
    assert run("deploy", "dashboard", tmp_path / "fleet.json") == 0
    found: dict[str, Any] = json.loads((tmp_path / "fleet.json").read_text())
    return found


def queries(dashboard: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return asked + [each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query"]


def test_queries_ask_for_what_is_exposed(dashboard: dict[str, Any], tmp_path: Path) -> None:
    with watched_fleet(tmp_path) as folder:
        exposed = {metric.name: metric for metric in metrics_of(read_status(folder))}
    asked = set()
    for query in queries(dashboard):
        for name, selector in re.findall(r"(ofms_\w+)(\{[^}]*\})?", query):
            assert name in exposed, query
            asked.add(name)
            labels = {key for labels, _ in exposed[name].samples for key in labels}
            assert set(re.findall(r"(\w+)=", selector)) <= labels | _OF_PROMETHEUS, query
        for grouping in re.findall(r"by \((\w+)\)", query):
            name = re.findall(r"ofms_\w+", query)[0]
            assert any(grouping in labels for labels, _ in exposed[name].samples)
        if "rate(" in query or "increase(" in query:
            assert all(exposed[name].kind == "counter" for name in re.findall(r"ofms_\w+", query))
    assert len(asked) > 15
    unseen = exposed.keys() - asked - {"ofms_info", "ofms_frozen", "ofms_status_timestamp_seconds"}
    assert unseen <= {"ofms_device_bytes_total", "ofms_device_samples_total", "ofms_device_last_exchange"}


def test_legends_name_labels_and_panels_do_not_overlap(dashboard: dict[str, Any], tmp_path: Path) -> None:
    with watched_fleet(tmp_path) as folder:
        labels = {key for metric in metrics_of(read_status(folder)) for own, _ in metric.samples for key in own}
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
        place = panel["gridPos"]
        own = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not own & taken
        assert max(x for x, _ in own) < 24, "a dashboard has 24 columns"
        taken |= own
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_only_a_dashboard_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter.json").write_text("{}")
    assert_refused(capsys, run("deploy", "dashboard", tmp_path / "letter.json"), "it exists and is not a dashboard")
    assert_refused(capsys, run("deploy", "dashboard", tmp_path), "it exists and is not a dashboard")
    assert (tmp_path / "letter.json").read_text() == "{}"
    for _ in range(2):
        assert run("deploy", "dashboard", tmp_path / "fleet.json") == 0
