"""Flower's client app carries messages between a server and a device's mailbox."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from ofms.coordinator.transport import Kind
from ofms.device.device import Device
from ofms.device.mailbox import Mailbox
from ofms.flower.records import to_record
from ofms.storage.envelope import Envelope, decode, encode
from tests.devices import coordinator_of_one, label_samples
from tests.flower.messages import carry, carry_record
from tests.tampering import changed


def test_the_client_app_needs_no_pytorch() -> None:
    code = "import sys, ofms.flower.client_app; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_a_message_of_another_protocol_is_answered_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = coordinator_of_one()[0]
    content = to_record(coordinator.welcome(0), wait=1.0)
    content.config_records["message"]["protocol"] = 7
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    answer = decode(carry_record(content, "join", tmp_path))
    assert answer.kind == "refusal"
    assert answer.values["reason"] == "message = protocol 7: this is protocol 3; upgrade the older side"
    assert "protocol 7" in caplog.text
    assert not list(tmp_path.iterdir()), "nothing reached the device"


def test_an_answer_to_another_grant_is_not_carried(tmp_path: Path) -> None:
    """The outbox holds the answer to an earlier opening of the exchange; the device has to answer this opening."""
    coordinator, budget, x, y = coordinator_of_one()
    mailbox = Mailbox(tmp_path)

    def answer(content: bytes, kind: Kind, wait: float = 0.0) -> Envelope:
        return decode(carry(content, kind, tmp_path, wait))

    with Device(tmp_path, budget=budget, mail=False) as device:
        device.receive(coordinator.welcome(0))
        coordinator.receive(0, decode(device.collect() or b""))
        grant = coordinator.open()[0]
        device.receive(grant)
        label_samples(device, x, y, range(*coordinator.fleet.schedule.span(0)))
        mailbox.send(1, device.collect() or b"")
        assert answer(grant, "exchange").kind == "request"
        reopened = encode(changed(decode(grant), opening="another"))
        assert answer(reopened, "exchange", wait=0.2).kind == "nothing"
        device.receive(reopened)
        mailbox.send(1, device.collect() or b"")
        request = answer(reopened, "exchange")
        assert (request.kind, request.values["opening"], request.part("report")) == ("request", "another", {})
        other = encode(changed(decode(coordinator.welcome(0)), deployment="other"))
        assert answer(other, "join").kind == "nothing"
