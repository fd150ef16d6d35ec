"""What a node must know after a restart of its program: its id while it is connected, and what it has to answer."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ofms.flower.asked import Asked
from ofms.storage.files import write_whole
from ofms.storage.private import private_mode
from ofms.storage.typed import from_msgpack

_NAME = "node.msgpack"


class Question(msgspec.Struct, frozen=True):
    """A message that the device has processed and not yet answered.

    Attributes
    ----------
    message
        Flower's message without its content.
    wait
        After how many seconds to reply that there is no answer.
    alone
        Whether the record may be the only object of the answer.
    """

    message: bytes
    asked: Asked
    wait: float
    alone: bool = False


class _Content(msgspec.Struct, frozen=True):
    node: int = 0
    question: Question | None = None
    uploading: bool = False


class NodeFile:
    """The file of a node in a device's store."""

    def __init__(self, store: Path) -> None:
        self._path = store / _NAME
        try:
            self._content = from_msgpack(self._path.read_bytes(), _Content)
        except (OSError, msgspec.MsgspecError):
            # Without it, the server resends what was not answered.
            self._content = _Content()

    @property
    def node(self) -> int:
        """The node's id if it did not disconnect, otherwise 0."""
        return self._content.node

    @property
    def question(self) -> Question | None:
        return self._content.question

    @property
    def uploading(self) -> bool:
        """Whether an upload of the answer began and did not end: Flower accepts no other answer to that message."""
        return self._content.uploading

    def keep(self, **changes: object) -> None:
        """Write changed values, if any changed."""
        content = msgspec.structs.replace(self._content, **changes)
        if content != self._content:
            write_whole(self._path, msgspec.msgpack.encode(content), mode=private_mode(self._path.parent))
            self._content = content
