"""Flower's private modules that a node in a device's own program needs; nothing else imports them.

The package checks Flower's version before they are imported. Flower's own loop (`flwr.supernode`) is not used: it ends
the process, or interrupts its main thread, when a connection fails.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supernode.fleet_http_client import FleetHttpClient

from ofms.core.errors import InvalidInput

_TIMEOUT_SECONDS, _LAST_TIMEOUT_SECONDS, _KEEP_ALIVE_SECONDS = 30.0, 5.0, 60.0


class Gone(Exception):
    """A message or reply can no longer be completed."""


@dataclass(eq=False)
class Transfer:
    """A message without its content, and the tree of the objects that are its content.

    Attributes
    ----------
    contents, session
        Of a reply: the objects to be pushed by their ids, and the session in which the SuperLink expects them.
    """

    message: bytes
    tree: ObjectTree
    contents: dict[str, bytes] = field(default_factory=dict)
    session: str | None = None

    @property
    def metadata(self) -> Any:
        """Run, sender and type of the message, as the SuperLink checked them."""
        return ProtoMessage.FromString(self.message).metadata

    @property
    def error(self) -> str | None:
        """Why there is no content."""
        message = ProtoMessage.FromString(self.message)
        return str(message.error.reason) if message.HasField("error") else None

    @property
    def record(self) -> str:
        """The id of the one record; a message with other objects is rejected before any of them is transferred."""
        dictionaries = self.tree.children
        records = dictionaries[0].children if len(dictionaries) == 1 else []
        if len(records) != 1 or records[0].children:
            raise InvalidInput("message", "of other objects", "a message is one record")
        return str(records[0].object_id)


class FleetApi:
    """A node's requests to a SuperLink. They raise `httpx.HTTPError`, `Gone` or `InvalidInput`."""

    def __init__(self, address: str, authority: bytes, key: ec.EllipticCurvePrivateKey, largest: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=authority.decode("ascii"))
        self._public = public_key_to_bytes(key.public_key())
        self._client = FleetHttpClient(f"https://{address}", interceptors=[_Signing(key, self._public)], verify=context)
        # Flower's own client closes connections between two polls.
        limits = httpx.Limits(keepalive_expiry=_KEEP_ALIVE_SECONDS)
        self._client._client = httpx.Client(verify=context, timeout=_TIMEOUT_SECONDS, limits=limits)
        _bound_responses(self._client, largest)
        self.node = 0

    def activate(self, heartbeat_seconds: float) -> None:
        """Connect; the SuperLink counts the node as connected for two heartbeats."""
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=heartbeat_seconds)
        self.node = int(self._client.ActivateNode(request).node_id)

    def deactivate(self, node: int) -> None:
        """Disconnect this node, or an earlier connection with the same key."""
        self._client._client.timeout = _LAST_TIMEOUT_SECONDS
        try:
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=node))
        finally:
            self._client._client.timeout = _TIMEOUT_SECONDS

    def heartbeat(self, seconds: float) -> None:
        self._client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=seconds))

    def pull(self) -> Transfer | None:
        """The next message for this node, without its content."""
        response = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        return Transfer(response.messages_list[0].SerializeToString(), response.message_object_trees[0])

    def pull_record(self, transfer: Transfer) -> ConfigRecord | None:
        """The one record of a message, or None while the server is uploading it."""
        return _pull_record(partial(_unless_gone, self._client.PullObject), self._node, transfer)

    def confirm(self, transfer: Transfer) -> None:
        """Let the SuperLink forget the content of a message."""
        _unless_gone(self._client.ConfirmMessageReceived, _confirmation(self._node, transfer))

    def push(self, reply: Transfer) -> None:
        """Push a reply; after an error, the same reply can be pushed again."""
        if reply.session is None:
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[ProtoMessage.FromString(reply.message)],
                message_object_trees=[reply.tree],
                clientapp_runtime_list=[0.0],
            )
            response = _unless_gone(self._client.PushMessages, request)
            reply.session, wanted = str(response.session_id), set(response.objects_to_push)
            reply.contents = {name: content for name, content in reply.contents.items() if name in wanted}
        for name, content in list(reply.contents.items()):
            run, session = reply.metadata.run_id, reply.session
            pushed = PushObjectRequest(
                node=self._node, run_id=run, session_id=session, object_id=name, object_content=content
            )
            if not _unless_gone(self._client.PushObject, pushed).stored:
                raise Gone("the SuperLink expected this reply no longer")
            del reply.contents[name]

    def close(self) -> None:
        self._client.close()

    @property
    def _node(self) -> Node:
        return Node(node_id=self.node)


