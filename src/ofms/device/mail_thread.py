"""The thread that moves messages between a device and its mailbox."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ofms.core.errors import InvalidInput
from ofms.device.mailbox import Mailbox, largest_message

if TYPE_CHECKING:
    from ofms.device.device import Device
    from ofms.device.memory import Outgoing

_POLL_SECONDS = 0.05
_log = logging.getLogger("ofms.device")


class MailThread:
    """Runs until `stop`."""

    def __init__(self, device: Device, mailbox: Mailbox) -> None:
        self._device, self._mailbox = device, mailbox
        self._sent: Outgoing | None = None
        self._rejected = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"mail of {device.store}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while not self._stopping.is_set():
            for work in (self._receive, self._send):
                try:
                    work()
                except Exception:
                    # For example a full disk: predictions continue, and the next attempt may succeed.
                    _log.exception("messages could not be exchanged; retrying")
                    self._stopping.wait(1.0)
            self._device.wait_change(_POLL_SECONDS)

    def _receive(self) -> None:
        # The carrier knows no budget, and carries what the server sends.
        largest = largest_message(self._device.budget)
        found = self._mailbox.newest(largest + 1)
        if found is None:
            return
        name, content = found
        try:
            if len(content) > largest:
                raise InvalidInput("message", f"over {largest} bytes", f"at most {largest} bytes are accepted")
            self._device.receive(content)
            self._rejected = ""
        except OSError:
            raise  # Not the message's fault: retry.
        except Exception as error:
            reason = str(error) if isinstance(error, InvalidInput) else repr(error)
            if reason != self._rejected:
                # Once: the server sends such a message again and again.
                self._rejected = reason
                _log.warning("message rejected: %s", reason)
            self._mailbox.refuse(name, reason)
        self._mailbox.remove(name)

    def _send(self) -> None:
        found = self._device.outgoing()
        if found is not None and found is not self._sent:
            self._mailbox.send(found.exchange, self._device.content(found))
            self._sent = found
