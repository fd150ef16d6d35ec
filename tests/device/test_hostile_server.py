"""A hostile server's messages: a device runs only what its user trusted, and writes only into its store."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.device.device import Device
from ofms.device.mailbox import Mailbox
from ofms.storage.envelope import Envelope, decode, encode
from tests.devices import budgets_for, coordinator_for, problem

CLIMBING = [
    "../../../escaped",
    "/escaped",
    "..",
    ".",
    "a/../../../escaped",
    "C:\\escaped",
    "~/escaped",
    "\x00",
    "%2e%2e/x",
]
TRAP = """
from pathlib import Path
from torch import nn

Path(__file__).with_name("ran").touch()


class Net(nn.Linear):
    pass


algorithm = network = Net
"""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported, and leaves a file if anybody does."""
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "trapped.py").write_text(TRAP)
    monkeypatch.syspath_prepend(folder)
    yield folder / "ran"
    sys.modules.pop("trapped", None)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    (tmp_path / "home").mkdir()
    with Device(tmp_path / "home" / "store", budget=int(budgets_for(problem()[0])[0]), mail=False) as opened:
        yield opened


def welcome() -> Envelope:
    return decode(coordinator_for(problem()[0], "ofms-ft").welcome(0))


def joined(device: Device) -> Envelope:
    """Let a device join a fleet; the grant of its first exchange, which sends models."""
    coordinator = coordinator_for(problem()[0], "ofms-ft")
    device.receive(coordinator.welcome(0))
    coordinator.receive(0, decode(device.collect() or b""))
    return decode(coordinator.open([0])[0])


def first_model(grant: Envelope) -> str:
    return min(key for key in grant.arrays if key.startswith("model."))


def changed(envelope: Envelope, place: tuple[str | int, ...], value: Any) -> bytes:
    """The message with another value at a place in its values."""
    values: Any = dict(envelope.values)
    target: Any = values
    for key in place[:-1]:
        target[key] = target[key].copy()
        target = target[key]
    target[place[-1]] = value
    return encode(Envelope(envelope.kind, values, envelope.arrays))


def files_around(device: Device) -> set[Path]:
    """The files beside the store and above it."""
    root = device.store.parents[1]
    return {path for path in root.rglob("*") if device.store not in path.parents}


CODE = [
    *("trapped:network", "trapped.network", "trapped", "os:system", "builtins:exec", "builtins:eval"),
    *("subprocess:Popen", "torch:load", "torch.hub:load", "pickle:loads", "importlib:import_module"),
    *("ofms.models.zoo:build_module", "ofms.plugins:load_object", "torch.nn:Linear", "mlp:x", "__main__:x"),
    *("trapped:network.__init__", "trapped:__builtins__", "trapped\n:network", " trapped:network", "ｔrapped:network"),
    *("policies:algorithm", "ofms.policies.mab:algorithm", "../trapped:network", "trapped:network:x", ""),
]


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("place", [("models", 1, "architecture"), ("policy", "name")])
def test_code_that_a_welcome_names_is_not_run(
    name: str, place: tuple[str | int, ...], device: Device, trap: Path
) -> None:
    before = files_around(device)
    with pytest.raises(InvalidInput):
        device.receive(changed(welcome(), place, name))
    assert not trap.exists()
    assert "trapped" not in sys.modules
    assert device.collect() is None, "it has not joined"
    assert files_around(device) == before


@pytest.mark.parametrize("name", ["trapped:network", "os:system"])
def test_a_grant_names_no_code(name: str, device: Device, trap: Path) -> None:
    grant = joined(device)
    values = {**grant.values, "architecture": name, "policy": name, "models": [{"architecture": name}], "code": name}
    device.receive(encode(Envelope("grant", values, grant.arrays)))
    assert not trap.exists()
    assert device.ready, "what it does not know, it ignores"


@pytest.mark.parametrize("kind", ["run", "exec", "update", "snapshot", "checkpoint", "request", "../welcome", ""])
def test_another_kind_of_message_is_refused(kind: str, device: Device) -> None:
    with pytest.raises(InvalidInput, match="a device accepts only a welcome or a grant"):
        device.receive(encode(Envelope(kind, dict(welcome().values))))


@pytest.mark.parametrize("name", CLIMBING)
def test_no_name_leads_out_of_the_store(name: str, device: Device) -> None:
    """Names of deployments, models, openings and arrays are not used as paths."""
    before = files_around(device)
    for place in (("deployment",), ("revision",), ("models", 0, "name"), ("models", 0, "trainable")):
        coordinator = coordinator_for(problem()[0], "ofms-ft")
        value: Any = [name] if place[-1] == "trainable" else name
        _ignoring(device, changed(decode(coordinator.welcome(0)), place, value))
    grant = joined(device)
    arrays: dict[str, AnyArray] = {**grant.arrays, f"model.{name}": grant.arrays[first_model(grant)]}
    with pytest.raises(InvalidInput):
        device.receive(encode(Envelope("grant", grant.values, arrays)))
    device.receive(encode(Envelope("grant", {**grant.values, "opening": name}, grant.arrays)))
    assert device.ready
    assert files_around(device) == before
    assert {path.suffix for path in (device.store / "models").iterdir()} == {".safetensors"}


