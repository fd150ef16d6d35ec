"""Which paths of the SuperLink are open to other machines, and how large requests may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ofms.flower.superlink import Gate, allowed


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/runtime/pull-task-input", "/docs", "/v1/fleetly", "/v1/fleet/../control/x"],
)
def test_other_paths_than_the_fleets_are_for_this_machine_alone(path: str) -> None:
    assert not allowed(path, ("192.168.0.9", 1))
    assert not allowed(path, None)
    assert allowed(path, ("127.0.0.1", 1))


def test_the_fleets_paths_are_open_to_other_machines() -> None:
    assert allowed("/v1/fleet/activate-node", ("192.168.0.9", 1))


def test_large_requests_are_rejected_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFMS_EVENTS", str(tmp_path / "events.log"))
    read = []

    async def app(request: Request) -> PlainTextResponse:
        read.append(len(await request.body()))
        return PlainTextResponse("stored")

    routes = [Route(path, app, methods=["POST"]) for path in ("/v1/fleet/push-object", "/v1/fleet/push-messages")]
    superlink = Starlette(routes=routes, middleware=[Middleware(Gate, largest=3 * 2**20)])

    async def in_pieces() -> AsyncIterator[bytes]:
        yield b"x"

    async def statuses() -> list[int]:
        transport = httpx.ASGITransport(superlink, client=("10.0.0.7", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://server/v1/fleet/") as client:
            responses = [
                await client.post("push-object", content=b"x" * 3 * 2**20),
                await client.post("push-object", content=b"x" * (3 * 2**20 + 1)),
                await client.post("push-messages", content=b"x" * 2 * 2**20),
                await client.post("push-object", content=in_pieces()),
            ]
            return [response.status_code for response in responses]

    assert asyncio.run(statuses()) == [200, 413, 413, 413]
    assert read == [3 * 2**20]
    assert (
        "a node at 10.0.0.7 was rejected: it sent a request of 3145729 bytes" in (tmp_path / "events.log").read_text()
    )
