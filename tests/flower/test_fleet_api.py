"""A node's requests to the SuperLink, through httpx and Flower's client."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest
import uvicorn.config
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink import extensions
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient

from ofms.flower.fleet_api import _bound_responses, _Signing
from ofms.flower.http import silence_requests
from tests.memory_taken import bytes_taken


def test_contents_are_freed_without_a_garbage_collection() -> None:
    """A request and its response refer to each other; each may have the size of all models held."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=httpx.ByteStream(b"answer")))
    enabled = gc.isenabled()
    gc.disable()
    try:
        with httpx.Client(transport=transport) as client:
            signing = _Signing(ec.generate_private_key(ec.SECP384R1()), b"public")
            context = SimpleNamespace(request=client.build_request("POST", "http://superlink/", content=b"question"))
            response = signing.intercept(context, lambda given: client.send(given.request))
            assert response.content == b"answer"
            left = [weakref.ref(response), weakref.ref(context.request)]
            del response, context
            assert [each() for each in left] == [None, None]
    finally:
        if enabled:
            gc.enable()


def test_a_response_is_in_memory_once() -> None:
    size, part = 2**22, bytes(2**16)

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            return (bytes(bytearray(part)) for _ in range(size // len(part)))

    headers = {"content-length": str(size)}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, headers=headers, stream=Body()))
    with httpx.Client(transport=transport) as client:
        _bound_responses(SimpleNamespace(_client=client), size)
        client.post("http://superlink")
        assert size <= bytes_taken(lambda: client.post("http://superlink").content) < 1.4 * size


def test_requests_are_logged_but_those_of_threads_that_poll(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="httpx")
    transport = httpx.MockTransport(lambda request: httpx.Response(200))

    def poll(path: str, *, quiet: bool) -> None:
        if quiet:
            silence_requests()
        with httpx.Client(transport=transport) as client:
            client.post(f"http://superlink/{path}")

    for path, quiet in (("node", True), ("program", False)):
        thread = threading.Thread(target=poll, args=(path,), kwargs={"quiet": quiet})
        thread.start()
        thread.join()
    assert ["program" in record.getMessage() for record in caplog.records] == [True]


def test_flower_has_the_private_parts_that_are_used_without_an_import() -> None:
    """They may change with the pinned version; a missing import is named by itself."""
    for client in (FleetHttpClient, RuntimeHttpClient):
        made = client("https://superlink")
        assert isinstance(made._client, httpx.Client)
        made.close()
    assert isinstance(vars(HttpGrid)["_runtime_client"], property)
    assert HttpGrid(token="a task's").node.node_id
    assert callable(extensions.get_middleware)
    assert callable(uvicorn.config.Config.load)
    for name in ("PullMessages", "PullObject", "ConfirmMessageReceived"):
        assert callable(getattr(RuntimeHttpClient, name))
