"""The control API of a SuperLink: `flwr supernode register`, `flwr run` and `flwr ls` without a subprocess."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from ofms.flower.app import FILES


class Control:
    """A client of the control API of a SuperLink on this machine."""

    def __init__(self, host: str, port: int, authority: Path) -> None:
        self._client = ControlHttpClient.from_server_address(
            server_address=f"{host}:{port}",
            insecure=False,
            root_certificates=authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def nodes(self) -> dict[bytes, int]:
        """Ids of registered nodes by public key."""
        found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return {bytes(node.public_key).strip(): int(node.node_id) for node in found if node.status != "unregistered"}

    def register(self, key: bytes, name: str) -> int:
        """Register the node with a public key; return its id."""
        return int(self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id)

    def unregister(self, node: int) -> None:
        """Unregister a node."""
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def start(self, deployment: Path) -> int:
        """Start the server app; return the run's id."""
        content, _ = build_fab_from_files({name: text.encode() for name, text in FILES.items()})
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        config = user_config_to_proto({"deployment": str(deployment)})
        return int(self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab), override_config=config)).run_id)

    def stop(self, run: int) -> None:
        """Stop a run."""
        self._client.StopRun(StopRunRequest(run_id=run))

    def stop_all(self) -> None:
        """Stop the runs of earlier servers that were killed: a SuperLink would start some of them again.

        Flower deletes the messages of a run when it is stopped, or listed after its end.
        """
        for run, each in self._client.ListRuns(ListRunsRequest()).run_dict.items():
            if each.status.status != Status.FINISHED:
                # It may end meanwhile.
                with contextlib.suppress(httpx.HTTPStatusError):
                    self.stop(run)

    def ended(self, run: int) -> str | None:
        """How a run ended, or None while it is running."""
        status = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        if status.status != Status.FINISHED:
            return None
        return "completed" if status.sub_status == SubStatus.COMPLETED else f"{status.sub_status}: {status.details}"
