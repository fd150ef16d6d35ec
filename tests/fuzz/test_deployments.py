"""Files of a deployment: whatever they hold, commands work or refuse it in one line, and the server starts or not."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.storage.checksums import without_checksum
from ofms.storage.envelope import decode
from tests.fuzz.amounts import inputs
from tests.fuzz.fleets import changed_message
from tests.fuzz.holding import command, refusing
from tests.fuzz.mutations import as_toml, mutated, mutated_bytes, mutated_text
from tests.fuzz.places import Place
from tests.fuzz.tensor_files import mutated_tensors

COMMANDS: list[list[str]] = [
    ["deploy", "status", "fleet"],
    ["deploy", "status", "fleet", "--json"],
    ["deploy", "freeze", "fleet"],
    ["deploy", "rollback", "fleet", "--to", "1"],
    ["deploy", "export", "fleet", "exported"],
    ["deploy", "keys", "fleet", "--device", "new=5"],
    ["deploy", "keys", "fleet", "--revoke", "device-0"],
]


@st.composite
def changed_toml(draw: st.DrawFn, path: Path) -> bytes:
    content = path.read_bytes()
    values = tomllib.loads(content.decode())
    return draw(mutated(values).map(as_toml) | mutated_text(content.decode()).map(str.encode) | mutated_bytes(content))


def use(work: Path, arguments: list[str]) -> None:
    """Run a command of the deployment; then start its server, which closes an exchange without answers."""
    command(*arguments, writes=[work])
    with refusing(work):
        persistence = PersistentCoordinator(Deployment(work / "fleet"))
        try:
            persistence.run_commands()
            persistence.save()
        finally:
            persistence.close()


@inputs("server.toml")
@given(st.data())
def test_any_server_configuration_is_used_or_refused(place: Place, data: st.DataObject) -> None:
    work = place.fresh("fleet")
    (work / "fleet" / "server.toml").write_bytes(data.draw(changed_toml(place.valid / "fleet" / "server.toml")))
    use(work, data.draw(st.sampled_from(COMMANDS)))


@inputs("devices.toml")
@given(st.data())
def test_any_roster_is_used_or_refused(place: Place, data: st.DataObject) -> None:
    work = place.fresh("fleet")
    (work / "fleet" / "devices.toml").write_bytes(data.draw(changed_toml(place.valid / "fleet" / "devices.toml")))
    use(work, data.draw(st.sampled_from(COMMANDS)))


@inputs("device.toml")
@given(st.data())
def test_any_device_configuration_is_used_or_refused(place: Place, data: st.DataObject) -> None:
    work = place.fresh("fleet")
    path = Path("fleet", "devices", "device-0", "device.toml")
    (work / path).write_bytes(data.draw(changed_toml(place.valid / path)))
    with pytest.MonkeyPatch.context() as patch:
        # Instead of starting a SuperNode.
        patch.setattr("ofms.flower.processes.keep_node", lambda *given: None)
        command("deploy", "device", path.parent, "--store", "store", writes=[work])


@st.composite
def state_file(draw: st.DrawFn, folder: Path) -> tuple[Path, bytes]:
    """A file of the server's state, or a command to it, and its changed content."""
    kind = draw(st.sampled_from(["checkpoint", "checkpoint", "models", "status", "devices", "command"]))
    if kind == "checkpoint":
        path = folder / "state" / "checkpoint.safetensors"
        return path, draw(changed_message(decode(without_checksum(path.read_bytes()))))
    if kind == "models":
        path = draw(st.sampled_from(sorted((folder / "state" / "models").iterdir())))
        return path, draw(mutated_tensors(without_checksum(path.read_bytes())) | mutated_bytes(path.read_bytes()))
    if kind == "status":
        path = folder / "status.json"
        return path, draw(mutated(json.loads(path.read_bytes())).map(_json) | mutated_bytes(path.read_bytes()))
    if kind == "devices":
        return folder / "state" / "devices.toml", draw(changed_toml(folder / "state" / "devices.toml"))
    orders: dict[str, Any] = {"do": "rollback", "to": 1}
    content = mutated(orders).map(_json) | mutated_bytes(_json(orders)) | st.just(b"[" * 3000)
    return folder / "commands" / "00000000000000000001.json", draw(content)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@inputs("server state")
@given(st.data())
def test_any_state_is_used_or_refused(place: Place, data: st.DataObject) -> None:
    path, content = data.draw(state_file(place.valid / "fleet"))
    work = place.fresh("fleet")
    changed = work / path.relative_to(place.valid)
    changed.parent.mkdir(exist_ok=True)
    changed.write_bytes(content)
    if path.parent.name == "state" and path.name == "devices.toml":
        (work / "fleet" / "devices.toml").write_text("broken")
    use(work, data.draw(st.sampled_from(COMMANDS)))
