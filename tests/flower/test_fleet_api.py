"""A node's requests to the SuperLink, through httpx and Flower's client."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from ofms.flower.fleet_api import _Signing


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
