"""A device's store: killed processes, a full disk, a second process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ofms
import ofms.device.recorder as recorder_module
import ofms.device.store as store_module
from ofms.coordinator.coordinator import Coordinator
from ofms.device.device import Device
from ofms.device.journal import Journal, read_records
from ofms.device.journal_records import Labelled
from ofms.device.store import Store
from ofms.storage.checksums import with_checksum, without_checksum
from ofms.storage.envelope import Envelope, decode, encode
from tests.devices import grant_of
from tests.full_disk import full_after

LOOP = """
import sys, time, numpy as np, ofms
device = ofms.Device(sys.argv[1], budget=int(sys.argv[2]), mail=False)
for number in range(10**6):
    answer = device.predict(np.full(3, number % 7 / 7))
    device.feedback(answer.id, 0.25)
    print(answer.id, time.time(), flush=True)
"""


def test_two_processes_do_not_share_a_store(device: Device, tmp_path: Path) -> None:
    with pytest.raises(ofms.InvalidInput, match="another process is using it"):
        Device(device.store, budget=device.budget, mail=False)
    device.close()
    (device.store / "snapshot.safetensors").write_bytes(b"damaged")
    with pytest.raises(ofms.InvalidInput, match="it cannot be read"):
        Device(device.store, budget=device.budget, mail=False)


def test_a_journal_drops_a_record_that_was_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for number in (1, 2, 3):
        journal.append(Labelled(number, 0.5))
    journal.close()
    content = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(content[:-2])
    assert read_records(tmp_path / "journal") == [Labelled(1, 0.5), Labelled(2, 0.5)]
    journal = Journal(tmp_path / "journal")
    journal.append(Labelled(4, 7))
    journal.close()
    assert read_records(tmp_path / "journal") == [Labelled(1, 0.5), Labelled(2, 0.5), Labelled(4, 7)]


def test_a_killed_process_loses_at_most_the_last_tenth_of_a_second(device: Device, tmp_path: Path) -> None:
    device.close()
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(device.store), str(device.budget)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    until = time.time() + 0.7
    while time.time() < until:
        lines.append(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    acknowledged = [(int(line.split()[0]), float(line.split()[1])) for line in lines if line.count(" ") == 1]
    last = acknowledged[-1][1]
    safe = [number for number, when in acknowledged if when < last - 0.1]
    assert len(safe) > 20
    with Device(device.store, budget=device.budget, mail=False) as again:
        assert again._state.memory.labelled >= len(safe), "every label acknowledged until then is there"
        assert again.predictions >= safe[-1] + 1
        losses = again._state.memory.losses.copy()
    with Device(device.store, budget=device.budget, mail=False) as once_more:
        assert once_more._state.memory.losses.tolist() == losses.tolist()
        assert once_more.collect() is not None


def test_a_killed_process_loses_nothing_that_was_flushed(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "FLUSH_SECONDS", 1000.0)
    answers = [device.predict(np.full(3, number / 7)) for number in range(2)]
    device.feedback(answers[0].id, 0.25)
    with full_after(0), pytest.raises(OSError, match="No space left"):
        device.flush()
    device.flush()
    device.feedback(answers[1].id, 0.25)
    # As a kill leaves it: the last label is still in memory.
    shutil.copytree(device.store, tmp_path / "killed")
    with Device(tmp_path / "killed", budget=device.budget, mail=False) as again:
        assert (again.predictions, again.waiting) == (2, [answers[1].id])


def test_a_closed_device_does_not_write_to_a_reused_descriptor(device: Device, tmp_path: Path) -> None:
    device.close()
    with open(tmp_path / "other", "wb") as other:
        with pytest.raises(ofms.InvalidInput, match="it is closed"):
            device.predict(np.zeros(3))
        other.flush()
    assert (tmp_path / "other").read_bytes() == b""
    device.close()


def test_a_long_journal_is_replaced_by_a_snapshot_without_loss(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "_MOST_JOURNAL_BYTES", 1)
    answer = device.predict(np.zeros(3))
    assert device._recorder.store._journal is not None
    device._recorder.store._journal.flush()
    assert device.feedback(answer.id, 0.5)
    assert len(list(device.store.glob("journal-*"))) == 1
    assert not read_records(next(device.store.glob("journal-*"))), "a snapshot replaced it"
    losses = device._state.memory.losses.tolist()
    device._recorder.store.close()
    with Device(device.store, budget=device.budget, mail=False) as again:
        assert (again.predictions, again._state.memory.labelled, again._state.memory.losses.tolist()) == (1, 1, losses)


def test_a_full_disk_does_not_separate_memory_from_the_store(
    device: Device, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a grant's snapshot cannot be written, the next event writes it or fails too."""
    device.collect(now=True)
    chosen = int(device._state.memory.state.policy.chosen[0])
    grant = grant_of(coordinator, [chosen])
    own = device._recorder.store.keep_snapshot

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(device._recorder.store, "keep_snapshot", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            device.receive(grant)
        with pytest.raises(OSError, match="No space"):
            device.predict(np.zeros(3))
    monkeypatch.setattr(device._recorder.store, "keep_snapshot", own)
    device.receive(grant)
    answer = device.predict(np.zeros(3))
    device._recorder.store.close()
    with Device(device.store, budget=device.budget, mail=False) as again:
        assert (again.exchange, again.holding, again.waiting) == (1, [chosen], [answer.id])


def test_the_journals_thread_ends_when_the_store_is_closed_at_once(tmp_path: Path) -> None:
    """The store is closed just after the journal's thread has seen it open."""
    store = Store(tmp_path)
    store.records()

    class ClosedAfterwards(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            found = super().wait(timeout)
            self.set()
            store._waiting.set()
            return found

    store._closed = ClosedAfterwards()
    store.append(Labelled(1, 0.5))
    store._writer.join(20)
    assert not store._writer.is_alive()
    store.close()
    assert read_records(tmp_path / "journal-0") == [Labelled(1, 0.5)]


def messages_of(device: Device) -> list[Path]:
    return list(device.store.glob("message-*"))


def test_a_message_for_the_server_waits_in_the_store_and_not_in_memory(
    device: Device, coordinator: Coordinator
) -> None:
    """A report is as large as the models that a device may hold."""
    device.feedback(device.predict(np.zeros(3)).id, 0.5)
    report = device.collect(now=True)
    outgoing = device.outgoing()
    assert outgoing is not None
    assert report is not None
    assert outgoing.parts is None
    assert [path.read_bytes() for path in messages_of(device)] == [report] == [device.content(outgoing)]
    assert report not in (device.store / "snapshot.safetensors").read_bytes()
    device.close()
    with Device(device.store, budget=device.budget, mail=False) as again:
        assert again.collect() == report
        again.receive(grant_of(coordinator, [int(again._state.memory.state.policy.chosen[0])]))
        assert (again.collect(), messages_of(again)) == (None, [])
        with pytest.raises(OSError, match="message-"):
            again.content(outgoing)


def test_a_message_that_cannot_be_written_stays_in_memory(device: Device) -> None:
    device.feedback(device.predict(np.zeros(3)).id, 0.5)
    device.flush()
    with full_after(0), pytest.raises(OSError, match="No space left"):
        device.collect(now=True)
    report = device.collect()
    device.predict(np.zeros(3))
    assert [path.read_bytes() for path in messages_of(device)] == [report]


def test_a_snapshot_with_the_message_in_it_is_read(device: Device) -> None:
    """As versions before 0.3.0 wrote it."""
    report = device.collect(now=True)
    assert report is not None
    device.close()
    path = device.store / "snapshot.safetensors"
    snapshot = decode(without_checksum(path.read_bytes()))
    values = {name: value for name, value in snapshot.values.items() if name != "outgoing"}
    arrays = {**snapshot.arrays, "outgoing": np.frombuffer(report, dtype=np.uint8)}
    path.write_bytes(with_checksum(encode(Envelope(snapshot.kind, values, arrays))))
    (message,) = messages_of(device)
    message.unlink()
    with Device(device.store, budget=device.budget, mail=False) as again:
        assert again.collect() == report
        again._recorder.snapshot()
        assert messages_of(again) == [message]


def test_a_plan_whose_models_could_not_have_been_drawn_is_rejected(device: Device) -> None:
    """Estimates of losses divide by the probability."""
    device.close()
    path = device.store / "snapshot.safetensors"
    snapshot = decode(without_checksum(path.read_bytes()))
    plan = next(name for name in snapshot.arrays if name.startswith("plan.") and name.endswith(".inclusion"))
    arrays = {**snapshot.arrays, plan: np.zeros_like(snapshot.arrays[plan])}
    path.write_bytes(with_checksum(encode(Envelope(snapshot.kind, snapshot.values, arrays))))
    with pytest.raises(ofms.InvalidInput, match="plan inclusion"):
        Device(device.store, budget=device.budget, mail=False)