@pytest.mark.parametrize(("place", "value"), [(("places",), [0, 1]), (("policy", "offset_memories"), [1.0, 0.5])])
def test_a_second_welcome_of_other_models_or_offsets_is_refused(
    place: tuple[str, ...], value: Any, device: Device
) -> None:
    """Its state would not fit them: the next label failed."""
    coordinator = coordinator_for(problem()[0], "ofms-ft")
    first = coordinator.welcome(0)
    device.receive(first)
    later = decode(changed(decode(first), ("exchange",), 3))
    with pytest.raises(InvalidInput, match="differ from those of this deployment before"):
        device.receive(changed(later, place, value))
    device.receive(encode(later))


@pytest.mark.parametrize(("name", "value"), [("own_model", 999), ("uploaded", [0, 999])])
def test_a_welcome_that_names_a_model_that_is_not_in_the_dictionary_is_refused(
    name: str, value: Any, device: Device
) -> None:
    welcome = coordinator_for(problem()[0], "ofms-ft").welcome(0)
    remedy = rf"^message = {name.split('_')[0]} model 999: the dictionary has \d+ models"
    with pytest.raises(InvalidInput, match=remedy):
        device.receive(changed(decode(welcome), ("policy", name), value))
    device.receive(welcome)


@pytest.mark.parametrize("exchange", ["../../escaped", -1, 10**30, 1.5, None, [1], {"a": 1}, "0x1"])
def test_a_number_that_is_none_is_not_taken(exchange: Any, device: Device) -> None:
    grant = joined(device)
    before = files_around(device)
    _ignoring(device, encode(Envelope("grant", {**grant.values, "exchange": exchange}, grant.arrays)))
    assert not device.ready
    assert files_around(device) == before


def test_the_carrier_writes_only_into_the_store(tmp_path: Path) -> None:
    """Whatever a message says, the carrier names the file itself."""
    mailbox = Mailbox(tmp_path / "home" / "store")
    name = mailbox.deliver(encode(Envelope("../../escaped", {"exchange": 0, "deployment": "../../escaped"})))
    assert name.isdecimal()
    assert {path.name for path in tmp_path.iterdir()} == {"home"}
    assert {path.name for path in (tmp_path / "home" / "store").rglob("*")} == {"inbox", f"{name}.safetensors"}


@pytest.mark.parametrize(
    ("options", "architecture"),
    [
        ({"inputs": 3, "hidden": [8, 8], "outputs": 1, "command": "touch escaped"}, "mlp"),
        ({"inputs": "__import__('os').system('x')", "hidden": [8], "outputs": 1}, "mlp"),
        ({"inputs": 3, "hidden": "88", "outputs": 1}, "mlp"),
        ({"inputs": -3, "hidden": [8], "outputs": 1}, "mlp"),
        ({}, "vgg"),
        (["inputs"], "mlp"),
    ],
)
def test_faulty_options_are_refused(options: Any, architecture: str, device: Device) -> None:
    envelope = welcome()
    models = [dict(model) for model in envelope.values["models"]]
    models[0] |= {"architecture": architecture, "options": options}
    with pytest.raises(InvalidInput):
        device.receive(changed(envelope, ("models",), models))
    assert device.collect() is None


@pytest.fixture(scope="module")
def joining(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """A device that gets one welcome after the other."""
    folder = tmp_path_factory.mktemp("joining") / "home"
    with Device(folder / "store", budget=int(budgets_for(problem()[0])[0]), mail=False) as opened:
        yield opened


WELCOME = welcome()


@settings(max_examples=100)
@given(data=st.data())
def test_no_value_of_a_welcome_runs_or_writes_anything(data: st.DataObject, joining: Device) -> None:
    """Any value, anywhere in a welcome."""
    place: Any = data.draw(st.sampled_from(_places(WELCOME.values)))
    scalars = st.none() | st.booleans() | st.integers(-9, 2**10) | st.floats() | st.sampled_from([*CODE, *CLIMBING])
    values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.sampled_from(CODE), scalars, max_size=2)
    before = files_around(joining)
    # As the thread that receives messages does, whatever the reason.
    with contextlib.suppress(Exception):
        joining.receive(changed(WELCOME, place, data.draw(values)))
    assert files_around(joining) == before
    assert "trapped" not in sys.modules


def _places(values: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """All places in nested values, except lists of numbers."""
    items: Any = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    found = []
    for key, value in items:
        found += [(*place, key), *_places(value, (*place, key))]
    return found


def _ignoring(device: Device, content: bytes) -> None:
    """A message that may be refused, in no other way."""
    with contextlib.suppress(InvalidInput):
        device.receive(content)


def test_a_grant_with_other_tensors_than_its_network_is_refused(device: Device) -> None:
    grant = joined(device)
    name = first_model(grant)
    for content in (b"", b"\x80\x04\x95cposix\nsystem\n", grant.arrays[name].tobytes()[:-4]):
        arrays = {**grant.arrays, name: np.frombuffer(content, dtype=np.uint8)}
        with pytest.raises(InvalidInput):
            device.receive(encode(Envelope("grant", grant.values, arrays)))
    assert not device.ready