def replies_to(grid: Any, messages: Iterable[str]) -> dict[str, Transfer]:
    """For a server app: new replies by the id of the message that they answer, each returned once."""
    response = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=messages))
    pairs = zip(response.messages_list, response.message_object_trees, strict=True)
    return {each.metadata.reply_to_message_id: Transfer(each.SerializeToString(), tree) for each, tree in pairs}


def pull_reply(grid: Any, reply: Transfer, largest: int) -> ConfigRecord | None:
    """For a server app: the one record of a reply, or None while the node is uploading it."""
    client, complete = grid._runtime_client, True
    _bound_responses(client, largest)
    try:
        record = _pull_record(client.PullObject, grid.node, reply)
        complete = record is not None
        return record
    finally:
        if complete:
            client.ConfirmMessageReceived(_confirmation(grid.node, reply))


def make_reply(received: bytes, content: RecordDict) -> Transfer:
    """A reply to a message that was received."""
    reply = Message(content, reply_to=message_from_proto(ProtoMessage.FromString(received)))
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        contents = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
        tree = get_object_tree(reply)
    return Transfer(message_to_proto(remove_content_from_message(reply)).SerializeToString(), tree, contents)


class _Signing:
    """Signs requests like Flower's `NodeAuthHttpInterceptor`, whose package imports a web server."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, public: bytes) -> None:
        self._key, self._public = key, b64encode(public).decode("ascii")

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        timestamp = now().isoformat()
        signature = b64encode(sign_message(self._key, timestamp.encode("ascii"))).decode("ascii")
        context.request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = self._public
        context.request.headers[TIMESTAMP_HEADER] = timestamp
        context.request.headers[FLEET_HTTP_SIGNATURE_HEADER] = signature
        return call_next(context)


def _bound_responses(client: Any, largest: int) -> None:
    """Reject responses of more than `largest` bytes before they are read."""

    def require_small(response: httpx.Response) -> None:
        size = response.headers.get("content-length", "of unknown size")
        if not size.isdecimal() or int(size) > largest or "content-encoding" in response.headers:
            response.close()
            raise InvalidInput("message", f"{size} bytes", f"at most {largest} bytes are accepted")

    client._client.event_hooks = {"response": [require_small]}
    client._client.headers["accept-encoding"] = "identity"


def _pull_record(pull: Callable[[PullObjectRequest], Any], node: Node, transfer: Transfer) -> ConfigRecord | None:
    run, name = transfer.metadata.run_id, transfer.record
    response = pull(PullObjectRequest(node=node, run_id=run, object_id=name))
    if not response.object_found:
        raise Gone("the SuperLink has forgotten it")
    if not response.object_available:
        return None
    try:
        return ConfigRecord.inflate(response.object_content)
    except Exception as error:
        raise InvalidInput("message", type(error).__name__, "it is not a record of Flower") from None


def _confirmation(node: Node, transfer: Transfer) -> ConfirmMessageReceivedRequest:
    run, name = transfer.metadata.run_id, transfer.tree.object_id
    return ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name)


def _unless_gone(call: Callable[[Any], Any], request: Any) -> Any:
    """Call the SuperLink, which forbids what belongs to a run that has ended."""
    try:
        return call(request)
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.FORBIDDEN:
            raise Gone("its run has ended") from None
        raise
