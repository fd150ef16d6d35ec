"""The Flower app of a deployment: two modules that import the installed package on each side."""

from __future__ import annotations

from pathlib import Path

from ofms.core.version import __version__
from ofms.storage.files import require_writable, write_whole

_PROJECT = f"""\
[project]
name = "ofms-app"
version = "{__version__}"
description = "Online federated model selection and fine-tuning"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "ofms"

[tool.flwr.app.components]
serverapp = "ofms_app.server:app"
clientapp = "ofms_app.client:app"

[tool.flwr.app.config]
deployment = ""
"""

FILES = {
    "pyproject.toml": _PROJECT,
    "README.md": "Started by `ofms deploy server`, or by `flwr run` with the deployment's folder in `deployment`.\n",
    "ofms_app/__init__.py": "",
    "ofms_app/server.py": "from ofms.flower import server_app\n\napp = server_app.app\n",
    "ofms_app/client.py": "from ofms.flower import client_app\n\napp = client_app.app\n",
}


def write_app(folder: Path) -> None:
    """Write the app to a folder, for `flwr run`."""
    for name, content in FILES.items():
        require_writable((folder / name).parent)
        write_whole(folder / name, content.encode())
