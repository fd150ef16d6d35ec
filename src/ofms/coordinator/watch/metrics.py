"""A deployment's status as metrics in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class Metric:
    """A metric with its samples: labels and a value; a value of None is left out."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Sequence[tuple[dict[str, str], float | None]]

    def text(self) -> str:
        """
        >>> print(Metric("ofms_running", "gauge", "Whether it runs.", [({"device": 'a"b'}, 1)]).text(), end="")
        # HELP ofms_running Whether it runs.
        # TYPE ofms_running gauge
        ofms_running{device="a\\"b"} 1
        """
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        for labels, value in self.samples:
            if value is not None:
                shown = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
                lines.append(f"{self.name}{{{shown}}} {_number(value)}" if shown else f"{self.name} {_number(value)}")
        return "\n".join(lines) + "\n"


def metrics_text(status: dict[str, Any]) -> str:
    """All metrics of a deployment, from its status."""
    return "".join(metric.text() for metric in metrics_of(status))


def metrics_of(status: dict[str, Any]) -> Iterator[Metric]:
    """All metrics of a deployment: of the server, its models and its devices."""
    info = {key: str(status[key]) for key in ("version", "deployment", "policy", "revision", "task")}
    recent = status["recent"]
    yield Metric("ofms_info", "gauge", "Version, deployment, policy and dictionary of the server.", [(info, 1)])
    yield _one("ofms_running", "gauge", "Whether the server app is running.", status["running"])
    yield _one("ofms_frozen", "gauge", "Whether fine-tuning is stopped.", status["frozen"])
    yield _one("ofms_status_timestamp_seconds", "gauge", "When the server wrote its status.", status["written"])
    yield _one("ofms_exchanges_total", "counter", "Exchanges closed.", status["exchange"])
    last = recent[-1] if recent else {}
    yield _one(
        "ofms_last_exchange_timestamp_seconds", "gauge", "When the last exchange was closed.", last.get("closed")
    )
    yield _one("ofms_last_exchange_devices", "gauge", "Devices of the last exchange.", last.get("granted"))
    yield _one("ofms_last_exchange_answers", "gauge", "Devices that answered the last exchange.", last.get("answered"))
    yield _one(
        "ofms_last_exchange_late", "gauge", "Answers to earlier exchanges that count in the last one.", last.get("late")
    )
    yield _one("ofms_last_exchange_updates", "gauge", "Updates applied in the last exchange.", last.get("updates"))
    yield Metric("ofms_last_exchange_score", "gauge", _SCORE, [({"metric": score_name(status)}, last.get("score"))])
    moved = [({"direction": way}, status[f"bytes_{way}"]) for way in ("down", "up")]
    yield Metric("ofms_bytes_total", "counter", "Bytes of messages to (down) and from (up) devices.", moved)
    yield from _model_metrics(status)
    yield from _device_metrics(status)


_SCORE = "Accuracy, or mean squared error, of the predictions that devices reported last."


def score_name(status: dict[str, Any]) -> str:
    """The metric of the deployment's task."""
    return "accuracy" if status["task"] == "classification" else "mse"


def models_in_use(status: dict[str, Any]) -> list[str]:
    """The models that are not retired; a status before models could be retired does not say."""
    return list(status.get("in_use", status["models"]))


def _model_metrics(status: dict[str, Any]) -> Iterator[Metric]:
    use, in_use = status["use"], set(models_in_use(status))
    named = zip(status["models"], status["versions"], strict=False)
    versions = [({"model": name}, version) for name, version in named if name in in_use]
    yield Metric("ofms_model_version", "gauge", "Version of a model; it grows with each change.", versions)
    held = [({"model": name}, share) for name, share in use["held"].items() if name in in_use]
    yield Metric("ofms_model_held_share", "gauge", "Share of the last exchange's devices that hold a model.", held)
    used = [({"model": name}, share) for name, share in use["used"].items() if name in in_use]
    yield Metric(
        "ofms_model_use_share", "gauge", "Mean weight of a model in predictions, of devices that report it.", used
    )


def _device_metrics(status: dict[str, Any]) -> Iterator[Metric]:
    devices = [(device, {"device": device["name"]}) for device in status["devices"]]
    states = [device_state(device, bool(status["running"])) for device, _ in devices]
    counted = [({"state": state}, states.count(state)) for state in ("connected", "disconnected", "revoked")]
    yield Metric("ofms_devices", "gauge", "Devices by state.", counted)
    connected = [(own, state == "connected") for (_, own), state in zip(devices, states, strict=True)]
    yield Metric("ofms_device_connected", "gauge", "Whether a device is connected.", connected)
    for name, kind, help_text, key in _PER_DEVICE:
        yield Metric(name, kind, help_text, [(own, device[key]) for device, own in devices])
    both = [({**own, "direction": way}, device[f"bytes_{way}"]) for device, own in devices for way in ("down", "up")]
    yield Metric("ofms_device_bytes_total", "counter", "Bytes of messages to (down) and from (up) a device.", both)
    scores = [({**own, "metric": score_name(status)}, last_score(device)) for device, own in devices]
    yield Metric("ofms_device_score", "gauge", _SCORE, scores)


_PER_DEVICE: tuple[tuple[str, Literal["gauge", "counter"], str, str], ...] = (
    ("ofms_device_exchanges_total", "counter", "Exchanges that a device was part of.", "exchanges"),
    ("ofms_device_missed_total", "counter", "Exchanges that a device did not answer in time.", "missed"),
    ("ofms_device_late_total", "counter", "Exchanges that a device answered after they were closed.", "late"),
    ("ofms_device_rejected_total", "counter", "Messages of a device, or parts of them, that were rejected.", "refused"),
    ("ofms_device_outliers_total", "counter", "Updates over ten times as long as the others'.", "outliers"),
    ("ofms_device_samples_total", "counter", "Labels that a device reported.", "samples"),
    ("ofms_device_held_bytes", "gauge", "Bytes of the models that a device holds.", "held_bytes"),
    ("ofms_device_budget_bytes", "gauge", "Bytes that a device has for models.", "budget"),
    ("ofms_device_last_exchange", "gauge", "The last exchange that a device answered; -1 for none.", "last_exchange"),
)


def last_score(device: dict[str, Any]) -> float | None:
    """The mean score of the last report of a device that had labels; None if there is none."""
    return device["last_score"] / device["last_samples"] if device["last_samples"] else None


def device_state(device: dict[str, Any], running: bool) -> str:
    """`connected`, `disconnected` or `revoked`; without a server, no device is connected."""
    if device["revoked"]:
        return "revoked"
    return "connected" if running and device["node"] is not None else "disconnected"


def _one(name: str, kind: Literal["gauge", "counter"], help_text: str, value: float | None) -> Metric:
    return Metric(name, kind, help_text, [({}, value)])


def _number(value: float) -> str:
    return repr(int(value)) if isinstance(value, bool | int) else repr(float(value))
