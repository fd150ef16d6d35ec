"""Flower's ServerApp: it opens exchanges, waits for devices until a deadline, and lets the keeper do the rest."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import httpx
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from ofms.coordinator.deployment import Deployment, read_roster
from ofms.coordinator.keys import pem_of
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.core.errors import InvalidInput
from ofms.flower.records import from_record, record_size, to_record
from ofms.storage.envelope import Envelope

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_ROSTERS = 2.0
# A device that answers at all answers a welcome at once.
_JOIN_SECONDS = 5.0
_USUAL_TRAVEL = 10.0
_SECONDS_BEFORE_AGAIN = 5.0

_JOIN, _EXCHANGE = "query.join", "train.exchange"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Go on where the deployment's checkpoint says."""
    deployment = Deployment(str(context.run_config["deployment"]))
    keeper = _open(deployment)
    try:
        Server(grid, keeper).run()
    except Exception as error:
        keeper.tell(f"the server stops: {type(error).__name__}: {error}")
        raise
    finally:
        keeper.close()


def _open(deployment: Deployment) -> PersistentCoordinator:
    """The keeper, once nobody else has it: one that was killed lets go of it soon."""
    until = time.monotonic() + deployment.config.travel
    while True:
        try:
            return PersistentCoordinator(deployment)
        except InvalidInput as error:
            if error.field != "folder" or time.monotonic() >= until:
                raise
            time.sleep(1.0)


@dataclass(frozen=True)
class Sent:
    """A message whose reply has not come yet."""

    client: int
    node: int
    kind: str
    letter: Envelope
    sent: float
    until: float


