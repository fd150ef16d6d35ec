"""Errors between processes: one that ended, a connection that broke, and errors that have another reason."""

from __future__ import annotations

import pytest

from ofms.compute.process_group import _connected
from ofms.core.errors import PeerEnded, ProcessEnded


@pytest.mark.parametrize(
    ("said", "wanted", "line"),
    [
        (
            "[pair.cc:553] Connection closed by peer [127.0.0.1]:51620. This is typically caused by a remote worker",
            PeerEnded,
            "another process of the run ended",
        ),
        ("[pair.cc:600] Read error [10.0.0.2]:4: Connection reset by peer", PeerEnded, "another process of the run"),
        ("[pair.cc:272] writev [10.0.0.2]:4: Broken pipe", PeerEnded, "another process of the run ended"),
        (
            "[pair.cc:600] Read error [10.0.0.2]:4: No route to host",
            ProcessEnded,
            "the connection to another process of the run broke: [pair.cc:600] Read error [10.0.0.2]:4: No route",
        ),
        (
            "NCCL error\nncclRemoteError: remote process exited or there was a network error",
            ProcessEnded,
            "the connection to another process of the run broke: NCCL error ncclRemoteError: remote process exited",
        ),
        ("The size of tensor a (3) must match the size of tensor b (4)", RuntimeError, "The size of tensor a (3)"),
    ],
)
def test_only_a_process_that_ended_is_said_to_have_ended(said: str, wanted: type[Exception], line: str) -> None:
    with pytest.raises((RuntimeError, ProcessEnded)) as error, _connected():
        raise RuntimeError(said)
    assert type(error.value) is wanted
    assert str(error.value).startswith(line)
