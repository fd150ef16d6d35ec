"""A deployment on one machine: a SuperLink, and three devices with digits that connect to it with TLS and keys.

While it runs, a fourth device joins, a model is added, and another one is retired.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from tqdm import tqdm

from ofms.coordinator.changes import Requested
from ofms.coordinator.deployment import Deployment, ServerConfig, read_config, write_config
from ofms.coordinator.files import APP, DEVICE_FOLDERS, FLOWER
from ofms.coordinator.keys import add_device, make_deployment
from ofms.coordinator.operation import request_change
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.status import read_status
from ofms.core.errors import InvalidInput, ProcessEnded
from ofms.core.events import Event
from ofms.core.typing import Integers
from ofms.data import load_dataset
from ofms.data.stream import Stream
from ofms.device.device import Device
from ofms.drawing.tables import format_table
from ofms.flower.app import write_app
from ofms.flower.demo_device import Player
from ofms.flower.processes import Process, free_port
from ofms.flower.supervisor import Supervisor
from ofms.models.dictionary import Dictionary
from ofms.runs.config import RunConfig
from ofms.runs.formatting import comparison_table
from ofms.runs.result import Result
from ofms.runs.units import human_bytes, parse_budgets
from ofms.simulator.api import simulate
from ofms.simulator.experiments import prepare

DEVICES, EXCHANGES, SAMPLES = 4, 7, 20
_POLL_SECONDS = 0.2


def run_demo(echo: Callable[[str], None] = print) -> int:
    """Run the demo, print its results beside the simulator's, and clean up; 0 if both agree."""
    size: dict[str, Any] = {"clients": DEVICES, "rounds": EXCHANGES * SAMPLES, "interval": SAMPLES}
    config, dictionary = prepare("digits", given=size)
    stream = load_dataset("digits").stream(clients=config.clients, rounds=config.rounds, seed=config.seed)
    folder = Path(tempfile.mkdtemp(prefix="ofms-demo-"))
    # The last device is there before the SuperLink knows its key, and tries again.
    logging.getLogger("ofms.device").setLevel(logging.ERROR)
    try:
        players, status, events = deploy(folder, config, dictionary, stream)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    expected = simulate("digits", models=dictionary, seed=config.seed, events=_tables(events, players[-1]), **size)
    for line in expected.figures["events"][:-1]:
        echo(line)
    return show(players, status, expected, echo)


def _tables(events: list[Event], newcomer: Player) -> list[dict[str, Any]]:
    """The events for a simulation, in which a client takes part as soon as it has joined."""
    if not newcomer.answers:
        raise ProcessEnded(f"{newcomer.name} did not take part before the last exchange")
    tables = [
        {
            "exchange": newcomer.first if event.join else event.exchange,
            "join": [*event.join],
            "add": event.add,
            "retire": event.retire,
        }
        for event in events
    ]
    return sorted(tables, key=lambda table: table["exchange"])


def deploy(
    folder: Path, config: RunConfig, dictionary: Dictionary, stream: Stream
) -> tuple[list[Player], dict[str, Any], list[Event]]:
    """Run a deployment from its keys to its last exchange; return the devices' programs, the last status, and events.

    The last device joins after the first exchange; then the last model is added, and the first one retired.
    """
    budgets = parse_budgets(config.budget, largest=int(dictionary.catalogue().storage.max()), clients=config.clients)
    early, late = replace(dictionary, models=dictionary.models[:-1]), replace(dictionary, models=dictionary.models[-1:])
    late.write(folder / "late")
    fleet = write_deployment(folder / "fleet", config, early, budgets[:-1])
    with ExitStack() as stack:
        progress = stack.enter_context(_Progress("starting a SuperLink with TLS"))
        server = stack.enter_context(Supervisor(fleet, echo=lambda line: None))
        progress.show_stage(f"starting {config.clients - 1} devices, each with its key")
        players: list[Player] = []

        def start(client: int) -> None:
            store, own = folder / f"store-{client}", device_folder(fleet, client)
            device = stack.enter_context(Device(store, budget=int(budgets[client]), connect=own))
            players.append(Player(device, stream.x[client], stream.y[client], config.interval))
            stack.callback(players[-1].stopping.set)
            players[-1].start()

        for client in range(config.clients - 1):
            start(client)
        progress.show_stage("devices are joining")
        while (how := server.poll()) is None:
            progress.show(_exchange(fleet), [right for player in players for right in player.right])
            if len(players) < config.clients and _exchange(fleet) >= 1:
                newest = len(players)
                progress.show_stage(f"adding device-{newest} and a model, retiring another")
                add_device(fleet, f"device-{newest}", f"{budgets[newest]}B", read_config(fleet).address)
                request_change(fleet, Requested(retire=[dictionary.models[0].name]), models=folder / "late")
                start(newest)
            time.sleep(_POLL_SECONDS)
        if how != "completed":
            raise ProcessEnded(f"the server app ended: {how}")
        progress.show(_exchange(fleet), [right for player in players for right in player.right])
        progress.show_stage("stopping all processes")
    events = PersistentCoordinator(Deployment(fleet), read_only=True).beginning.events
    return players, read_status(fleet), events


