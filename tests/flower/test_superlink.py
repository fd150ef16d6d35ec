"""Which paths of the SuperLink are open to other machines, and how large requests may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from flwr.app import Error
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, ObjectTree
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ofms.coordinator.files import FLOWER
from ofms.flower import superlink as superlink_module
from ofms.flower.objects import make_reply
from ofms.flower.records import to_record
from ofms.flower.sizes import bound_file, write_bound
from ofms.flower.superlink import Gate, allowed
from tests.flower.messages import flower_message, transfer_of


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


def gated(read: list[int], bound: Path) -> Starlette:
    """A SuperLink behind the gate; it appends the sizes of the requests that it reads."""

    async def app(request: Request) -> PlainTextResponse:
        read.append(len(await request.body()))
        return PlainTextResponse("stored")

    routes = [Route(path, app, methods=["POST"]) for path in ("/v1/fleet/push-object", "/v1/fleet/push-messages")]
    return Starlette(routes=routes, middleware=[Middleware(Gate, bound=bound)])


def client_of(superlink: Starlette) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(superlink, client=("10.0.0.7", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://server/v1/fleet/")


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose SuperLink reads requests of up to 3 MiB."""
    monkeypatch.setenv("OFMS_EVENTS", str(tmp_path / "events.log"))
    # The same line is logged once per minute.
    monkeypatch.setattr(superlink_module, "_logged_at", {})
    (tmp_path / FLOWER).mkdir()
    write_bound(tmp_path, 3 * 2**19)
    return tmp_path


def test_large_requests_are_rejected_before_they_are_read(deployment: Path) -> None:
    read: list[int] = []

    async def in_pieces() -> AsyncIterator[bytes]:
        yield b"x"

    async def statuses() -> list[int]:
        async with client_of(gated(read, bound_file(deployment))) as client:
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
        "a node at 10.0.0.7 was rejected: it sent a request of 3145729 bytes" in (deployment / "events.log").read_text()
    )


def test_the_bound_follows_the_dictionary_without_a_restart(deployment: Path) -> None:
    read: list[int] = []

    async def statuses() -> list[int]:
        async with client_of(gated(read, bound_file(deployment))) as client:
            found = [await client.post("push-object", content=b"x" * 4 * 2**20)]
            write_bound(deployment, 2 * 2**20)
            found.append(await client.post("push-object", content=b"x" * 4 * 2**20))
            found.append(await client.post("push-object", content=b"x" * (4 * 2**20 + 1)))
            return [response.status_code for response in found]

    assert asyncio.run(statuses()) == [413, 200, 413]
    assert read == [4 * 2**20]


def chain(objects: int) -> ObjectTree:
    tree = ObjectTree(object_id="0" * 64)
    for number in range(1, objects):
        tree = ObjectTree(object_id=f"{number:064x}", children=[tree])
    return tree


def many(objects: int) -> ObjectTree:
    return ObjectTree(object_id="0" * 64, children=[ObjectTree(object_id=f"{each:064x}") for each in range(objects)])


PUSHES: dict[str, tuple[PushMessagesRequest, int]] = {
    "a node's reply": (
        PushMessagesRequest(message_object_trees=[make_reply(Message().SerializeToString(), b"x").tree]),
        200,
    ),
    "a SuperNode's reply": (
        PushMessagesRequest(message_object_trees=[transfer_of(flower_message(to_record(b"x"), "exchange")).tree]),
        200,
    ),
    "a SuperNode's error": (
        PushMessagesRequest(message_object_trees=[transfer_of(flower_message(Error(1, "x"), "exchange")).tree]),
        200,
    ),
    "another record": (PushMessagesRequest(message_object_trees=[many(2)]), 400),
    "thousands of objects": (PushMessagesRequest(message_object_trees=[many(5000)]), 400),
    "objects in objects": (PushMessagesRequest(message_object_trees=[chain(4)]), 400),
    "two messages": (PushMessagesRequest(messages_list=[Message(), Message()]), 400),
    "two trees": (PushMessagesRequest(message_object_trees=[chain(3), chain(2)]), 400),
}


@pytest.mark.parametrize("pushed", PUSHES)
def test_a_message_is_one_record_before_its_objects_are_registered(pushed: str, deployment: Path) -> None:
    """Flower registers each object that is announced, and then accepts its content."""
    request, status = PUSHES[pushed]
    body, read = request.SerializeToString(), list[int]()
    assert len(body) < 2**20

    async def push() -> int:
        async with client_of(gated(read, bound_file(deployment))) as client:
            return (await client.post("push-messages", content=body)).status_code

    assert asyncio.run(push()) == status
    assert read == ([len(body)] if status == 200 else [])
    rejected = "a node at 10.0.0.7 was rejected: it announced other objects than one record"
    events = deployment / "events.log"
    assert (rejected in events.read_text()) if status == 400 else not events.exists()
