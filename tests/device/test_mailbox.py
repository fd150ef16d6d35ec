"""Messages through the inbox and outbox of a device's store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ofms.compute.local import LocalNetworks
from ofms.device import mailbox as mailbox_module
from ofms.device.device import Device
from ofms.device.mailbox import Mailbox
from ofms.storage.envelope import decode
from tests.devices import coordinator_of_one, label_samples


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def wait_exchange(device: Device, exchange: int) -> None:
    wait(lambda: device.exchange == exchange)


def wait_answer(mailbox: Mailbox, exchange: int) -> bytes:
    """Wait until the device requests an exchange; its request."""
    wait(lambda: mailbox.answer(exchange))
    return mailbox.answer(exchange) or b""


def test_a_device_answers_its_mail_by_itself(tmp_path: Path) -> None:
    coordinator, budget, x, y = coordinator_of_one()
    schedule = coordinator.fleet.schedule
    mailbox = Mailbox(tmp_path)
    with Device(tmp_path, budget=budget) as device:
        mailbox.deliver(coordinator.welcome(0))
        request = wait_answer(mailbox, 0)
        assert not device.ready
        for exchange in range(schedule.exchanges):
            assert coordinator.receive(0, decode(request)) == []
            if coordinator.opened is not None:
                coordinator.close()
            mailbox.deliver(coordinator.open()[0])
            wait_exchange(device, exchange)
            label_samples(device, x, y, range(*schedule.span(exchange)))
            request = wait_answer(mailbox, exchange + 1)
        # The device writes a request before it removes the one that it replaces.
        newest = f"request-{schedule.exchanges}.safetensors"
        wait(lambda: [path.name for path in mailbox.outbox.glob("request-*")] == [newest])
        wait(lambda: mailbox.newest() is None)


def test_a_malformed_message_is_answered_with_the_reason(tmp_path: Path) -> None:
    coordinator, budget, _, _ = coordinator_of_one()
    mailbox = Mailbox(tmp_path)
    with Device(tmp_path, budget=budget) as device:
        name = mailbox.deliver(b"nonsense")
        wait(lambda: mailbox.refusal(name))
        assert "not a complete envelope" in str(mailbox.refusal(name))
        mailbox.deliver(coordinator.welcome(0))
        wait_answer(mailbox, 0)
        assert not device.ready


def test_a_message_that_exceeds_the_device_is_refused_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A carrier knows no budget: what it delivers may be of any size."""
    _, budget, _, _ = coordinator_of_one()
    monkeypatch.setattr(mailbox_module, "MARGIN", 1000)
    mailbox, received = Mailbox(tmp_path), list[int]()
    with Device(tmp_path, budget=budget) as device:
        monkeypatch.setattr(device, "receive", lambda content: received.append(len(content)))
        name = mailbox.deliver(b"x" * (budget + 1001))
        wait(lambda: mailbox.refusal(name))
        assert f"at most {budget + 1000} bytes are accepted" in str(mailbox.refusal(name))
        mailbox.deliver(b"x" * (budget + 1000))
        wait(lambda: mailbox.newest() is None)
    assert received == [budget + 1000]


def test_only_the_newest_message_is_kept(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    for content in (b"one", b"two", b"three"):
        mailbox.deliver(content)
    assert (mailbox.newest() or ("", b""))[1] == b"three"
    assert mailbox.in_transit() == 5
    assert len(list(mailbox.inbox.iterdir())) == 1


def test_a_reopened_device_answers_messages_delivered_while_it_was_closed(tmp_path: Path) -> None:
    coordinator, budget, x, y = coordinator_of_one()
    mailbox = Mailbox(tmp_path)
    mailbox.deliver(coordinator.welcome(0))
    with Device(tmp_path, budget=budget):
        request = wait_answer(mailbox, 0)
    coordinator.receive(0, decode(request))
    mailbox.deliver(coordinator.open()[0])
    with Device(tmp_path, budget=budget) as device:
        assert device.wait_ready(20)
        label_samples(device, x, y, range(*coordinator.fleet.schedule.span(0)))
        wait_answer(mailbox, 1)


def test_predictions_go_on_while_a_device_fine_tunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, budget, x, y = coordinator_of_one()
    with Device(tmp_path, budget=budget) as device:
        mailbox = Mailbox(tmp_path)
        mailbox.deliver(coordinator.welcome(0))
        coordinator.receive(0, decode(wait_answer(mailbox, 0)))
        mailbox.deliver(coordinator.open()[0])
        assert device.wait_ready(20)
        own = LocalNetworks.update
        during: list[int] = []

        def slow(*arguments: Any) -> Any:
            until = len(during) + 3
            while len(during) < until:
                time.sleep(0.01)
            return own(*arguments)

        monkeypatch.setattr(LocalNetworks, "update", slow)
        label_samples(device, x, y, range(*coordinator.fleet.schedule.span(0)))
        while mailbox.answer(1) is None:
            during.append(device.predict(x[3]).id)
        assert len(during) >= 3, "predictions were made while fine-tuning waited"
