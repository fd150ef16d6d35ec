"""Flower's ClientApp: carries messages between the server and a device's mailbox. Imports no PyTorch."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ofms.core.errors import InvalidInput
from ofms.device.mailbox import Mailbox
from ofms.flower.records import from_record, to_record
from ofms.storage.envelope import Envelope, decode_head, encode

_POLL_SECONDS = 0.05
_log = logging.getLogger("flwr")

app = ClientApp()


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """Deliver a welcome; the answer requests the exchange that it names."""
    return _carry(message, context, ahead=0)


@app.train("exchange")
def exchange(message: Message, context: Context) -> Message:
    """Deliver a grant; the answer reports on that exchange and requests the next one."""
    return _carry(message, context, ahead=1)


def _carry(message: Message, context: Context, ahead: int) -> Message:
    try:
        content, wait = from_record(message.content)
        _, values = decode_head(content)
        requested = _whole(values.get("exchange")) + ahead
    except InvalidInput as error:
        # The server has another protocol version: the device keeps its models, and both sides log the reason.
        _log.warning("message rejected: %s", error)
        return _reply(message, Envelope("refusal", {"reason": str(error)}))
    mailbox = Mailbox(Path(str(context.node_config["store"])))
    until = time.monotonic() + wait
    name = mailbox.deliver(content)
    while True:
        answer = mailbox.answer(requested)
        if answer is not None and _answers(answer, values):
            return Message(to_record(answer), reply_to=message)
        refusal = mailbox.refusal(name)
        if refusal is not None:
            return _reply(message, Envelope("refusal", {"reason": refusal}))
        if time.monotonic() >= until:
            return _reply(message, Envelope("nothing"))
        time.sleep(_POLL_SECONDS)


def _whole(exchange: object) -> int:
    if not isinstance(exchange, int) or not 0 <= exchange < 2**63:
        raise InvalidInput("message", f"exchange {exchange}", "it names no exchange")
    return exchange


def _answers(answer: bytes, asked: dict[str, Any]) -> bool:
    """Whether an answer is to this message: the outbox may still hold one for another deployment or opening."""
    try:
        _, values = decode_head(answer)
    except InvalidInput:
        return False  # Damaged; the device writes its next one.
    return all(values.get(key) == asked[key] for key in ("deployment", "opening") if key in asked)


def _reply(message: Message, envelope: Envelope) -> Message:
    return Message(to_record(encode(envelope)), reply_to=message)
