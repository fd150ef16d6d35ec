"""The local interface of a SuperNode serves the processes of its own user."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse

from ofms.flower.processes import free_port
from ofms.flower.supernode import OwnUserOnly
from tests.other_user import run_as_nobody


async def application(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("a task")(scope, receive, send)


def test_other_users_are_refused() -> None:
    port = free_port()
    config = uvicorn.Config(OwnUserOnly(application), port=port, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        asked = ["curl", "--silent", f"http://127.0.0.1:{port}/v1/runtime/acquire-task"]
        assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "a task"
        assert run_as_nobody(*asked).stdout == "allowed only for the node's own user"
    finally:
        server.should_exit = True
        thread.join()
