"""A model of a running fleet goes back to an earlier version: by an event, over kills, as in the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ofms
from ofms.coordinator.changes import Requested
from ofms.coordinator.files import COMMANDS, EVENTS
from ofms.coordinator.operation import request_change
from ofms.coordinator.status import read_status
from ofms.simulator.phases import Phases
from ofms.simulator.simulation import make_simulation
from tests.changing import deployed_setup
from tests.coordinator.changing_fleet import ChangingFleet
from tests.policy_settings import SETTINGS


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[ChangingFleet]:
    made = ChangingFleet(tmp_path, "ofms-ft")
    yield made
    made.close()


@pytest.mark.parametrize("name", ["late-hedge", "ofms-ft"])
def test_devices_choose_as_in_the_simulator(name: str, tmp_path: Path) -> None:
    fleet = ChangingFleet(tmp_path, name)
    fleet.run(4)
    request_change(fleet.folder, Requested(rollback={"net1": 0, "net2": 3}, aggregation="median"))
    fleet.run(2, kill=True)
    request_change(fleet.folder, Requested(rollback={"net0": 0}))
    fleet.run(2)
    events = fleet.persistence.beginning.events
    assert [event.exchange for event in events] == [4, 6]
    assert fleet.persistence.records.refusals == []
    tensors = fleet.persistence.coordinator.tensors
    fleet.close()
    whole = ofms.Dictionary("regression", fleet.whole.models[:5])
    three = fleet.stream.part(3, 20)
    setup = deployed_setup(name, whole, three, fleet.budgets[:3], events, SETTINGS[name], interval=2)
    phases = Phases.of(setup, events)
    simulation = make_simulation(phases.first.built, phases.first.fleet, whole, three, seed=5, phases=phases)
    for exchange in simulation.exchanges():
        for client, (holding, weights) in fleet.seen[exchange.index].items():
            where = (name, exchange.index, client)
            assert np.flatnonzero(exchange.plan.held[client]).tolist() == holding, where
            assert exchange.plan.prediction_weights[client] == pytest.approx(weights, abs=1e-4), where
        if exchange.index == len(fleet.seen) - 1:
            break
    for mine, theirs in zip(tensors, simulation.parameters(), strict=True):
        assert all(mine[key] == pytest.approx(theirs[key], abs=1e-4) for key in mine)


def test_the_version_of_then_is_back_and_survives_a_kill_at_any_moment(changing: ChangingFleet) -> None:
    changing.run(4)
    coordinator = changing.persistence.coordinator
    then = {name: tensor.clone() for name, tensor in coordinator.tensors[2].items()}
    changing.run(2)
    before = coordinator.version.copy()
    assert any(not torch.equal(coordinator.tensors[2][name], then[name]) for name in then)
    request_change(changing.folder, Requested(rollback={"net1": 0}))
    request_change(changing.folder, Requested(rollback={"net2": 4}))
    changing.restart()  # Killed before the commands were executed.
    assert changing.persistence.run_commands()
    for _ in range(2):
        again = changing.persistence.coordinator
        assert (again.version - before).tolist() == [0, 1, 1, 0, 0], "new versions, so that devices get them"
        for name, tensor in then.items():
            assert torch.equal(again.tensors[2][name], tensor)
        for name, tensor in changing.dictionary.models[1].tensors.items():
            assert torch.equal(again.tensors[1][name], tensor)
        changing.restart()  # Killed after them.
    changing.run(2, kill=True)
    assert changing.persistence.records.refusals == []
    log = (changing.folder / EVENTS).read_text()
    assert "exchange 6: model net1 goes back to its first version" in log
    assert "exchange 6: model net2 goes back to its version before exchange 4" in log
    # The version of exchange 6 is the one that it went back to.
    request_change(changing.folder, Requested(rollback={"net2": 6}))
    assert changing.persistence.run_commands()
    for name, tensor in then.items():
        assert torch.equal(changing.persistence.coordinator.tensors[2][name], tensor)


def test_a_quarantined_model_that_goes_back_is_fine_tuned_again(changing: ChangingFleet) -> None:
    changing.run(2)
    coordinator = changing.persistence.coordinator
    coordinator.state.quarantined[1] = True
    request_change(changing.folder, Requested(rollback={"net1": 0}))
    changing.persistence.run_commands()
    assert changing.persistence.coordinator.quarantined == []


@pytest.mark.parametrize(
    ("rollback", "message"),
    [
        ({"netX": 0}, "rollback = netX: no such model is in use; name one of net0, net1"),
        ({"net1": 9}, "rollback = 9: use one of [0, 1, 2]"),
    ],
)
def test_a_bad_rollback_is_refused_before_anything_is_written(
    rollback: dict[str, int], message: str, changing: ChangingFleet
) -> None:
    changing.run(2)
    with pytest.raises(ofms.InvalidInput) as caught:
        request_change(changing.folder, Requested(rollback=rollback))
    assert message in str(caught.value)
    assert not (changing.folder / COMMANDS).exists()


def test_a_model_that_was_added_goes_back_to_its_own_first_version(changing: ChangingFleet) -> None:
    changing.run(2)
    request_change(changing.folder, Requested(), models=changing.further)
    changing.run(3)
    with pytest.raises(ofms.InvalidInput, match="net5 was added since; use 0 for its first version"):
        request_change(changing.folder, Requested(rollback={"net5": 1}))
    request_change(changing.folder, Requested(rollback={"net5": 0}))
    assert changing.persistence.run_commands()
    tensors = changing.persistence.coordinator.tensors[5]
    assert all(torch.equal(tensors[name], tensor) for name, tensor in changing.whole.models[5].tensors.items())
    changing.run(1)
    assert read_status(changing.folder)["changes"] == 2