class _Progress:
    """A bar on a terminal, a line per exchange elsewhere."""

    def __init__(self, first: str) -> None:
        form = "{desc} {bar} {n_fmt}/{total_fmt} exchanges [{elapsed}<{remaining}]"
        self._bar = tqdm(total=EXCHANGES, bar_format=form, disable=None)
        self.show_stage(first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def show_stage(self, text: str) -> None:
        if self._bar.disable:
            print(text, file=sys.stderr)
        else:
            self._bar.set_description_str(text)

    def show(self, exchange: int, right: list[bool]) -> None:
        if right and exchange > self._bar.n:
            self.show_stage(f"accuracy so far {100 * np.mean(right):.1f} %")
        self._bar.n = exchange
        self._bar.refresh()


def device_folder(fleet: Path, client: int) -> Path:
    """The folder of a device, with its key."""
    return fleet / DEVICE_FOLDERS / f"device-{client}"


def start_node(fleet: Path, client: int, store: Path) -> Process:
    """`ofms deploy device`, a SuperNode, for a device of a deployment on this machine."""
    store.mkdir(exist_ok=True)
    own = device_folder(fleet, client)
    command = [sys.executable, "-m", "ofms", "deploy", "device", str(own), "--store", str(store)]
    return Process(command, store / FLOWER, store / "node.log")


def write_deployment(
    folder: Path, config: RunConfig, dictionary: Dictionary, budgets: Integers, **changes: Any
) -> Path:
    """Write a deployment on loopback that is equivalent to a simulated run."""
    dictionary.write(folder / "models")
    address = f"127.0.0.1:{free_port()}"
    make_deployment(folder, address, folder / "models", policy=config.policy, rounds=config.rounds)
    write_app(folder / APP)
    written = ServerConfig(
        address=address,
        models="models",
        rounds=config.rounds,
        policy=config.policy,
        bandwidth=config.bandwidth,
        interval=config.interval,
        seed=config.seed,
        settings=config.settings,
    )
    write_config(folder, msgspec.structs.replace(written, **changes))
    for client, budget in enumerate(budgets.tolist()):
        add_device(folder, f"device-{client}", f"{budget}B", address)
    return folder


def show(players: list[Player], status: dict[str, Any], expected: Result, echo: Callable[[str], None]) -> int:
    """Print the results; return 0 if devices chose and held the same models as simulated clients."""
    score = np.array([np.mean(player.right) for player in players])
    deployed = replace(expected, clients={"score": score}, figures=expected.figures | {"regret": None, "bound": None})
    echo(comparison_table([("deployed on Flower", deployed), ("simulated", expected)], expected))
    weights, held = expected.history["prediction_weights"], expected.history["held"]
    same = sum(
        predicting == np.flatnonzero(weights[exchange, client]).tolist()
        and holding == np.flatnonzero(held[exchange, client]).tolist()
        for client, player in enumerate(players)
        for exchange, (predicting, holding) in enumerate(
            zip(player.predicting, player.holding, strict=True), player.first
        )
    )
    granted = sum(len(player.predicting) for player in players)
    most, budget = max(player.most_held for player in players), int(expected.clients["budget"].max())
    rows = [
        ["same choices and held models as simulated", f"{same} of {granted}"],
        ["down, all devices", human_bytes(status["bytes_down"])],
        ["up, all devices", human_bytes(status["bytes_up"])],
        ["most held by a device", f"{human_bytes(most)} of {human_bytes(budget)}"],
        ["rejected", str(len(status["refusals"]))],
    ]
    echo("\n" + format_table(["over the network", ""], rows))
    return int(same != granted or len(players) != DEVICES)


def _exchange(fleet: Path) -> int:
    try:
        return int(read_status(fleet)["exchange"])
    except InvalidInput:
        return 0
