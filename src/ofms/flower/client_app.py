"""Flower's ClientApp: carries messages between the server and a device's mailbox. Imports no PyTorch."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ofms.core.errors import InvalidInput
from ofms.device.mailbox import Mailbox
from ofms.flower.asked import EXCHANGE, JOIN, read_asked
from ofms.flower.records import from_record, to_record
from ofms.storage.envelope import Envelope, encode

_POLL_SECONDS = 0.05
_log = logging.getLogger("flwr")

app = ClientApp()


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """Deliver a welcome and carry the answer to it."""
    return _carry(message, context, JOIN)


@app.train("exchange")
def exchange(message: Message, context: Context) -> Message:
    """Deliver a grant and carry the answer to it."""
    return _carry(message, context, EXCHANGE)


def _carry(message: Message, context: Context, message_type: str) -> Message:
    try:
        content, wait = from_record(message.content)
        asked = read_asked(message_type, content)
    except InvalidInput as error:
        # The server has another protocol version: the device keeps its models, and both sides log the reason.
        _log.warning("message rejected: %s", error)
        return _reply(message, Envelope("refusal", {"reason": str(error)}))
    mailbox = Mailbox(Path(str(context.node_config["store"])))
    until = time.monotonic() + wait
    name = mailbox.deliver(content)
    while True:
        answer = mailbox.answer(asked.exchange)
        if answer is not None and asked.is_answered_by(answer):
            return Message(to_record(answer), reply_to=message)
        refusal = mailbox.refusal(name)
        if refusal is not None:
            return _reply(message, Envelope("refusal", {"reason": refusal}))
        if time.monotonic() >= until:
            return _reply(message, Envelope("nothing"))
        time.sleep(_POLL_SECONDS)


def _reply(message: Message, envelope: Envelope) -> Message:
    return Message(to_record(encode(envelope)), reply_to=message)
