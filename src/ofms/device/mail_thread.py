"""The thread that takes a device's letters from its inbox and puts its own into the outbox."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ofms.core.errors import InvalidInput
from ofms.device.mailbox import Mailbox

if TYPE_CHECKING:
    from ofms.device.device import Device

_SECONDS_BETWEEN_LOOKS = 0.05
_log = logging.getLogger("ofms.device")


class MailThread:
    """Works until it is told to stop."""

    def __init__(self, device: Device, mailbox: Mailbox) -> None:
        self._device, self._mailbox = device, mailbox
        self._sent: bytes | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"letters of {device.store}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while not self._stopping.is_set():
            for work in (self._take, self._give):
                try:
                    work()
                except Exception:
                    # A full disk, say: predictions go on, and so does the next attempt.
                    _log.exception("letters could not be exchanged; trying again")
                    self._stopping.wait(1.0)
            self._device.wait_change(_SECONDS_BETWEEN_LOOKS)

    def _take(self) -> None:
        found = self._mailbox.newest()
        if found is None:
            return
        name, content = found
        try:
            self._device.receive(content)
        except OSError:
            raise  # It is not the letter's fault.
        except Exception as error:
            _log.warning("a letter was not taken: %s", error)
            self._mailbox.refuse(name, str(error) if isinstance(error, InvalidInput) else repr(error))
        self._mailbox.remove(name)

    def _give(self) -> None:
        found = self._device.letter()
        if found is not None and found[1] is not self._sent:
            self._mailbox.send(*found)
            self._sent = found[1]
