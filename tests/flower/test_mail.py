"""Messages through a store's inbox and outbox, and a carrier that needs no PyTorch."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, Metadata, RecordDict

from ofms.compute.local import LocalNetworks
from ofms.coordinator.coordinator import Coordinator
from ofms.device.device import Device
from ofms.device.mailbox import Mailbox
from ofms.flower import client_app
from ofms.flower.records import from_record, to_record
from ofms.storage.envelope import Envelope, decode, encode
from tests.devices import problem

ROUNDS, INTERVAL = 8, 2


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def coordinator_of_one() -> tuple[Coordinator, int, np.ndarray, np.ndarray]:
    dictionary, stream = problem()
    budget = 3 * int(dictionary.catalogue().storage.max())
    settings = {"learning_rate": 0.5, "fine_tuning_rate": 0.05}
    coordinator = Coordinator(
        dictionary,
        budgets=np.array([budget]),
        bandwidth=2 * budget,
        rounds=ROUNDS,
        interval=INTERVAL,
        settings=settings,
    )
    return coordinator, budget, stream.x[0], stream.y[0]


def test_a_device_answers_its_mail_by_itself(tmp_path: Path) -> None:
    coordinator, budget, x, y = coordinator_of_one()
    mailbox = Mailbox(tmp_path)
    with Device(tmp_path, budget=budget) as device:
        mailbox.deliver(coordinator.welcome(0))
        wait(lambda: mailbox.answer(0))
        assert not device.ready
        for exchange in range(ROUNDS // INTERVAL):
            assert coordinator.receive(0, decode(mailbox.answer(exchange) or b"")) == []
            if coordinator.opened is not None:
                coordinator.close()
            mailbox.deliver(coordinator.open()[0])
            assert device.wait_ready(20)
            wait(lambda exchange=exchange: device.exchange == exchange)
            assert mailbox.in_transit() == 0 or device.exchange == exchange
            for step in range(exchange * INTERVAL, (exchange + 1) * INTERVAL):
                answer = device.predict(x[step])
                device.feedback(answer.id, float(y[step]))
            wait(lambda exchange=exchange: mailbox.answer(exchange + 1))
        assert [path.name for path in mailbox.outbox.glob("request-*")] == [f"request-{ROUNDS // INTERVAL}.safetensors"]
        wait(lambda: mailbox.newest() is None)


def test_a_message_that_makes_no_sense_is_answered_with_the_reason(tmp_path: Path) -> None:
    coordinator, budget, _, _ = coordinator_of_one()
    mailbox = Mailbox(tmp_path)
    with Device(tmp_path, budget=budget) as device:
        name = mailbox.deliver(b"nonsense")
        wait(lambda: mailbox.refusal(name))
        assert "not a complete envelope" in str(mailbox.refusal(name))
        mailbox.deliver(coordinator.welcome(0))
        wait(lambda: mailbox.answer(0))
        assert not device.ready


def test_only_the_newest_message_is_kept(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    for content in (b"one", b"two", b"three"):
        mailbox.deliver(content)
    assert (mailbox.newest() or ("", b""))[1] == b"three"
    assert mailbox.in_transit() == 5
    assert len(list(mailbox.inbox.iterdir())) == 1


def test_a_device_that_was_closed_answers_what_came_meanwhile(tmp_path: Path) -> None:
    coordinator, budget, x, y = coordinator_of_one()
    mailbox = Mailbox(tmp_path)
    mailbox.deliver(coordinator.welcome(0))
    with Device(tmp_path, budget=budget):
        wait(lambda: mailbox.answer(0))
    coordinator.receive(0, decode(mailbox.answer(0) or b""))
    mailbox.deliver(coordinator.open()[0])
    with Device(tmp_path, budget=budget) as device:
        assert device.wait_ready(20)
        for step in range(INTERVAL):
            device.feedback(device.predict(x[step]).id, float(y[step]))
        wait(lambda: mailbox.answer(1))


def test_predictions_go_on_while_a_device_fine_tunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, budget, x, y = coordinator_of_one()
    with Device(tmp_path, budget=budget) as device:
        mailbox = Mailbox(tmp_path)
        mailbox.deliver(coordinator.welcome(0))
        wait(lambda: mailbox.answer(0))
        coordinator.receive(0, decode(mailbox.answer(0) or b""))
        mailbox.deliver(coordinator.open()[0])
        assert device.wait_ready(20)
        own = LocalNetworks.update
        during: list[int] = []

        def slow(*arguments: object) -> object:
            until = len(during) + 3
            while len(during) < until:
                time.sleep(0.01)
            return own(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(LocalNetworks, "update", slow)
        for step in range(INTERVAL):
            device.feedback(device.predict(x[step]).id, float(y[step]))
        while mailbox.answer(1) is None:
            during.append(device.predict(x[3]).id)
        assert len(during) >= 3, "fine-tuning waited for predictions, and they did not wait for it"


def test_what_carries_messages_needs_no_pytorch() -> None:
    code = "import sys, ofms.flower.client_app; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_a_message_of_another_protocol_is_answered_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, _, _, _ = coordinator_of_one()
    content = to_record(coordinator.welcome(0), wait=1.0)
    content.config_records["message"]["protocol"] = 7
    head = Metadata(1, "a", 2, 1, "", "0", time.time(), 60.0, "query.join")
    message = Message(content, metadata=head)
    context = Context(1, 1, {"store": str(tmp_path)}, RecordDict(), {})
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    answer = decode(from_record(client_app.app(message, context).content)[0])
    assert answer.kind == "refusal"
    assert answer.values["reason"] == "message = protocol 7: this is protocol 2; upgrade the older side"
    assert "protocol 7" in caplog.text
    assert not list(tmp_path.iterdir()), "nothing reached the device"


def carried(content: bytes, kind: str, store: Path, wait: float) -> Envelope:
    """The answer that the client app brings for a message."""
    message = Message(to_record(content, wait=wait), metadata=Metadata(1, "a", 2, 1, "", "0", time.time(), 60.0, kind))
    context = Context(1, 1, {"store": str(store)}, RecordDict(), {})
    return decode(from_record(client_app.app(message, context).content)[0])


def test_an_answer_to_another_grant_is_not_carried(tmp_path: Path) -> None:
    """What is in the outbox answers the exchange as it was opened before; the device has to answer this opening."""
    coordinator, budget, x, y = coordinator_of_one()
    mailbox = Mailbox(tmp_path)
    with Device(tmp_path, budget=budget, mail=False) as device:
        device.receive(coordinator.welcome(0))
        coordinator.receive(0, decode(device.collect() or b""))
        grant = coordinator.open()[0]
        device.receive(grant)
        for step in range(INTERVAL):
            device.feedback(device.predict(x[step]).id, float(y[step]))
        mailbox.send(1, device.collect() or b"")
        assert carried(grant, "train.exchange", tmp_path, 0.0).kind == "request"
        values = decode(grant).values | {"opening": "another"}
        again = encode(Envelope("grant", values, decode(grant).arrays))
        assert carried(again, "train.exchange", tmp_path, 0.2).kind == "nothing"
        device.receive(again)
        mailbox.send(1, device.collect() or b"")
        answer = carried(again, "train.exchange", tmp_path, 0.0)
        assert (answer.kind, answer.values["opening"], answer.part("report")) == ("request", "another", {})
        welcome = decode(coordinator.welcome(0))
        other = encode(Envelope("welcome", welcome.values | {"deployment": "other"}))
        assert carried(other, "query.join", tmp_path, 0.0).kind == "nothing"
