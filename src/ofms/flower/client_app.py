"""Flower's ClientApp: it carries letters between the server and a device's store and decides nothing; no PyTorch."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ofms.core.errors import InvalidInput
from ofms.device.mailbox import Mailbox
from ofms.flower.records import from_record, to_record
from ofms.storage.envelope import Envelope, decode, encode

_SECONDS_BETWEEN_LOOKS = 0.05
_log = logging.getLogger("flwr")

app = ClientApp()


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """Bring a welcome; the answer asks for the exchange that it speaks of."""
    return _carry(message, context, ahead=0)


@app.train("exchange")
def exchange(message: Message, context: Context) -> Message:
    """Bring a grant; the answer reports on that exchange and asks for the next one."""
    return _carry(message, context, ahead=1)


def _carry(message: Message, context: Context, ahead: int) -> Message:
    try:
        letter = from_record(message.content)
    except InvalidInput as error:
        # The server is of another version. The device goes on with what it has, and both sides say why.
        _log.warning("a letter was not taken: %s", error)
        return Message(to_record(Envelope("refusal", {"reason": str(error)})), reply_to=message)
    mailbox = Mailbox(Path(str(context.node_config["store"])))
    until = time.monotonic() + float(letter.values["wait"])
    head = {key: letter.values[key] for key in ("deployment", "revision")}
    name = mailbox.deliver(encode(letter))
    asked = int(letter.values["exchange"]) + ahead
    while True:
        content = mailbox.answer(asked)
        if content is not None:
            answer = decode(content)
            # One that was left from another deployment answers nothing.
            if answer.values["deployment"] == letter.values["deployment"]:
                return Message(to_record(answer), reply_to=message)
        refusal = mailbox.refusal(name)
        if refusal is not None:
            return Message(to_record(Envelope("refusal", head | {"reason": refusal})), reply_to=message)
        if time.monotonic() >= until:
            return Message(to_record(Envelope("nothing", head)), reply_to=message)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
