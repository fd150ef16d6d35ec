"""Flower's SuperNode, whose runtime API serves this user's processes alone.

python -m ofms.flower.supernode [the options of flower-supernode]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn.config
from flwr.supernode.cli import flower_supernode
from starlette.responses import PlainTextResponse

from ofms.flower.local_users import is_own_connection

Application = Callable[[Any, Any, Any], Awaitable[None]]


class OwnUserOnly:
    """Middleware: rejects requests of other users and of other machines."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            client, server = scope.get("client"), scope.get("server")
            if client is None or server is None or not is_own_connection(client, server):
                await PlainTextResponse("allowed only for the node's own user", status_code=403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def main() -> None:
    own_load = uvicorn.config.Config.load

    def load(self: uvicorn.config.Config) -> None:
        own_load(self)
        self.loaded_app = OwnUserOnly(self.loaded_app)

    uvicorn.config.Config.load = load  # type: ignore[method-assign]
    flower_supernode()


if __name__ == "__main__":
    main()
