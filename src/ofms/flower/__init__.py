"""The transport of a fleet on Flower: nodes, two apps, their processes, the access check of the control API.

Some of Flower's modules that this package uses may change with any version, so another version is rejected here.
"""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from pathlib import Path

from ofms.core.errors import InvalidInput

FLOWER_VERSION = "1.41.0"


def require_flower(needed: str = FLOWER_VERSION) -> None:
    """Reject a missing or another version of Flower."""
    specification = PathFinder.find_spec("flwr")
    origin = None if specification is None else specification.origin
    if origin is not None and (Path(origin).parents[1] / f"flwr-{needed}.dist-info").is_dir():
        return
    # Not on a device as it should be: it would take 1 MiB of its memory.
    from importlib.metadata import PackageNotFoundError, version

    remedy = f"this version of ofms needs flwr=={needed}: pip install 'ofms[flower]'"
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise InvalidInput("flwr", "not installed", remedy) from None
    if found != needed:
        raise InvalidInput("flwr", found, remedy)


require_flower()
# Flower reads these variables on import.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
