"""Devices that lie, replay, return from backups or share a key: the server survives, and the others do not notice."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ofms.coordinator.commands import Command, give_command
from ofms.coordinator.status import read_status, status_text
from ofms.coordinator.transport import Kind, Reply
from ofms.core.errors import InvalidInput
from ofms.device.device import Device
from ofms.storage.envelope import Envelope, decode, encode
from tests.scheduled_fleet import ScheduledFleet
from tests.tampering import changed, without_deltas

HOSTILE = 1


@pytest.fixture
def scheduled(tmp_path: Path) -> Iterator[ScheduledFleet]:
    made = ScheduledFleet(tmp_path)
    yield made
    made.close()


def tamper(fleet: ScheduledFleet, change: Callable[[Envelope], Envelope], client: int = HOSTILE) -> None:
    """Change a device's answers to grants, by default the hostile one's."""

    def changes(reply: Reply) -> Reply:
        envelope = decode(reply.content or b"")
        return replace(reply, content=encode(change(envelope))) if envelope.part("report") else reply

    fleet.transport.changes[client] = changes


def deltas_of(envelope: Envelope) -> dict[str, Any]:
    return {key: array for key, array in envelope.arrays.items() if key.startswith("delta.")}


def largest(envelope: Envelope, models: Mapping[int, Mapping[str, torch.Tensor]], factor: float) -> Envelope:
    """Updates reversed, at a multiple of the norm of the parameters, with the largest weight of three groups or one."""
    made: dict[str, Any] = {}
    for model in {int(key.split(".")[1]) for key in deltas_of(envelope)}:
        mine = {key: array for key, array in deltas_of(envelope).items() if key.split(".")[1] == str(model)}
        norm = np.sqrt(sum(float(np.square(array.astype(np.float64)).sum()) for array in mine.values()))
        own = np.sqrt(sum(float(models[model][key.split(".", 2)[2]].double().square().sum()) for key in mine))
        made |= {key: (-factor * own / norm * array).astype(np.float32) for key, array in mine.items()}
    return changed(envelope, made, weights=dict.fromkeys(envelope.values["weights"], 6.0))


def _recorded(close: Callable[..., None], fleet: ScheduledFleet, versions: list[Any], *given: Any) -> None:
    close(*given)
    versions.append([dict(each) for each in fleet.persistence.coordinator.tensors])


def test_updates_at_the_largest_norm_harm_only_their_models_and_a_rollback_restores_these(tmp_path: Path) -> None:
    """The device attacks in exchange 1; the operator rolls its models back before exchange 2."""
    honest, attacked = ScheduledFleet(tmp_path / "honest"), ScheduledFleet(tmp_path / "attacked")
    hit: set[int] = set()

    def attack(envelope: Envelope) -> Envelope:
        if envelope.values["exchange"] != 2:
            return envelope
        hit.update(int(key.split(".")[1]) for key in deltas_of(envelope))
        tensors = dict(enumerate(attacked.persistence.coordinator.tensors))
        # Rounding may make the norm a little larger.
        return largest(envelope, tensors, 0.999)

    tamper(attacked, attack)
    versions: dict[str, list[Any]] = {}
    for name, fleet in (("honest", honest), ("attacked", attacked)):
        fleet.persistence.close_exchange = partial(  # type: ignore[method-assign]
            _recorded, fleet.persistence.close_exchange, fleet, versions.setdefault(name, [])
        )
        fleet.run()
        assert fleet.attended == [3, 3, 3]
    assert attacked.persistence.records.refusals == []
    assert hit
    for model, (mine, theirs) in enumerate(zip(versions["honest"][1], versions["attacked"][1], strict=True)):
        same = all(torch.equal(mine[key], theirs[key]) for key in mine)
        assert same == (model not in hit), model
    # A rollback to the versions before exchange 1, whose server runs no more: executed at its next start.
    names = attacked.persistence.coordinator.fleet.catalogue.names
    rollback = {names[model]: 1 for model in hit}
    give_command(attacked.folder, Command("change", change={"rollback": rollback}))
    attacked.restart()
    attacked.persistence.run_commands()
    for model in hit:
        now = attacked.persistence.coordinator.tensors[model]
        assert all(torch.equal(now[key], versions["attacked"][0][model][key]) for key in now)
    honest.close()
    attacked.close()


def test_updates_far_longer_than_the_others_are_counted_by_device(tmp_path: Path) -> None:
    """Accepted, because they are within the largest norm; the operator sees whose they are."""
    scheduled = ScheduledFleet(tmp_path, settings={"fine_tuning_rate": 1e-4, "learning_rate": 1e-6})
    tamper(scheduled, lambda each: largest(each, dict(enumerate(scheduled.persistence.coordinator.tensors)), 0.9))
    scheduled.run()
    devices = read_status(scheduled.folder)["devices"]
    assert [device["refused"] for device in devices] == [0, 0, 0]
    assert devices[0]["outliers"] == devices[2]["outliers"] == 0
    assert devices[HOSTILE]["outliers"] > 0
    assert "device-1 (node 11): " in scheduled.events
    assert "updates are over ten times as long as the others'" in scheduled.events
    assert status_text(read_status(scheduled.folder)).splitlines()[2].endswith("outliers")
    scheduled.close()


def test_updates_beyond_the_largest_norm_are_refused_and_counted(scheduled: ScheduledFleet) -> None:
    tamper(scheduled, lambda each: largest(each, dict(enumerate(scheduled.persistence.coordinator.tensors)), 1.01))
    scheduled.run()
    assert scheduled.attended == [3, 3, 3]
    device = read_status(scheduled.folder)["devices"][HOSTILE]
    assert device["refused"] == len(scheduled.persistence.records.refusals) > 0
    assert all("exceeds 1 times the model's" in line for line in scheduled.persistence.records.refusals)
    assert "device-1 (node 11): update rejected: model = " in scheduled.events


def test_a_model_that_only_one_device_says_diverged_is_named_with_it_and_a_rollback_repairs_it(tmp_path: Path) -> None:
    """In exchange 1, nobody else uploads: what one device claims without sending anything decides."""
    scheduled = ScheduledFleet(tmp_path)

    def alone(envelope: Envelope) -> Envelope:
        return without_deltas(envelope) if envelope.values["exchange"] == 2 else envelope

    def claim(envelope: Envelope) -> Envelope:
        updated = envelope.arrays["report.updated"]
        return changed(alone(envelope), {"report.left_out": updated}) if envelope.values["exchange"] == 2 else envelope

    for client in range(3):
        tamper(scheduled, claim if client == HOSTILE else alone, client)
    scheduled.run()
    coordinator = scheduled.persistence.coordinator
    names, claimed = coordinator.fleet.catalogue.names, coordinator.quarantined
    assert claimed
    for model in claimed:
        said = f"{names[model]} is quarantined: its updates are not finite, says device-1 (node 11); it "
        assert said in scheduled.events
    give_command(scheduled.folder, Command("change", change={"rollback": {names[model]: 1 for model in claimed}}))
    scheduled.restart()
    scheduled.persistence.run_commands()
    assert scheduled.persistence.coordinator.quarantined == []
    scheduled.close()


def test_a_device_restored_from_an_old_backup_takes_part_again(tmp_path: Path) -> None:
    """Its store is as it was after exchange 0, with an answer that counted long ago."""
    scheduled = ScheduledFleet(tmp_path, rounds=12)
    device, backup = scheduled.fleet.devices[HOSTILE], tmp_path / "backup"

    def restore() -> None:
        scheduled.transport.disconnect(HOSTILE)
        device.close()
        shutil.rmtree(device.store)
        shutil.copytree(backup, device.store)
        scheduled.fleet.devices[HOSTILE] = Device(device.store, budget=device.budget, mail=False)
        scheduled.transport.connect(HOSTILE)

    scheduled.during(1, HOSTILE, lambda: shutil.copytree(device.store, backup))
    scheduled.clock.at(12.0, restore)
    scheduled.run()
    assert scheduled.attended[0] == scheduled.attended[2] == 6
    assert scheduled.attended[HOSTILE] >= 4
    assert scheduled.persistence.records.counts[HOSTILE].last_exchange == 5, "it takes part to the end"
    assert all("device-1" in line for line in scheduled.persistence.records.refusals)
    scheduled.close()


def test_two_programs_with_one_key_are_noticed_and_named(tmp_path: Path) -> None:
    """Copies of one store answer in turn, as two machines would whose node has one key."""
    scheduled = ScheduledFleet(tmp_path, rounds=16)
    first = scheduled.fleet.devices[HOSTILE]
    twin: list[Device] = []
    answer, turns = scheduled.transport.answer, list[Kind]()

    def by_turns(client: int, kind: Kind, content: bytes) -> bytes | None:
        if client != HOSTILE:
            return answer(client, kind, content)
        if not twin:
            shutil.copytree(first.store, tmp_path / "twin")
            twin.append(Device(tmp_path / "twin", budget=first.budget, mail=False))
        scheduled.fleet.devices[HOSTILE] = (first, twin[0])[len(turns) // 2 % 2]
        turns.append(kind)
        try:
            return answer(client, kind, content)
        except InvalidInput as error:
            # As a node answers: this one did not request the exchange that is granted.
            return encode(Envelope("refusal", {"reason": str(error)}))

    scheduled.transport.answer = by_turns  # type: ignore[method-assign]
    scheduled.run()
    named = [line for line in scheduled.persistence.records.refusals if "two programs use its key" in line]
    assert named
    assert all("device-1 (node 11)" in line for line in named)
    assert "two programs use its key in turn" in scheduled.events
    assert scheduled.attended[0] == scheduled.attended[2] == 8, "the others are not concerned"
    for device in (first, twin[0]):
        device.close()
    scheduled.fleet.devices = [scheduled.fleet.devices[0], scheduled.fleet.devices[2]]
    scheduled.close()


def test_replayed_and_reordered_messages_count_once(scheduled: ScheduledFleet) -> None:
    """Answers of the device: the first one again, then another device's, then its own, swapped."""
    seen: list[Reply] = []
    others: list[bytes] = []

    def replay(reply: Reply) -> Reply:
        seen.append(reply)
        # Answers to the welcome and to exchanges 0 and 1, then the one to exchange 0 again.
        return replace(reply, content=seen[1].content) if len(seen) == 3 else reply

    def listen(reply: Reply) -> Reply:
        others.append(reply.content or b"")
        return reply

    scheduled.transport.changes |= {HOSTILE: replay, 0: listen}
    scheduled.run()
    (line,) = scheduled.persistence.records.refusals
    assert "exchange 1: device-1 (node 11): message rejected: message = exchange 1: expected exchange 2" in line
    assert scheduled.attended == [3, 1, 3] or scheduled.attended == [3, 2, 3]
    coordinator = scheduled.persistence.coordinator
    for content in (*others, *(reply.content or b"" for reply in seen)):
        scheduled.persistence.receive(HOSTILE, decode(content))
    assert coordinator.opened is None
    assert len(scheduled.persistence.records.refusals) > 1, "another device's and old ones are refused"


