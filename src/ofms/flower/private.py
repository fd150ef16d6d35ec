"""Flower's private modules that a node in a device's own program needs; nothing else of a node imports Flower.

The package checks Flower's version before they are imported. Flower's own loop (`flwr.supernode`) is not used: it ends
the process, or interrupts its main thread, when a connection fails.

Importing one module of Flower imports all of it, gRPC, Typer and Rich included: 20 MiB on a device that needs none of
them. So these modules are imported with packages whose own code is not run, and the packages are forgotten afterwards:
a program that imports Flower itself gets all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from types import ModuleType

# Their code imports all of Flower.
_PACKAGES = ("flwr", "flwr.common")


@contextmanager
def _without_the_rest() -> Iterator[None]:
    if "flwr" in sys.modules:
        yield
        return
    path = None
    for name in _PACKAGES:
        specification = PathFinder.find_spec(name, path)
        if specification is None:
            raise ImportError(f"no package {name}")
        package = ModuleType(name)
        path = package.__path__ = list(specification.submodule_search_locations or [])
        sys.modules[name] = package
    try:
        yield
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] == "flwr"]:
            del sys.modules[name]


with _without_the_rest():
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        DeactivateNodeRequest,
        PullMessagesRequest,
        PushMessagesRequest,
    )
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import (
        ConfirmMessageReceivedRequest,
        Message,
        Metadata,
        ObjectTree,
        PullObjectRequest,
        PullObjectResponse,
        PushObjectRequest,
    )
    from flwr.proto.node_pb2 import Node
    from flwr.proto.recorddict_pb2 import ConfigRecord, RecordDict
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
    from flwr.supercore.constant import (
        FLEET_HTTP_PUBLIC_KEY_HEADER,
        FLEET_HTTP_SIGNATURE_HEADER,
        HEAD_BODY_DIVIDER,
        HEAD_VALUE_DIVIDER,
    )
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
    from flwr.supernode.fleet_http_client import FleetHttpClient

__all__ = [
    "FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER",
    "HEAD_BODY_DIVIDER",
    "HEAD_VALUE_DIVIDER",
    "TIMESTAMP_HEADER",
    "ActivateNodeRequest",
    "ConfigRecord",
    "ConfirmMessageReceivedRequest",
    "DeactivateNodeRequest",
    "FleetHttpClient",
    "Message",
    "Metadata",
    "Node",
    "ObjectTree",
    "PullAppMessagesRequest",
    "PullMessagesRequest",
    "PullObjectRequest",
    "PullObjectResponse",
    "PushAppMessagesRequest",
    "PushMessagesRequest",
    "PushObjectRequest",
    "RecordDict",
    "SendNodeHeartbeatRequest",
    "now",
    "public_key_to_bytes",
    "sign_message",
]
