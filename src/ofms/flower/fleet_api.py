"""A node's requests to Flower's SuperLink, through Flower's own connection code, and a server app's for replies."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from ofms.core.errors import InvalidInput
from ofms.flower.http import httpx
from ofms.flower.objects import Transfer, decode_record
from ofms.flower.parts import Request, read_fields
from ofms.flower.private import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    ActivateNodeRequest,
    ConfirmMessageReceivedRequest,
    DeactivateNodeRequest,
    FleetHttpClient,
    Message,
    Node,
    PullAppMessagesRequest,
    PullMessagesRequest,
    PullObjectRequest,
    PullObjectResponse,
    PushAppMessagesRequest,
    PushMessagesRequest,
    PushObjectRequest,
    SendNodeHeartbeatRequest,
    now,
    public_key_to_bytes,
    sign_message,
)

_PULLED = {number: each.name for number, each in PullObjectResponse.DESCRIPTOR.fields_by_number.items()}
_TIMEOUT_SECONDS, _LAST_TIMEOUT_SECONDS, _KEEP_ALIVE_SECONDS = 30.0, 5.0, 60.0


class Gone(Exception):
    """A message or reply can no longer be completed."""


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

    def pull_record(self, transfer: Transfer) -> dict[str, Any] | None:
        """The one record of a message, or None while the server is uploading it."""
        return _pull_record(partial(_unless_gone, self._pull_object), self._node, transfer)

    def confirm(self, transfer: Transfer) -> None:
        """Let the SuperLink forget the content of a message."""
        _unless_gone(self._client.ConfirmMessageReceived, _confirmation(self._node, transfer))

    def push(self, reply: Transfer) -> None:
        """Push a reply; after an error, the same reply can be pushed again."""
        if reply.session is None:
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[Message.FromString(reply.message)],
                message_object_trees=[reply.tree],
                clientapp_runtime_list=[0.0],
            )
            _expected(reply, _unless_gone(self._client.PushMessages, request))
        _push_objects(partial(_unless_gone, self._client.PushObject), self._node, reply)

    def close(self) -> None:
        self._client.close()

    def _pull_object(self, request: PullObjectRequest) -> _Pulled:
        """As Flower's client does it, but for the type of the response."""
        path, method = "/v1/fleet/pull-object", "/flwr.proto.Fleet/PullObject"
        found: _Pulled = self._client._unary_unary(path=path, rpc_method=method, request=request, response_type=_Pulled)
        return found

    @property
    def _node(self) -> Node:
        return Node(node_id=self.node)


def push_message(grid: Any, message: Transfer) -> str | None:
    """For a server app: push a message, and return its id; None if the SuperLink does not accept it.

    Flower's own grid pushes objects in any order.
    """
    client = grid._runtime_client
    request = PushAppMessagesRequest(
        messages_list=[Message.FromString(message.message)], message_object_trees=[message.tree]
    )
    try:
        response = client.PushMessages(request)
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            return None
        raise
    # Without an id, its node has just disconnected.
    if not any(response.message_ids):
        return None
    _expected(message, response)
    _push_objects(client.PushObject, grid.node, message)
    return str(response.message_ids[0])


def replies_to(grid: Any, messages: Iterable[str]) -> dict[str, Transfer]:
    """For a server app: new replies by the id of the message that they answer, each returned once."""
    response = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=messages))
    pairs = zip(response.messages_list, response.message_object_trees, strict=True)
    return {each.metadata.reply_to_message_id: Transfer(each.SerializeToString(), tree) for each, tree in pairs}


def pull_reply(grid: Any, reply: Transfer, largest: int) -> dict[str, Any] | None:
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


def delete_message(grid: Any, message: str) -> None:
    """For a server app: let the SuperLink delete the content of a message or reply, which it keeps until then."""
    run = int(grid.run.run_id)
    request = ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=message)
    grid._runtime_client.ConfirmMessageReceived(request)


class _Pulled:
    """The response with an object, whose content is a part of it: protocol buffers would copy it twice."""

    def ParseFromString(self, content: bytes) -> None:  # noqa: N802
        """As Flower's client calls it."""
        fields = {_PULLED[number]: value for number, value in read_fields(memoryview(content)) if number in _PULLED}
        self.object_found, self.object_available = (
            any(fields.get(name, b"")) for name in ("object_found", "object_available")
        )
        self.object_content = fields.get("object_content", memoryview(b""))


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
        response = call_next(context)
        # It has been read. Its stream refers back to it, so that both contents would stay in memory until Python's
        # garbage collector finds them, which may take hours on an idle device.
        response.stream = httpx.ByteStream(b"")
        return response


def _bound_responses(client: Any, largest: int) -> None:
    """Reject responses of more than `largest` bytes before they are read."""

    def require_small(response: httpx.Response) -> None:
        size = response.headers.get("content-length", "of unknown size")
        if not size.isdecimal() or int(size) > largest or "content-encoding" in response.headers:
            response.close()
            raise InvalidInput("message", f"{size} bytes", f"at most {largest} bytes are accepted")
        _read(response, int(size))

    client._client.event_hooks = {"response": [require_small]}
    client._client.headers["accept-encoding"] = "identity"


def _read(response: httpx.Response, size: int) -> None:
    """Read a response into one buffer of its size: httpx would keep its parts beside the whole."""
    assert isinstance(response.stream, httpx.SyncByteStream)
    buffer = BytesIO(bytes(size))
    for part in response.stream:
        buffer.write(part)
    response.stream.close()
    buffer.truncate()
    response.stream = httpx.ByteStream(buffer.getvalue())


def _pull_record(pull: Callable[[PullObjectRequest], Any], node: Node, transfer: Transfer) -> dict[str, Any] | None:
    run, name = transfer.metadata.run_id, transfer.record
    response = pull(PullObjectRequest(node=node, run_id=run, object_id=name))
    if not response.object_found:
        raise Gone("the SuperLink has forgotten it")
    return decode_record(response.object_content) if response.object_available else None


def _expected(sent: Transfer, response: Any) -> None:
    """Keep what the SuperLink expects of a message that was announced."""
    wanted = set(response.objects_to_push)
    sent.session = str(response.session_id)
    sent.contents = {name: content for name, content in sent.contents.items() if name in wanted}


def _push_objects(push: Callable[[Any], Any], node: Node, sent: Transfer) -> None:
    """Push the objects that are still expected; after an error, the others can be pushed again."""
    run = sent.metadata.run_id
    for name, content in list(sent.contents.items()):
        request = PushObjectRequest(node=node, run_id=run, session_id=sent.session or "", object_id=name)
        if not push(Request(request, "object_content", content)).stored:
            raise Gone("the SuperLink expects it no longer")
        del sent.contents[name]


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