LIES: dict[str, tuple[Callable[[Envelope], Envelope], str]] = {
    "an update of a model that was not granted": (
        lambda each: _moved_to(each, _not_held(each)),
        "this device was not granted its upload",
    ),
    "another version": (
        lambda each: changed(each, versions=dict.fromkeys(each.values["versions"], 99)),
        "version 99 instead of the granted",
    ),
    "models beyond its budget": (
        lambda each: changed(each, held_bytes=10**12),
        "1000000000000 bytes held",
    ),
    "models that do not exist": (
        lambda each: changed(each, {"request.holding": np.zeros((1, 600), dtype=np.int64)}),
        "holding int64[1, 600]: expected [1, 6]",
    ),
    "another device's number": (lambda each: changed(each, client=0), "this node is client 1"),
}


def _not_held(envelope: Envelope) -> int:
    """A model of the same shape as one that is updated; models of even and odd numbers differ in shape."""
    updated = set(np.flatnonzero(envelope.arrays["report.updated"][0]).tolist())
    return next(model for model in range(6) if model not in updated and any(model % 2 == each % 2 for each in updated))


def _moved_to(envelope: Envelope, model: int) -> Envelope:
    source = next(
        each for each in np.flatnonzero(envelope.arrays["report.updated"][0]).tolist() if each % 2 == model % 2
    )
    moved = {
        key.replace(f"delta.{source}.", f"delta.{model}.", 1): array
        for key, array in deltas_of(envelope).items()
        if key.startswith(f"delta.{source}.")
    }
    updated = envelope.arrays["report.updated"].copy()
    updated[0, model] = True
    weights, versions = (dict(envelope.values[name]) for name in ("weights", "versions"))
    weights[str(model)], versions[str(model)] = weights[str(source)], versions[str(source)]
    return changed(envelope, moved | {"report.updated": updated}, weights=weights, versions=versions)


