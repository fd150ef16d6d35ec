"""What is served about one deployment: the live page and its data, metrics and a health check.

It reads `status.json` and the end of the event log, in another process than that of the exchanges, and so neither waits
for an exchange nor delays one.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from ofms.coordinator.deployment import WatchTable
from ofms.coordinator.files import EVENTS, POLLED, STATE
from ofms.coordinator.status import read_status
from ofms.coordinator.watch.http import Paths, Response, Server
from ofms.coordinator.watch.metrics import CONTENT_TYPE, metrics_text
from ofms.core.errors import InvalidInput
from ofms.storage.typed import from_json

_EVENT_BYTES, _EVENTS_SHOWN = 16_384, 30
_ANSWER_SECONDS, _HEALTH_BYTES = 5.0, 4096
# Closing an exchange of a large fleet takes a while.
_MOST_SILENT_SECONDS = 300.0


class WatchServer:
    """Serves a deployment's page, metrics and health check until it is closed.

    Parameters
    ----------
    names
        Host names, besides addresses and `localhost`, by which requests may call this server.
    """

    def __init__(self, folder: Path, host: str, port: int, names: Sequence[str] = ()) -> None:
        try:
            self._server = Server(host, port, _paths(folder), names)
        except OSError as error:
            reason = "another program uses it" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
            remedy = f"{reason}; choose another port in [watch], or 0 for none"
            raise InvalidInput("watch", f"{host}:{port}", remedy) from None
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name=f"watching {folder}", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the page."""
        return page_url(self.host, self.port)

    def wait(self) -> None:
        """Wait until it is closed, or until an interruption."""
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        """Stop serving; connections end within seconds."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_watch(folder: Path, table: WatchTable, names: Sequence[str] = ()) -> WatchServer | None:
    """The server that `[watch]` configures; None if its port is 0."""
    return WatchServer(folder, table.host, table.port, [*names, *table.names]) if table.port else None


def page_url(host: str, port: int) -> str:
    """The page's address, for a browser on the same machine.

    >>> page_url("0.0.0.0", 9095), page_url("::1", 80)
    ('http://127.0.0.1:9095/', 'http://[::1]:80/')
    """
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def is_served(host: str, port: int, deployment: str) -> bool:
    """Whether a deployment's page is served at an address; another one's, or another program, does not count."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = HTTPConnection(shown, port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/healthz")
        found = from_json(connection.getresponse().read(_HEALTH_BYTES), dict[str, Any])
    except (OSError, HTTPException, msgspec.DecodeError):
        return False
    finally:
        connection.close()
    return found.get("deployment") == deployment


def _paths(folder: Path) -> Paths:
    def page(name: str, kind: str) -> Callable[[], Response]:
        return lambda: Response(resources.files(__package__).joinpath(name).read_bytes(), f"{kind}; charset=utf-8")

    def metrics() -> Response:
        return Response(metrics_text(read_status(folder)).encode(), CONTENT_TYPE)

    def status() -> Response:
        found = read_status(folder) | {"events": last_events(folder), "name": folder.name}
        return Response(msgspec.json.encode(found), "application/json")

    def style() -> Response:
        shared = resources.files("ofms.drawing").joinpath("page.css").read_bytes()
        return Response(shared + resources.files(__package__).joinpath("watch.css").read_bytes(), "text/css")

    return {
        "/": page("watch.html", "text/html"),
        "/watch.js": page("watch.js", "text/javascript"),
        "/watch.css": style,
        "/status.json": status,
        "/metrics": metrics,
        "/healthz": lambda: health(folder),
    }


def health(folder: Path) -> Response:
    """200 while the server app runs or after it has reached its horizon, else 503; also if it is silent for long."""
    try:
        status = read_status(folder)
    except InvalidInput as error:
        found: dict[str, Any] = {"status": "unknown", "reason": error.remedy}
    else:
        state = "ok" if status["running"] else "finished" if status["finished"] else "stopped"
        found = {"status": state, "deployment": status["deployment"], "exchange": status["exchange"]}
        silent = time.time() - max(status["written"], _last_poll(folder))
        if state == "ok" and silent > _MOST_SILENT_SECONDS:
            found |= {"status": "silent", "reason": f"the server app has done nothing for {silent:.0f} s"}
    healthy = found["status"] in ("ok", "finished")
    code = HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
    return Response(msgspec.json.encode(found) + b"\n", "application/json", code)


def _last_poll(folder: Path) -> float:
    """When the server app last asked who is connected, which it does every few seconds."""
    try:
        return (folder / STATE / POLLED).stat().st_mtime
    except OSError:
        return 0.0


def last_events(folder: Path) -> list[str]:
    """The last lines of the event log."""
    try:
        with open(folder / EVENTS, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _EVENT_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return lines[-_EVENTS_SHOWN:]
