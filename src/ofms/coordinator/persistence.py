"""Persists the coordinator: checkpoints, history, status, event log.

state/                          the checkpoint
status.json                     read by people and `ofms deploy status`
events.log                      a line for each event
commands/                       freeze, thaw and rollback, until they are executed
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from ofms.coordinator.aggregation import Closed
from ofms.coordinator.changes import Requested, discard_models, take_models
from ofms.coordinator.checkpoint import MODELS, Beginning, Checkpoint, Moment, Records
from ofms.coordinator.commands import Command
from ofms.coordinator.coordinator import OpenExchange
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.events import log_event
from ofms.coordinator.exchange_lines import warning_lines
from ofms.coordinator.files import COMMANDS, EVENTS, STATE
from ofms.coordinator.persistent_events import PersistentEvents
from ofms.coordinator.programs import Programs
from ofms.coordinator.roster import write_roster
from ofms.coordinator.statistics import MOST_RECENT, Statistics, closed_exchange, model_use, read_statistics
from ofms.coordinator.status import write_status
from ofms.core.errors import InvalidInput
from ofms.core.events import Event
from ofms.storage.envelope import Envelope
from ofms.storage.files import remove_leftovers
from ofms.storage.locks import FolderLock
from ofms.storage.parsing import parse_json
from ofms.storage.private import require_private
from ofms.storage.schema import convert

_MOST_REFUSALS = 100


class PersistentCoordinator(PersistentEvents):
    """The coordinator of a deployment with its files; one per folder, except `read_only`, which writes nothing."""

    def __init__(self, deployment: Deployment, *, read_only: bool = False) -> None:
        self.deployment, self.folder = deployment, deployment.folder
        self._lock, self._complaints, self._programs = None, set[str](), Programs()
        # By device: why it rejected its last welcome. Nobody waits for its request until the fleet changes.
        self.declined: dict[int, str] = {}
        if not read_only:
            require_private(self.folder / STATE)
            require_private(self.folder / STATE / MODELS, within=self.folder / STATE)
            self._lock = FolderLock(self.folder / STATE)
            for each in (self.folder, self.folder / STATE, self.folder / STATE / MODELS):
                remove_leftovers(each)
        try:
            self._checkpoint = Checkpoint(self.folder)
            beginning = self._checkpoint.beginning()
            self.coordinator = deployment.coordinator(beginning)
            config, setup = deployment.config, self.coordinator.setup
            settings = msgspec.to_builtins(config.settings)
            identity = [setup.catalogue.revision, config.policy, settings, config.seed, config.rounds, config.interval]
            self._checkpoint.identity = identity + ([] if config.doubling is None else [config.doubling])
            self.beginning = beginning or Beginning(setup.budgets.tolist(), list(setup.members))
            self._replay()
            self.nodes: dict[int, int] = {}
            # Of the open exchange.
            self._statistics: dict[int, Statistics] = {}
            self._unsaved_messages = False
            records = self._checkpoint.read(self.coordinator)
            self.records = records or Records([], [Moment(0, self.coordinator.version.tolist())], [])
            if not read_only:
                write_roster(self.folder / STATE, deployment.roster)
                self.follow_roster()
                if deployment.complaint:
                    self.log_event(f"keeping the last valid devices: {deployment.complaint}", logging.WARNING)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the files."""
        if self._lock is not None:
            self._lock.close()

    def name(self, client: int) -> str:
        """A device's name in the log, with its node if it is connected."""
        node = self.nodes.get(client)
        name = self.deployment.roster.devices[client].name
        return name if node is None else f"{name} (node {node})"

    def log_event(self, line: str, level: int = logging.INFO) -> None:
        """Append a line to the event log."""
        log_event(self.folder / EVENTS, line, level)

    def refuse(self, client: int, reason: object) -> None:
        """Count and log a rejected message, or part of one."""
        self.records.counts[client].refused += 1
        line = f"exchange {self.coordinator.exchange}: {self.name(client)}: {reason}"
        self.records.refusals = [*self.records.refusals, line][-_MOST_REFUSALS:]
        self.log_event(line, logging.WARNING)

    def count(self, client: int, *, down: int = 0, up: int = 0) -> None:
        """Count the bytes of a message."""
        self.records.counts[client].bytes_down += down
        self.records.counts[client].bytes_up += up

    def receive(self, client: int, envelope: Envelope, requested: int | None = None) -> None:
        """Process a device's message, as `Coordinator.receive`; count and log rejections."""
        late = len(self.coordinator.stragglers.answers)
        # Answers to the open exchange are written when it closes.
        self._unsaved_messages |= self.coordinator.opened is None
        try:
            for reason in self.coordinator.receive(client, envelope, requested):
                self.refuse(client, reason)
        except InvalidInput as error:
            self.refuse(client, f"message rejected: {error}")
            return
        if len(self.coordinator.stragglers.answers) > late:
            self._count_late(client, self.coordinator.stragglers.answers[-1].exchange)
        if self._programs.returns(client, envelope.values.get("program")):
            self.refuse(client, "two programs use its key in turn, or its store is of a backup; `--revoke` ends both")
        self.records.counts[client].held_bytes = int(envelope.values["held_bytes"])
        self._count_statistics(client, envelope)

    def _count_late(self, client: int, exchange: int) -> None:
        counts, now = self.records.counts[client], self.coordinator.exchange
        counts.late, counts.last_exchange = counts.late + 1, max(exchange, counts.last_exchange)
        self._unsaved_messages = True
        self.log_event(f"exchange {now}: {self.name(client)} answered exchange {exchange}, {now - exchange} late")

    def save_messages(self) -> None:
        """Write the checkpoint if late answers or requests arrived since the last one, before devices get a grant.

        A server that is killed in the exchange opens it again for the same devices: those that it does not know would
        request it again, and learn from it twice.
        """
        if self._unsaved_messages:
            self.save()

    def _count_statistics(self, client: int, envelope: Envelope) -> None:
        """Count what a device reports about its predictions; whatever it is, its message is valid already."""
        dictionary, counts = self.coordinator.dictionary, self.records.counts[client]
        try:
            found = read_statistics(envelope, len(self.coordinator.fleet.catalogue), dictionary.task)
        except InvalidInput as error:
            self.refuse(client, error)
            return
        if found is not None:
            self._statistics[client] = found
            counts.samples, counts.score = counts.samples + found.samples, counts.score + found.score
            if found.samples:
                counts.last_samples, counts.last_score = found.samples, found.score

    def revoke(self, client: int) -> None:
        """Exclude a device, also from the open exchange."""
        self.deployment.roster.devices[client].revoked = True
        self.coordinator.exclude(client)
        self.log_event(f"{self.name(client)} is revoked")

    def close_exchange(self, awaited: Iterable[int] = ()) -> None:
        """Close the exchange, log it, and write the checkpoint; the answers of `awaited` devices may count later."""
        coordinator, records = self.coordinator, self.records
        opened, number = coordinator.opened, coordinator.exchange
        if opened is None:
            raise InvalidInput("exchange", number, "it is not open")
        for client in opened.grants:
            counts = records.counts[client]
            counts.exchanges += 1
            if client in opened.answers:
                counts.last_exchange = number
            else:
                counts.missed += 1
        closed, names = coordinator.close(awaited), coordinator.fleet.catalogue.names
        for line in warning_lines(closed, names, self.name, coordinator.staleness):
            self.log_event(f"exchange {number}: {line}", logging.WARNING)
        for client, count in closed.outliers.items():
            records.counts[client].outliers += count
        self._record_exchange(number, opened, closed)
        line = f"exchange {number}: {len(opened.answers)} of {len(opened.grants)} devices, {closed.updates} updates"
        missed = opened.grants.keys() - opened.answers.keys()
        later = missed & coordinator.stragglers.outstanding.keys()
        late_ones = [f"{self.name(client)} (exchange {exchange})" for client, exchange in closed.late]
        for what, which in (
            ("late", late_ones),
            ("no report yet from", [self.name(client) for client in sorted(later)]),
            ("no report from", [self.name(client) for client in sorted(missed - later)]),
        ):
            line += f"; {what}: {', '.join(which)}" if which else ""
        self.log_event(line)
        records.history.append(Moment(coordinator.exchange, coordinator.version.tolist()))
        # The initial dictionary is always kept.
        records.history = records.history[:1] + records.history[1:][-self.deployment.config.keep :]
        self.save()

    def _record_exchange(self, number: int, opened: OpenExchange, result: Closed) -> None:
        """Keep what the status shows of an exchange."""
        records, found, self._statistics = self.records, self._statistics, {}
        records.use = model_use(
            self.coordinator.fleet.catalogue.names,
            {client: grants.held for client, grants in opened.grants.items()},
            found,
        )
        closed = closed_exchange(
            number,
            granted=len(opened.grants),
            answered=len(opened.answers),
            updates=result.updates,
            late=len(result.late),
            counts=records.counts,
            found=found.values(),
        )
        records.recent = [*records.recent, closed][-MOST_RECENT:]

    def run_commands(self) -> bool:
        """Execute the commands given since the last exchange; return whether the fleet changed."""
        before = self.coordinator.setup
        self.follow_roster()
        for path in sorted((self.folder / COMMANDS).glob("*.json")):
            # A server that was killed after the checkpoint and before it removed the file has executed it. Not those
            # with smaller names: clocks are set back.
            if path.name != self.records.last_command:
                self.records.last_command = path.name
                try:
                    self._run_command(parse_json(path.read_bytes(), Command))
                    self.save()
                except (ValueError, OSError) as error:
                    self.log_event(f"command {path.name} not executed: {error}", logging.WARNING)
            path.unlink(missing_ok=True)
        restart = self.coordinator.restart_due(self.coordinator.exchange)
        if restart is not None:
            self.apply(restart)
        return self.coordinator.setup is not before

    def save(self) -> None:
        """Write checkpoint and status; not during an exchange, which is opened again after a restart."""
        self._unsaved_messages = False
        self._checkpoint.write(self.coordinator, self.records, self.beginning)
        self.write_status()

    def write_status(self) -> None:
        """Write `status.json`."""
        write_status(self.folder, self.coordinator, self.deployment.roster, self.nodes, self.records, self)

    def write_dictionary(self, folder: Path) -> None:
        """Write the current dictionary, for use elsewhere."""
        coordinator = self.coordinator
        whole = coordinator.dictionary.with_tensors(coordinator.tensors)
        replace(whole, models=tuple(whole.models[slot] for slot in coordinator.setup.places)).write(folder)

    def _run_command(self, command: Command) -> None:
        coordinator = self.coordinator
        if command.do in ("freeze", "thaw"):
            if command.do == "freeze":
                coordinator.frozen = True
            else:
                coordinator.thaw()
            now = "frozen: models are selected, not fine-tuned" if coordinator.frozen else "thawed: fine-tuning resumes"
            self.log_event(f"exchange {coordinator.exchange}: dictionary {now}")
        elif command.do == "rollback":
            changed = self._roll_back(command.to)
            back = f"rolled back to the dictionary before exchange {command.to}"
            self.log_event(f"exchange {coordinator.exchange}: {back}; {changed} models changed")
        elif command.do == "change":
            requested = convert(command.change or {}, Requested)
            event = requested.event(coordinator, self.deployment.roster)
            take_models(self.folder, requested.kept, {name for each in self.beginning.events for name in each.add})
            try:
                self.apply(event)
            except InvalidInput:
                discard_models(self.folder, requested.kept)
                raise
        else:
            raise InvalidInput("command", command.do, "use freeze, thaw, rollback or change")

    def earlier_models(self, event: Event) -> dict[int, bytes]:
        names, found = self.coordinator.fleet.catalogue.names, {}
        for name, to in event.rollback.items():
            moment = self._moment(to)
            if name in names:
                model = names.index(name)
                # The first version is the dictionary's, also of a model that was added since.
                known = to == 0 or model < len(moment.versions)
                if not known:
                    raise InvalidInput("rollback", to, f"{name} was added since; use 0 for its first version")
                version = moment.versions[model] if to else 0
                found[model] = self._checkpoint.model(self.coordinator, model, version)
        return found

    def _moment(self, to: int | None) -> Moment:
        moment = next((each for each in self.records.history if each.exchange == to), None)
        if moment is None:
            raise InvalidInput("rollback", to, f"use one of {[each.exchange for each in self.records.history]}")
        return moment

    def _roll_back(self, to: int | None) -> int:
        """Roll back to the dictionary before an exchange; return the number of models changed."""
        coordinator, history, moment = self.coordinator, self.records.history, self._moment(to)
        # Models that were added since have no earlier version.
        versions = zip(moment.versions, coordinator.version.tolist(), strict=False)
        changed = [model for model, (then, now) in enumerate(versions) if then != now]
        contents = {model: self._checkpoint.model(coordinator, model, moment.versions[model]) for model in changed}
        coordinator.roll_back(contents)
        history[-1] = Moment(coordinator.exchange, coordinator.version.tolist())
        return len(changed)