@pytest.mark.parametrize("lie", LIES)
def test_a_device_that_lies_about_what_it_holds_is_refused(lie: str, scheduled: ScheduledFleet) -> None:
    change, message = LIES[lie]
    tamper(scheduled, change)
    scheduled.run()
    assert scheduled.attended[0] == scheduled.attended[2] == 3
    refusals = scheduled.persistence.records.refusals
    assert refusals
    assert any(message in line for line in refusals), refusals
    assert all("device-1" in line for line in refusals)


def test_losses_of_models_that_a_device_does_not_hold_do_not_count(tmp_path: Path) -> None:
    """A server that learns from losses ignores them, whatever they are."""
    found = []
    for lies in (False, True):
        fleet = ScheduledFleet(tmp_path / str(lies), policy="mab", settings={"learning_rate": 0.5})

        def lie(envelope: Envelope) -> Envelope:
            losses = envelope.arrays["report.losses"].copy()
            losses[np.isnan(losses)] = 1e30
            return changed(envelope, {"report.losses": losses})

        if lies:
            tamper(fleet, lie)
        fleet.run()
        assert fleet.persistence.records.refusals == []
        found.append(fleet.persistence.coordinator.state.policy)
        fleet.close()
    for name in vars(found[0]):
        assert np.array_equal(getattr(found[0], name), getattr(found[1], name)), name
