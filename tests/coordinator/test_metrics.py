"""Metrics of a deployment, as Prometheus reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ofms.coordinator.files import STATUS
from ofms.coordinator.status import read_status
from ofms.coordinator.watch.metrics import Metric, metrics_of, metrics_text
from ofms.core.errors import InvalidInput
from tests.watched_fleet import watched_fleet


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels, as Prometheus's own parser reads them."""
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_the_figures_of_the_status(tmp_path: Path) -> None:
    with watched_fleet(tmp_path) as folder:
        status = read_status(folder)
        found = samples(metrics_text(status))
    assert found["ofms_running",] == 1
    assert found["ofms_exchanges_total",] == 4
    assert found["ofms_devices", "state=connected"] == 2
    assert found["ofms_devices", "state=disconnected"] == 1
    assert found["ofms_bytes_total", "direction=up"] == status["bytes_up"]
    device = status["devices"][1]
    assert found["ofms_device_rejected_total", "device=device-1"] == device["refused"] == 1
    expected = device["last_score"] / device["last_samples"]
    assert found["ofms_device_score", "device=device-1", "metric=mse"] == pytest.approx(expected)
    assert found["ofms_last_exchange_score", "metric=mse"] == pytest.approx(status["recent"][-1]["score"])
    assert found["ofms_model_version", "model=net0"] == status["versions"][0]
    used = {key: value for key, value in found.items() if key[0] == "ofms_model_use_share"}
    assert sum(used.values()) == pytest.approx(1.0)
    assert len(used) == len(status["models"])
    stopped = samples(metrics_text(read_status(folder)))
    assert stopped["ofms_running",] == 0
    assert stopped["ofms_devices", "state=connected"] == 0, "nobody is connected to a server that is stopped"


def test_a_retired_model_is_not_shown(tmp_path: Path) -> None:
    with watched_fleet(tmp_path) as folder:
        status = read_status(folder)
    status["in_use"].remove("net1")
    found = samples(metrics_text(status))
    assert ("ofms_model_version", "model=net0") in found
    assert not any("model=net1" in key for key in found)


def test_every_family_has_a_type_and_a_help(tmp_path: Path) -> None:
    with watched_fleet(tmp_path) as folder:
        text = metrics_text(read_status(folder))
    families = list(text_string_to_metric_families(text))
    assert len(families) > 20
    for family in families:
        assert family.type in ("gauge", "counter")
        assert family.documentation.endswith(".")
        assert family.name.startswith("ofms_")
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "each family once"


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "ä ö", "}", 'x",y="z'])
def test_any_name_is_a_label(name: str) -> None:
    text = Metric("ofms_model_version", "gauge", "Version.", [({"model": name}, 2)]).text()
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    assert sample.labels == {"model": name}
    assert sample.value == 2


def test_a_status_of_an_earlier_server_is_read(tmp_path: Path) -> None:
    with watched_fleet(tmp_path) as folder:
        pass
    status: dict[str, Any] = json.loads((folder / STATUS).read_text())
    for name in ("version", "task", "models", "recent", "use"):
        del status[name]
    for device in status["devices"]:
        for name in ("samples", "score", "last_samples", "last_score"):
            del device[name]
    (folder / STATUS).write_text(json.dumps(status))
    found = samples(metrics_text(read_status(folder)))
    assert found["ofms_exchanges_total",] == 4
    assert not any(key[0] == "ofms_device_score" for key in found)


@pytest.mark.parametrize("change", [{"policy": None}, {"devices": None}, {"devices": [{}]}, {"exchange": "4"}])
def test_a_damaged_status_is_rejected_in_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    with watched_fleet(tmp_path) as folder:
        pass
    status = json.loads((folder / STATUS).read_text()) | change
    (folder / STATUS).write_text(json.dumps({name: value for name, value in status.items() if value is not None}))
    with pytest.raises(InvalidInput, match=r"status\.json: it is damaged \(.*\); the server will rewrite it"):
        read_status(folder)


def test_every_metric_is_documented(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    with watched_fleet(tmp_path) as folder:
        for metric in metrics_of(read_status(folder)):
            assert f"`{metric.name.removeprefix('ofms_')}`" in page
