"""HTTP for people on the same machine: GET and HEAD of a few known paths, bounded in number and time.

Requests whose Host header is another site's name are rejected: a page of that site could otherwise read this one by
resolving its own name to this machine (DNS rebinding). No header allows other sites anything (CORS).
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from ofms.core.errors import InvalidInput

_log = logging.getLogger("ofms.watch")
_MOST_CONNECTIONS = 16
_LONGEST_SECONDS = 10.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class Response:
    """What a path answers."""

    content: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK


Paths = Mapping[str, Callable[[], Response]]


def is_allowed_host(hosts: Sequence[str], names: frozenset[str]) -> bool:
    """Whether a request's Host header is one address or a known name.

    >>> names = frozenset({"localhost"})
    >>> [is_allowed_host([host], names) for host in ("127.0.0.1:9095", "[::1]", "LOCALHOST:1", "evil.example:9095")]
    [True, True, True, False]
    >>> is_allowed_host([], names), is_allowed_host(["localhost", "localhost"], names)
    (False, False)
    """
    if len(hosts) != 1:
        return False
    host = hosts[0].strip().lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Server(HTTPServer):
    """Handles each connection in a thread, a few at a time, each for some seconds at most.

    Parameters
    ----------
    names
        Host names, besides addresses and `localhost`, by which requests may call this server.
    """

    allow_reuse_address = True

    def __init__(self, host: str, port: int, paths: Paths, names: Sequence[str]) -> None:
        self.paths, self.names = paths, frozenset({"localhost", *(name.lower() for name in names)})
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # Without HTTPServer's look-up of the machine's name, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        threading.Thread(target=self._handle, args=(request, client_address), daemon=True).start()

    def _handle(self, request: Any, client_address: Any) -> None:
        # A client that sends or reads byte by byte would keep its place for ever.
        timer = threading.Timer(_LONGEST_SECONDS, _cut, [request])
        timer.daemon = True
        timer.start()
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # The client is gone.
        finally:
            timer.cancel()
            self.shutdown_request(request)
            self._room.release()


def _cut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of known paths."""

    timeout = _LONGEST_SECONDS
    server_version, sys_version = "ofms", ""
    server: Server

    def do_GET(self) -> None:
        """Answer, or say why not."""
        path = self.path.partition("?")[0]
        if not is_allowed_host(self.headers.get_all("Host", []), self.server.names):
            self._send(_text("unknown host name; name it in [watch] names\n", HTTPStatus.MISDIRECTED_REQUEST))
        elif path not in self.server.paths:
            self._send(_text("not found\n", HTTPStatus.NOT_FOUND))
        else:
            try:
                self._send(self.server.paths[path]())
            except InvalidInput as error:
                self._send(_text(f"{error.remedy}\n", HTTPStatus.SERVICE_UNAVAILABLE))
            except OSError:
                raise  # The client is gone.
            except Exception as error:
                _log.warning("%s could not be answered: %r", path, error)
                self._send(_text("it could not be made; see the server's log\n", HTTPStatus.INTERNAL_SERVER_ERROR))

    def do_HEAD(self) -> None:
        """The same without its content."""
        self.do_GET()

    def __getattr__(self, name: str) -> Callable[[], None]:
        # Of any other method.
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self._refuse

    def _refuse(self) -> None:
        self._send(_text("GET alone\n", HTTPStatus.METHOD_NOT_ALLOWED), Allow="GET, HEAD")

    def _send(self, response: Response, **headers: str) -> None:
        self.send_response(response.status)
        length = {"Content-Type": response.kind, "Content-Length": str(len(response.content))}
        for name, value in (_HEADERS | length | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Not logged: the page asks every other second."""


def _text(text: str, status: HTTPStatus) -> Response:
    return Response(text.encode(), "text/plain; charset=utf-8", status)
