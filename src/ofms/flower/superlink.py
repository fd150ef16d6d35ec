"""Flower's SuperLink with an access check before its control API, and a log of rejected nodes.

    python -m ofms.flower.superlink [the options of flower-superlink]

On one port, the SuperLink serves nodes (`/v1/fleet`), the apps that it runs (`/v1/runtime`) and the control API
(`/v1/control`), which starts runs and registers nodes without authentication. Here, requests from other machines and
from other users of this one reach only `/v1/fleet`. How many bytes they may have is in the file that
`OFMS_LARGEST_REQUEST` names; rejected nodes are logged in the one that `OFMS_EVENTS` names.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn.config
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.routers.runtime.tracing import RuntimeTracingMiddleware
from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink
from flwr.superlink.routers.control.middlewares import (
    ControlAuthenticationMiddleware,
    ControlEventLogMiddleware,
    ControlLicenseMiddleware,
    ControlSensitiveResponseMiddleware,
)
from flwr.superlink.routers.fleet.middlewares import FleetEventLogMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse

from ofms.coordinator.events import log_event
from ofms.coordinator.roster import read_roster
from ofms.flower.local_users import is_own_connection
from ofms.flower.sizes import read_bound

_FLEET, _RUNTIME = "/v1/fleet/", "/v1/runtime/"
_PUSH_MESSAGES, _PUSH_OBJECT = "/v1/fleet/push-messages", "/v1/fleet/push-object"
_FOR_ALL = (_FLEET, "/health")
_REPEAT_SECONDS = 60.0
_MOST_LOGGED = 10_000
_LARGEST_CALL = 2**20
# Of a message: itself, its dictionary of records, and one record.
_OBJECTS = 3
_KEEP_ALIVE_SECONDS = 75
_KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_logged_at: dict[str, float] = {}


def log_refusal(who: str, why: str) -> None:
    """Log a rejected client; the same line at most once per minute."""
    line = f"{who} was rejected: {why}"
    now = time.monotonic()
    if len(_logged_at) > _MOST_LOGGED:
        _logged_at.clear()
    if now - _logged_at.get(line, -_REPEAT_SECONDS) >= _REPEAT_SECONDS:
        _logged_at[line] = now
        if events := os.environ.get("OFMS_EVENTS"):
            log_event(Path(events), line, logging.WARNING)


def _rejected_node(address: str, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str]:
    """Who was rejected, by the device whose key it names, and why."""
    try:
        (named,) = (value for name, value in headers if name.lower() == _KEY_HEADER)
        key = b64decode(named, validate=True).strip()
        roster = read_roster(Path(os.environ["OFMS_EVENTS"]).parent)
        device = roster.devices[roster.public_keys()[key]]
    except (KeyError, ValueError, OSError):
        return f"a node at {address}", "it is not registered"
    who = f"a node at {address} with the key of {device.name}"
    if device.revoked:
        return who, "it is revoked"
    return who, "another one is connected with this key, or its previous connection has not expired"


class Gate:
    """Middleware: outside `/v1/fleet`, rejects other machines and this one's other users; logs rejected nodes.

    Requests of nodes are rejected if they are large, or announce more objects than a message has.

    Parameters
    ----------
    bound
        The file with the bytes of the largest request, which follows the dictionary; None for no bound.
    """

    def __init__(self, app: Application, bound: Path | None = None) -> None:
        self.app, self._bound, self._largest = app, bound, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        path, client = str(scope["path"]), scope.get("client")
        who = client[0] if client else "an unknown address"
        if not allowed(path, client, scope.get("server")):
            log_refusal(who, "it requested a path reserved for this machine")
            await PlainTextResponse("allowed only from the server's own machine", status_code=403)(scope, receive, send)
            return
        if not _is_for_all(path) and (client is None or not is_own_connection(client, scope["server"])):
            log_refusal(who, "another user of this machine requested a path reserved for the server's own")
            await PlainTextResponse("allowed only for the server's own user", status_code=403)(scope, receive, send)
            return
        if path.startswith(_FLEET) and (size := self._too_large(path, scope)):
            log_refusal(f"a node at {who}", f"it sent a request of {size}")
            await PlainTextResponse("too large", status_code=413)(scope, receive, send)
            return

        if path == _PUSH_MESSAGES:
            body = await _read(receive)
            if not announces_one_record(body):
                log_refusal(f"a node at {who}", "it announced other objects than one record")
                await PlainTextResponse("a message is one record", status_code=400)(scope, receive, send)
                return
            receive = _again(body, receive)

        async def watched(event: Any) -> None:
            if path == "/v1/fleet/activate-node" and event["type"] == "http.response.start" and event["status"] >= 400:
                log_refusal(*_rejected_node(who, scope["headers"]))
            await send(event)

        await self.app(scope, receive, watched)

    def _too_large(self, path: str, scope: Scope) -> str:
        """The size of a request that is too large, before its body is read."""
        sizes = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
        if len(sizes) != 1 or not sizes[0].isdigit():
            return "unknown size"  # For example in chunks.
        size = int(sizes[0])
        # Only objects are large; other requests name them.
        if path != _PUSH_OBJECT:
            return f"{size} bytes" if size > _LARGEST_CALL else ""
        if self._bound is not None and size > self._largest:
            # Read only now: the bound may have grown since, and most requests are far smaller.
            self._largest = read_bound(self._bound)
        return f"{size} bytes" if self._bound is not None and size > self._largest else ""


def announces_one_record(body: bytes) -> bool:
    """Whether a push of messages announces one message with at most one record, as nodes and SuperNodes send it.

    Each object that is announced is a row of Flower's database, and may then be as large as the largest request.
    """
    try:
        request = PushMessagesRequest.FromString(body)
    except Exception:
        return True  # Flower rejects it: not a message of its protocol.
    if max(len(request.messages_list), len(request.message_object_trees)) > 1:
        return False
    level = list(request.message_object_trees)
    for _ in range(_OBJECTS):
        level = [child for tree in level for child in tree.children]
        if len(level) > 1:
            return False
    return not level


async def _read(receive: Receive) -> bytes:
    """The body of a request whose size was checked; shorter if the client disconnects."""
    body = bytearray()
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Let the application read a body that was read."""
    unread = [{"type": "http.request", "body": body}]

    async def events() -> Any:
        return unread.pop() if unread else await receive()

    return events


