"""What a SuperLink keeps of messages, in Flower's own database: nothing of those that nobody needs."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_objectstore_linkstate_factories
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.runtime import runtime_handlers

from ofms.flower.transport import GridTransport
from tests.memory_transport import FakeClock

CONTENT = b"models" * 1000


class LocalSuperLink:
    """The runtime API of a SuperLink in this process."""

    def __init__(self, database: Path) -> None:
        _, factory = get_objectstore_linkstate_factories(str(database), NoOpFederationManager())
        self.state: Any = factory.state()
        self.run = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        self.task: Any = SimpleNamespace(run_id=self.run)
        self.node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, b"key", 30)
        self._client = SimpleNamespace()

    def __getattr__(self, name: str) -> Any:
        handlers = {
            "PushMessages": runtime_handlers.push_messages,
            "PullMessages": runtime_handlers.pull_messages,
            "PushObject": runtime_handlers.push_object,
            "ConfirmMessageReceived": runtime_handlers.confirm_message_received,
        }

        def call(request: Any) -> Any:
            if name == "PushObject":
                # As it is sent: its content is in parts.
                request = PushObjectRequest.FromString(bytes(request.SerializeToString(deterministic=True)))
            return handlers[name](request, self.state, self.task)

        return call

    @property
    def kept(self) -> tuple[int, int, int]:
        """Objects, messages and replies."""
        return len(self.state.object_store), self.state.num_message_ins(), self.state.num_message_res()


# Of Flower's migrations of its database.
@pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")
@pytest.mark.parametrize("known", [True, False], ids=["lost", "forgotten"])
def test_a_grant_to_a_node_that_went_away_is_deleted(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink, clock = LocalSuperLink(tmp_path / "superlink.db"), FakeClock()
    for name, value in (("_run_id", superlink.run), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    grid = HttpGrid(token="a task's")
    grid._client, grid._run = superlink, SimpleNamespace(run_id=superlink.run)  # type: ignore[assignment]
    monkeypatch.setattr(HttpGrid, "run", property(lambda own: own._run))
    transport = GridTransport(grid, lambda: 10**6, lambda largest: None, clock)
    superlink.state.activate_node(superlink.node, 30)
    message = transport.send(superlink.node, "exchange", CONTENT, wait=0.2, lifetime=0.4)
    assert message is not None
    assert superlink.kept == (3, 1, 0)
    superlink.state.deactivate_node(superlink.node)
    if known:
        (reply,) = transport.receive([message])
        assert reply.lost
    # Flower has the system's clock.
    time.sleep(0.5)
    clock.sleep(0.5)
    transport.receive([])
    assert superlink.kept == (0, 0, 0)
