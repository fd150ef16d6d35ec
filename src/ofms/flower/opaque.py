"""The one record of a message: an encoded envelope, and how long its carrier waits for the answer."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.storage.envelope import require_protocol

# Of the record. Protocol 2 had a record per array; that of the envelope inside did not change.
PROTOCOL = 3
RECORD, CONTENT = "message", "content"
_RANDOM_BYTES = 16


def record_of(content: bytes, wait: float = 0.0) -> dict[str, Any]:
    """The values of a record; `wait` is how many seconds the carrier waits for the device's answer.

    Random bytes make it another object than that of an equal message: the SuperLink would share one object between
    both, and a receiver could confirm its message before all other objects of it are there. `alone` says that its
    sender reads messages whose only object is their record.
    """
    random = os.urandom(_RANDOM_BYTES)
    return {"protocol": PROTOCOL, "wait": float(wait), CONTENT: content, "random": random, "alone": 1}


def may_be_alone(record: Mapping[str, Any]) -> bool:
    """Whether the sender of a record reads messages whose only object is their record."""
    return record.get("alone") == 1


def read_record(record: Mapping[str, Any]) -> tuple[bytes | memoryview, float]:
    """The bytes of an envelope and `wait`, or reject a record without them."""
    try:
        require_protocol(record["protocol"], PROTOCOL)
        content, wait = record[CONTENT], float(record["wait"])
    except InvalidInput:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("message", type(error).__name__, "it contains no envelope") from None
    if not isinstance(content, bytes | memoryview):
        raise InvalidInput("message", type(content).__name__, "it contains no envelope")
    if not 0 <= wait < math.inf:
        raise InvalidInput("message", f"wait {wait}", "it must be a number of seconds")
    return content, wait