def allowed(path: str, client: tuple[str, int] | None, server: tuple[str, int | None] | None = None) -> bool:
    """Whether this address may request this path.

    >>> allowed("/v1/fleet/pull", ("10.0.0.7", 1)), allowed("/v1/control/run", ("10.0.0.7", 1))
    (True, False)
    >>> allowed("/v1/control/run", ("127.0.0.1", 1)), allowed("/v1/control/run", ("::ffff:127.0.0.1", 1))
    (True, True)
    >>> allowed("/v1/fleet/../control/run", ("10.0.0.7", 1))
    False
    >>> allowed("/v1/control/run", ("10.0.0.7", 1), ("10.0.0.7", 9092))
    True
    """
    if _is_for_all(path):
        return True
    if client is None:
        return False
    if server is not None and client[0] == server[0]:
        return True  # From the server's own address.
    address = ipaddress.ip_address(client[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _is_for_all(path: str) -> bool:
    return path.startswith(_FOR_ALL) and ".." not in path


def skip(middleware: type[BaseHTTPMiddleware], prefixes: tuple[str, ...]) -> None:
    """Let requests to some paths pass a middleware that does nothing for them; each costs about half a millisecond."""
    own = middleware.__call__

    async def call(self: BaseHTTPMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and str(scope["path"]).startswith(prefixes):
            await self.app(scope, receive, send)
        else:
            await own(self, scope, receive, send)

    middleware.__call__ = call  # type: ignore[method-assign]


def skip_idle_middleware() -> None:
    """Flower has nine, of which a request of a node needs three."""
    for middleware in (
        ControlAuthenticationMiddleware,
        ControlEventLogMiddleware,
        ControlLicenseMiddleware,
        ControlSensitiveResponseMiddleware,
    ):
        skip(middleware, (_FLEET, _RUNTIME))
    skip(RuntimeTracingMiddleware, (_FLEET,))
    skip(NodeAuthMiddleware, (_RUNTIME,))
    # Without its plug-in it does nothing at all.
    skip(FleetEventLogMiddleware, (_RUNTIME,) if os.environ.get("FLWR_ENABLE_EVENT_LOG") == "1" else (_FLEET, _RUNTIME))


class Handshake(ssl.SSLObject):
    """The TLS of a connection; logs clients that do not use TLS."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "HTTPS_PROXY_REQUEST"):
                log_refusal("a node", "it connected without TLS")
            raise


def main() -> None:
    own_middleware, own_load = extensions.get_middleware, uvicorn.config.Config.load

    def load(self: uvicorn.config.Config) -> None:
        own_load(self)
        # Each node polls every few seconds, over a connection that it keeps.
        logging.getLogger("uvicorn.access").disabled = True
        self.timeout_keep_alive = _KEEP_ALIVE_SECONDS
        if self.ssl is not None:
            self.ssl.sslobject_class = Handshake

    bound = Path(os.environ["OFMS_LARGEST_REQUEST"]) if "OFMS_LARGEST_REQUEST" in os.environ else None
    extensions.get_middleware = lambda: (Middleware(Gate, bound=bound), *own_middleware())
    uvicorn.config.Config.load = load  # type: ignore[method-assign]
    skip_idle_middleware()
    flower_superlink()


if __name__ == "__main__":
    main()
