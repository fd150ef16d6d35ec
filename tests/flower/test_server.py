"""The server app's bookkeeping of letters, where the network does what no fleet on one machine does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import EVENTS
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.flower.server_app import _EXCHANGE, Server
from tests.coordinator.test_persistence import make_fleet


class Refusing:
    """A grid whose SuperLink takes no message: Flower answers with None, or with nothing where one is too large."""

    def __init__(self, answer: list[Any]) -> None:
        self.answer = answer

    def push_messages(self, messages: Iterable[Message]) -> list[Any]:
        return self.answer


@pytest.mark.parametrize("answer", [[None], []])
def test_a_grant_that_is_not_taken_goes_out_again_and_counts_for_nobody(
    answer: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    folder = make_fleet(tmp_path / "fleet")
    keeper = PersistentCoordinator(Deployment(folder))
    keeper.nodes = {0: 11}
    server = Server(Refusing(answer), keeper)  # type: ignore[arg-type]
    letter = keeper.welcome(0)
    server._send(0, _EXCHANGE, letter, 5.0)
    assert not server.waiting
    assert [sent.client for sent in server.lost] == [0]
    assert "device-0 (node 11) did not get its letter" in (folder / EVENTS).read_text()
    server._invite()
    assert (folder / EVENTS).read_text().count("did not get its letter") == 1, "not before a while"
    assert keeper.refusals == []
    keeper.close()
