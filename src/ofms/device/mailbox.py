"""Inbox and outbox: the two folders of a device's store through which messages pass. Imports no PyTorch.

The carrier writes the inbox and reads the outbox; the device reads the inbox and writes the outbox. Only the newest
message of each matters: a grant of a closed exchange is of no use.
"""

from __future__ import annotations

import time
from pathlib import Path

from ofms.storage.files import remove_leftovers, write_whole
from ofms.storage.private import private_mode, require_private

_ENDING = ".safetensors"
# What a message has besides models: a welcome describes every model, a report has some numbers per model.
MARGIN = 16 * 2**20


def largest_message(budget: int) -> int:
    """Bytes of the largest message that a device accepts: models that fit its budget."""
    return budget + MARGIN


class Mailbox:
    """The inbox and the outbox of a store."""

    def __init__(self, store: Path) -> None:
        self._store, self.inbox, self.outbox = store, store / "inbox", store / "outbox"

    # For the carrier.

    def deliver(self, content: bytes) -> str:
        """Put a message into the inbox, replacing older ones; return its name there."""
        mode = self._open(self.inbox)
        remove_leftovers(self.inbox)
        name = f"{time.time_ns():020d}"
        older = self._names()
        write_whole(self.inbox / (name + _ENDING), content, mode=mode)
        for each in older:
            self.remove(each)
        return name

    def answer(self, exchange: int) -> bytes | None:
        """The device's request for an exchange; None until it is written."""
        try:
            return self._request_path(exchange).read_bytes()
        except FileNotFoundError:
            return None

    def refusal(self, name: str) -> str | None:
        """Why the device rejected a message; None if it did not."""
        try:
            return self._refusal_path(name).read_text()
        except FileNotFoundError:
            return None

    # For the device.

    def newest(self, most: int = -1) -> tuple[str, bytes] | None:
        """The newest message in the inbox, with its name; at most its first bytes, if `most` is given."""
        for name in reversed(self._names()):
            try:
                with open(self.inbox / (name + _ENDING), "rb") as file:
                    return name, file.read(most)
            except FileNotFoundError:
                continue
        return None

    def remove(self, name: str) -> None:
        """Remove a message from the inbox."""
        (self.inbox / (name + _ENDING)).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove messages that another carrier left."""
        for name in self._names():
            self.remove(name)

    def refuse(self, name: str, reason: str) -> None:
        """Record why a message was rejected."""
        mode = self._open(self.outbox)
        for path in self.outbox.glob("refusal-*"):
            path.unlink()
        write_whole(self._refusal_path(name), reason.encode(), mode=mode)

    def send(self, exchange: int, content: bytes) -> None:
        """Put the request for an exchange into the outbox, replacing others."""
        path = self._request_path(exchange)
        write_whole(path, content, mode=self._open(self.outbox))
        for other in self.outbox.glob(f"request-*{_ENDING}"):
            if other != path:
                other.unlink()

    def in_transit(self) -> int:
        """Bytes of messages in the inbox."""
        total = 0
        for name in self._names():
            try:
                total += (self.inbox / (name + _ENDING)).stat().st_size
            except FileNotFoundError:
                continue
        return total

    def _open(self, folder: Path) -> int:
        """Create a folder of the store for its users alone; the mode of files in it."""
        require_private(self._store)
        require_private(folder, within=self._store)
        return private_mode(folder)

    def _names(self) -> list[str]:
        return sorted(path.name.removesuffix(_ENDING) for path in self.inbox.glob(f"[0-9]*{_ENDING}"))

    def _request_path(self, exchange: int) -> Path:
        return self.outbox / f"request-{exchange}{_ENDING}"

    def _refusal_path(self, name: str) -> Path:
        return self.outbox / f"refusal-{name}.txt"
