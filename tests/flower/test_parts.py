"""Contents in parts, against protocol buffers and httpx."""

from __future__ import annotations

import httpx
from hypothesis import given
from hypothesis import strategies as st

from ofms.flower.parts import Parts, Request
from ofms.flower.private import Node, PushObjectRequest

# About the lengths where an encoded length takes another byte.
LENGTHS = st.one_of(st.integers(0, 300), st.integers(16_300, 16_500), st.integers(65_500, 131_100))


@given(LENGTHS, st.text(max_size=5), st.integers(0, 2**63 - 1))
def test_a_request_with_a_content_in_parts_is_the_request(length: int, session: str, run: int) -> None:
    content = bytes(number % 251 for number in range(length))
    half = length // 2
    request = PushObjectRequest(node=Node(node_id=7), run_id=run, session_id=session, object_id="an id")
    parts = Request(request, "object_content", Parts(content[:half], content[half:])).SerializeToString()
    request.object_content = content
    assert PushObjectRequest.FromString(bytes(parts)) == request
    assert len(parts) == len(bytes(parts)) == request.ByteSize() + (not length) * 2


def test_httpx_sends_parts_with_their_length_and_can_repeat_them() -> None:
    parts = Parts(b"head", bytes(200_000), b"", b"tail")
    received: list[tuple[str | None, bytes]] = []

    def receive(request: httpx.Request) -> httpx.Response:
        received.append((request.headers.get("content-length"), request.read()))
        assert "transfer-encoding" not in request.headers
        return httpx.Response(200)

    with httpx.Client(transport=httpx.MockTransport(receive)) as client:
        for _ in range(2):
            client.post("https://superlink", content=parts)
    assert received == 2 * [("200008", b"head" + bytes(200_000) + b"tail")]
    assert max(map(len, parts)) == 2**16, "no part of a request is a copy of the content"
