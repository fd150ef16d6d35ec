"""Flower's ServerApp: the coordinator's scheduler on a grid."""

from __future__ import annotations

import logging
import time

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.scheduler import Scheduler
from ofms.core.errors import InvalidInput
from ofms.flower.sizes import largest_reply, write_bound
from ofms.flower.transport import GridTransport

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Continue from the deployment's checkpoint."""
    persistence = _open(Deployment(str(context.run_config["deployment"])))
    try:
        coordinator = persistence.coordinator
        transport = GridTransport(
            grid,
            lambda: largest_reply(coordinator.fleet.catalogue),
            lambda largest: write_bound(persistence.folder, largest),
        )
        Scheduler(transport, persistence).run()
    except Exception as error:
        persistence.log_event(f"the server failed: {type(error).__name__}: {error}", logging.ERROR)
        raise
    finally:
        persistence.close()


def _open(deployment: Deployment) -> PersistentCoordinator:
    """Open the checkpoint; wait until a server that was killed has released it."""
    until = time.monotonic() + deployment.config.travel
    while True:
        try:
            return PersistentCoordinator(deployment)
        except InvalidInput as error:
            if error.field != "folder" or time.monotonic() >= until:
                raise
            time.sleep(1.0)
