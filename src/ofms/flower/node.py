"""A device's connection to its server, in its own program: no SuperNode, SuperExec or client app. Imports no PyTorch.

Two threads: one pulls messages, passes them to the device and pushes its answers; the other sends heartbeats, also
while the device fine-tunes. A message is confirmed only after the device has written its effect to the store, and a
duplicate changes nothing. What the node must answer is in a file of the store, so a program that was killed answers
after its restart.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from ofms.coordinator.files import AUTHORITY, DEVICE_KEY, read_device
from ofms.core.errors import InvalidInput
from ofms.device.mailbox import Mailbox, largest_message
from ofms.flower.asked import read_asked
from ofms.flower.fleet_api import FleetApi, Gone
from ofms.flower.http import httpx, silence_requests
from ofms.flower.node_file import NodeFile, Question
from ofms.flower.objects import Transfer, make_reply
from ofms.flower.opaque import may_be_alone, read_record
from ofms.flower.polling import Polling
from ofms.storage.envelope import Envelope, encode

if TYPE_CHECKING:
    from ofms.device.device import Device

# As a SuperNode: the SuperLink counts a node that lost power as connected for two heartbeats.
_HEARTBEAT_SECONDS, _BEATS_PER_HEARTBEAT = 30.0, 1.25
_UPLOAD_POLL_SECONDS, _MOST_UPLOAD_SECONDS = 0.1, 180.0
_RETRY_SECONDS, _LATEST_RETRY = 1.0, 10.0
# Long enough for the server to notice.
_ABSENCE_SECONDS = 3.0
_log = logging.getLogger("ofms.device")


@dataclass
class _Arrived:
    """A message that the device has not processed."""

    transfer: Transfer
    content: bytes | memoryview
    question: Question


class Node:
    """Connects a device with the key and the server of its folder, from `start` to `stop`."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._server = read_device(folder).server
        self._largest = largest_message(budget)
        try:
            self._authority = (folder / AUTHORITY).read_bytes()
            key = load_ssh_private_key((folder / DEVICE_KEY).read_bytes(), None)
        except (OSError, ValueError) as error:
            raise InvalidInput("connect", folder, f"its key cannot be read ({error})") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInput("connect", folder, "its key is of another kind; `ofms deploy keys` creates one")
        self._key = key
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._arrived: _Arrived | None = None
        self._refusal: Transfer | None = None
        self._reply: Transfer | None = None
        self._busy = False
        self._until = 0.0
        self._polling = Polling()
        self._next_poll = 0.0
        self._complaint = self._rejected = ""

    def start(self, device: Device) -> None:
        self._device = device
        self._api = FleetApi(self._server, self._authority, self._key, self._largest)
        Mailbox(device.store).clear()
        self._file = NodeFile(device.store)
        if self._file.question is not None:
            self._until = time.monotonic() + self._file.question.wait
        for target, name in ((self._work, "node"), (self._beat, "heartbeat")):
            self._threads.append(threading.Thread(target=target, name=f"{name} of {device.store}", daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads; the SuperLink is told that the node disconnects."""
        self._stopping.set()
        self._device.notify()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _beat(self) -> None:
        silence_requests()
        while not self._stopping.wait(_HEARTBEAT_SECONDS / _BEATS_PER_HEARTBEAT):
            # The other thread reports what is wrong with the connection.
            with contextlib.suppress(httpx.HTTPError, InvalidInput, ValueError):
                if self._api.node:
                    self._api.heartbeat(_HEARTBEAT_SECONDS)

    def _work(self) -> None:
        silence_requests()
        failures = 0
        while not self._stopping.is_set():
            try:
                self._step()
                failures = 0
            except Exception as error:
                # For example a network or a disk that is not available: predictions continue, and so does this thread.
                self._complain(error)
                self._stopping.wait(min(_LATEST_RETRY, _RETRY_SECONDS * 2**failures))
                failures += 1
        if self._api.node:
            with contextlib.suppress(httpx.HTTPError, InvalidInput, ValueError):
                self._api.deactivate(self._api.node)
                self._file.keep(node=0)
        self._api.close()

    def _step(self) -> None:
        if not self._api.node:
            self._connect()
        try:
            self._process()
            self._answer()
        finally:
            # Also if the device cannot answer: another message may change that.
            if time.monotonic() >= self._next_poll:
                self._pull()
        self._process()
        self._answer()
        if self._busy:
            # What was sent or received is no longer in memory.
            self._busy = False
            self._device.settle()
        seconds = max(0.0, self._next_poll - time.monotonic())
        self._device.wait_for(lambda: self._stopping.is_set() or self._device.wants_exchange, seconds)

    def _connect(self) -> None:
        """Activate the node. An earlier connection of this store ended without notice: only one process opens it."""
        if self._file.node:
            with contextlib.suppress(httpx.HTTPStatusError):
                self._api.deactivate(self._file.node)
            if self._file.question is None or self._file.uploading:
                # A message may have been lost on its way to the store, or an answer on its way to the SuperLink: the
                # server sends a message again to a node that was absent.
                self._stopping.wait(_ABSENCE_SECONDS)
                self._file.keep(question=None, uploading=False)
        self._api.activate(_HEARTBEAT_SECONDS)
        self._file.keep(node=self._api.node)
        self._complaint = ""
        _log.info("connected to %s", self._server)

    def _pull(self) -> None:
        began = time.monotonic()
        transfer = self._api.pull()
        if transfer is None:
            self._schedule(self._polling.after_nothing(time.monotonic() - began, asked=self._file.question is not None))
            return
        self._schedule(0.0)
        try:
            record = self._wait_for_record(transfer)
            content, wait = read_record(record)
            asked = read_asked(transfer.metadata.message_type, content)
        except InvalidInput as error:
            self._refuse(transfer.message, error)
        except Gone as error:
            _log.info("a message was withdrawn: %s", error)
        else:
            self._arrived = _Arrived(transfer, content, Question(transfer.message, asked, wait, may_be_alone(record)))

    def _wait_for_record(self, transfer: Transfer) -> dict[str, Any]:
        """Pull the content of a message, which the server may still be uploading."""
        until = time.monotonic() + _MOST_UPLOAD_SECONDS
        while (record := self._api.pull_record(transfer)) is None:
            if self._stopping.wait(_UPLOAD_POLL_SECONDS) or time.monotonic() >= until:
                raise Gone("it was not uploaded completely")
        return record

    def _process(self) -> None:
        """Pass a message to the device, then remember the question, then confirm it."""
        if self._arrived is None:
            return
        arrived, self._busy = self._arrived, True
        try:
            self._device.receive(arrived.content)
        except OSError:
            raise  # Not the message's fault: retry.
        except Exception as error:
            self._arrived = None
            self._refuse(arrived.question.message, error)
        else:
            self._file.keep(question=arrived.question)
            self._arrived = self._reply = None
            self._rejected = ""
            self._until = time.monotonic() + arrived.question.wait
            self._schedule(self._polling.after_message())
        with contextlib.suppress(Gone):
            self._api.confirm(arrived.transfer)

    def _refuse(self, message: bytes, error: Exception) -> None:
        reason = str(error) if isinstance(error, InvalidInput) else repr(error)
        if reason != self._rejected:
            # Once: the server sends such a message again and again.
            self._rejected = reason
            _log.warning("message rejected: %s", reason)
        self._refusal = make_reply(message, encode(Envelope("refusal", {"reason": reason})))

    def _answer(self) -> None:
        """Push the answer to the last message, as soon as the device has one."""
        if self._refusal is not None:
            self._push(self._refusal)
            self._refusal = None
        outgoing, question = self._device.outgoing(), self._file.question
        if question is None:
            return
        if self._reply is None:
            content = None
            if outgoing is not None and outgoing.exchange == question.asked.exchange:
                found = self._device.content(outgoing)
                content = found if question.asked.is_answered_by(found) else None
            if content is None and time.monotonic() >= self._until:
                content = encode(Envelope("nothing"))
            if content is None:
                return
            self._reply = make_reply(question.message, content, alone=question.alone)
        self._file.keep(uploading=True)
        self._push(self._reply)
        self._file.keep(question=None, uploading=False)
        self._reply, self._busy = None, True
        self._schedule(self._polling.after_answer())

    def _push(self, reply: Transfer) -> None:
        try:
            self._api.push(reply)
        except Gone as error:
            _log.info("an answer is no longer needed: %s", error)

    def _schedule(self, seconds: float) -> None:
        self._next_poll = time.monotonic() + seconds

    def _complain(self, error: Exception) -> None:
        """Log why messages cannot be exchanged, once for each reason; connect again if the SuperLink says so."""
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, httpx.HTTPStatusError):
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                self._api.node = 0
                reason = "it does not accept this device's key: it is revoked, or the clock is wrong"
            elif error.response.status_code == httpx.codes.PRECONDITION_FAILED:
                reason = "this device's key is not registered, or another node is connected with it"
        if reason != self._complaint:
            self._complaint = reason
            _log.warning("no messages are exchanged with %s: %s; retrying", self._server, reason)