class Server:
    """Moves letters between a keeper and the nodes of a grid."""

    def __init__(self, grid: Grid, keeper: PersistentCoordinator) -> None:
        self.grid, self.keeper, self.coordinator = grid, keeper, keeper.coordinator
        self.config = keeper.deployment.config
        self.waiting: dict[str, Sent] = {}
        # Grants whose node went away with them; they go out again when it is back in time.
        self.lost: list[Sent] = []
        devices = keeper.deployment.roster.devices
        self._clients = {pem_of(device.key).strip(): client for client, device in enumerate(devices)}
        self._looked = 0.0
        self._complaint = ""
        self._invited: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    def run(self) -> None:
        """All exchanges that are left."""
        keeper, coordinator = self.keeper, self.coordinator
        keeper.tell(
            f"the server goes on with exchange {coordinator.exchange}" if coordinator.exchange else "the server begins"
        )
        keeper.run_commands()
        # From here on the deployment has a name that devices know it by.
        keeper.save()
        if not coordinator.finished:
            self._gather()
            keeper.save()
        while not coordinator.finished:
            keeper.run_commands()
            self._refresh_nodes()
            present = set(keeper.nodes) & coordinator.requests.keys()
            if not present:
                self._invite()
                self._wait(_SECONDS_BETWEEN_LOOKS)
                continue
            self._exchange(present)
        keeper.tell("the server has reached its horizon")
        keeper.save()

    def _gather(self) -> None:
        """Wait until every device is here and asked for the exchange, or until the deadline."""
        until = time.monotonic() + self.config.deadline
        while time.monotonic() < until:
            self._refresh_nodes()
            devices = self.keeper.deployment.roster.devices
            everybody = {client for client, device in enumerate(devices) if not device.revoked}
            if everybody <= set(self.keeper.nodes) & self.coordinator.requests.keys():
                return
            self._invite()
            self._wait(_SECONDS_BETWEEN_LOOKS)

    def _exchange(self, present: set[int]) -> None:
        keeper = self.keeper
        for client, letter in keeper.open(present).items():
            self._send(client, _EXCHANGE, letter, self.config.deadline)
        self._invite()
        until = time.monotonic() + self.config.deadline
        while self._is_worth_waiting(until):
            self._wait(_SECONDS_BETWEEN_LOOKS)
            self._send_again(until)
            self._invite()
        self.lost = []
        keeper.close_exchange()

    def _is_worth_waiting(self, until: float) -> bool:
        """While answers may still come: to grants, to those that go out again, and to welcomes that just went out."""
        now = time.monotonic()
        if any(sent.kind == _EXCHANGE for sent in self.waiting.values()):
            return now < until + self.config.travel
        welcomed = [sent for sent in self.waiting.values() if sent.sent + _JOIN_SECONDS + _USUAL_TRAVEL > now]
        return (bool(self.lost) or bool(welcomed)) and now < until

    def _invite(self) -> None:
        """Welcome the devices that are here, in no exchange, and have not asked for the coming one."""
        opened = self.coordinator.opened.grants if self.coordinator.opened is not None else {}
        now = time.monotonic()
        busy = {sent.client for sent in self.waiting.values()}
        busy |= {client for client, again in self._not_before.items() if now < again}
        for client in sorted(self.keeper.nodes.keys() - busy - opened.keys() - self.coordinator.requests.keys()):
            # Once an exchange: one whose program does not run would hold up the others.
            if self.coordinator.opened is None or self._invited.get(client) != self.coordinator.coming:
                self._invited[client] = self.coordinator.coming
                self._send(client, _JOIN, self.keeper.welcome(client), _JOIN_SECONDS)

    def _send(self, client: int, kind: str, letter: Envelope, wait: float) -> None:
        node = self.keeper.nodes[client]
        letter = Envelope(letter.kind, {**letter.values, "wait": wait}, letter.arrays)
        lifetime = wait + self.config.travel
        content = to_record(letter)
        message = Message(content, node, kind, ttl=lifetime, group_id=str(self.coordinator.exchange))
        now = time.monotonic()
        sent = Sent(client, node, kind, letter, now, now + lifetime)
        # Flower gives no number, or None, for what its SuperLink did not take: a node that just went away, say.
        numbers = [number for number in self.grid.push_messages([message]) if number]
        if not numbers:
            self._lose(sent, "did not get its letter: the SuperLink does not take it")
        for number in numbers:
            self.waiting[number] = sent
            self.keeper.count(client, down=record_size(content))

    def _wait(self, seconds: float) -> None:
        """Take the replies that came, or let some time pass."""
        replies = self._pull()
        for reply in replies:
            sent = self.waiting.pop(reply.metadata.reply_to_message_id, None)
            if sent is not None:
                self._take(sent, reply)
        now = time.monotonic()
        for number in [number for number, sent in self.waiting.items() if sent.until <= now]:
            del self.waiting[number]
        self._refresh_nodes()
        if not replies:
            time.sleep(seconds)

    def _pull(self) -> list[Message]:
        """The replies that came; one that Flower cannot read is its own node's trouble and nobody else's."""
        if not self.waiting:
            return []
        try:
            return list(self.grid.pull_messages(list(self.waiting)))
        except httpx.HTTPError:
            raise
        except Exception:
            replies: list[Message] = []
            for number, sent in list(self.waiting.items()):
                try:
                    replies += self.grid.pull_messages([number])
                except httpx.HTTPError:
                    raise
                except Exception as error:
                    del self.waiting[number]
                    self.keeper.refuse(sent.client, f"letter refused: it cannot be read ({type(error).__name__})")
            return replies

    def _take(self, sent: Sent, reply: Message) -> None:
        keeper = self.keeper
        if reply.has_error():
            self._lose(sent, f"did not answer: {reply.error.reason}")
            return
        # Nothing that a device sends may end the run.
        try:
            self._read(sent, reply)
        except InvalidInput as error:
            keeper.refuse(sent.client, f"letter refused: {error}")
        except Exception as error:
            keeper.refuse(sent.client, f"letter refused: {type(error).__name__}: {error}")

    def _lose(self, sent: Sent, reason: str) -> None:
        """A letter that got no answer; a grant of this exchange is kept, to go out again after a while."""
        self.keeper.tell(f"exchange {self.coordinator.exchange}: {self.keeper.name(sent.client)} {reason}")
        again = self._not_before[sent.client] = time.monotonic() + _SECONDS_BEFORE_AGAIN
        if sent.kind == _EXCHANGE and sent.letter.values["exchange"] == self.coordinator.exchange:
            self.lost.append(replace(sent, until=again))

    def _read(self, sent: Sent, reply: Message) -> None:
        keeper, asked = self.keeper, int(sent.letter.values["exchange"]) + (sent.kind == _EXCHANGE)
        if keeper.deployment.roster.devices[sent.client].revoked:
            return
        if reply.metadata.src_node_id != sent.node:
            raise InvalidInput("node", reply.metadata.src_node_id, "it answers for another one")
        keeper.count(sent.client, up=record_size(reply.content))
        letter = from_record(reply.content)
        if letter.kind == "refusal":
            reason = str(letter.values.get("reason"))
            keeper.tell(
                f"exchange {self.coordinator.exchange}: {keeper.name(sent.client)} did not take its letter: {reason}"
            )
        elif letter.kind != "nothing" and asked != self.coordinator.coming:
            keeper.tell(
                f"exchange {self.coordinator.exchange}: {keeper.name(sent.client)} came too late for {asked - 1}"
            )
        elif letter.kind != "nothing":
            keeper.receive(sent.client, letter)

    def _send_again(self, until: float) -> None:
        """Grants that got lost with their node go out again once it is back."""
        now, devices = time.monotonic(), self.keeper.deployment.roster.devices
        self.lost = [sent for sent in self.lost if not devices[sent.client].revoked]
        for sent in [sent for sent in self.lost if sent.until <= now and sent.client in self.keeper.nodes]:
            self.lost.remove(sent)
            self._send(sent.client, sent.kind, sent.letter, max(1.0, until - now))

    def _refresh_nodes(self) -> None:
        """Which devices are here, by their keys; those revoked since are not."""
        now = time.monotonic()
        if now - self._looked < _SECONDS_BETWEEN_ROSTERS:
            return
        self._looked = now
        self._read_revocations()
        devices, known = self.keeper.deployment.roster.devices, self.keeper.nodes
        found = {}
        for node in self.grid.get_nodes():
            client = self._clients.get(node.public_key.strip())
            if client is not None and not devices[client].revoked:
                found[client] = int(node.node_id)
        if found == known:
            return
        for client in sorted(known.keys() - found.keys()):
            self.keeper.tell(f"{self.keeper.name(client)} is away")
        self.keeper.nodes = found
        for client in sorted(found.keys() - known.keys()):
            self.keeper.tell(f"{self.keeper.name(client)} is here")
        self.keeper.write_status()

    def _read_revocations(self) -> None:
        devices = self.keeper.deployment.roster.devices
        try:
            entries = read_roster(self.keeper.folder).devices[: len(devices)]
        except InvalidInput as error:
            # Somebody is at it; what was read before holds.
            if str(error) != self._complaint:
                self._complaint = str(error)
                self.keeper.tell(f"the devices are as they were: {error}")
            return
        for client, entry in enumerate(entries):
            if entry.revoked and not devices[client].revoked:
                self.keeper.revoke(client)
                self.waiting = {number: sent for number, sent in self.waiting.items() if sent.client != client}
