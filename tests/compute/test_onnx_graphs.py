"""A device runs graphs of known operations and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import ofms
from ofms.compute.onnx_client import Graph
from ofms.compute.onnx_graphs import MOST_BYTES, require_plain


def graph(nodes: list[Any], initializers: list[Any] | None = None) -> Any:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    return helper.make_graph(nodes, "net", [x], [y], initializers or [])


def model(nodes: list[Any], **given: Any) -> Any:
    opsets = [helper.make_opsetid("", 20), *given.pop("opsets", [])]
    made = helper.make_model(graph(nodes, given.pop("initializers", None)), opset_imports=opsets, **given)
    made.ir_version = 10
    return made


def relu(**given: Any) -> Any:
    return helper.make_node("Relu", ["x"], ["y"], **given)


def in_a_file(path: Path) -> Any:
    """A graph that adds a tensor whose values are in a file."""
    path.write_bytes(b"\0" * 8)
    tensor = TensorProto(name="secret", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", path.name), ("offset", "0"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return model([helper.make_node("Add", ["x", "secret"], ["y"])], initializers=[tensor])


def branches() -> Any:
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "then", [], list(graph([]).output))
    return model([helper.make_node("If", ["x"], ["y"], then_branch=then, else_branch=then)])


def functions() -> Any:
    body = helper.make_function("own", "f", ["x"], ["y"], [relu()], [helper.make_opsetid("", 20)])
    return model([relu()], functions=[body])


def open_graph(content: bytes) -> Graph:
    """What a device does with a graph: without one in them, bytes can be a valid message, but not for ONNX Runtime."""
    require_plain("net", content)
    return Graph("net", content)


def test_a_plain_graph_is_accepted() -> None:
    assert open_graph(model([relu()]).SerializeToString()).outputs == ["y"]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: model([relu(domain="com.microsoft")]), "operations of b'com.microsoft'"),
        (lambda: model([relu()], opsets=[helper.make_opsetid("own", 1)]), "operations of b'own'"),
        (lambda: model([helper.make_node("Loop", ["", "x"], ["y"])]), "operation 'Loop'"),
        (lambda: model([helper.make_node("RandomUniformLike", ["x"], ["y"])]), "operation 'RandomUniformLike'"),
        (lambda: model([helper.make_node("", ["x"], ["y"])]), "operation ''"),
        (branches, "field 6 of its attribute"),
        (functions, "field 25 of its model"),
    ],
)
def test_other_graphs_are_rejected(made: Any, reason: str) -> None:
    with pytest.raises(ofms.InvalidInput, match=f"graph = net: this device does not run it: {reason}"):
        require_plain("net", made().SerializeToString())


def test_a_tensor_in_a_file_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = in_a_file(tmp_path / "secret").SerializeToString()
    with pytest.raises(ofms.InvalidInput, match=r"field 1[34] of its tensor"):
        require_plain("net", content)
    hidden = model([helper.make_node("Constant", [], ["y"], value=in_a_file(tmp_path / "secret").graph.initializer[0])])
    with pytest.raises(ofms.InvalidInput, match=r"field 1[34] of its tensor"):
        require_plain("net", hidden.SerializeToString())


def test_a_graph_that_is_too_large_is_rejected() -> None:
    with pytest.raises(ofms.InvalidInput, match="larger than"):
        require_plain("net", bytes(MOST_BYTES + 1))


@given(st.binary(max_size=200))
@example(b"\x3a\xff\xff\xff\xff\x0f")
@example(b"\xff" * 20)
def test_bytes_that_are_no_graph_are_rejected_in_one_line(content: bytes) -> None:
    with pytest.raises(ofms.InvalidInput) as raised:
        open_graph(content)
    assert "\n" not in str(raised.value)


@settings(max_examples=200)
@given(st.data())
def test_whatever_is_accepted_has_only_known_operations(data: st.DataObject) -> None:
    """Changed bytes: what passes is, as the format's own parser reads it, free of what is forbidden."""
    content = bytearray(model([relu(), helper.make_node("Tanh", ["y"], ["z"])]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        require_plain("net", bytes(content))
        # Protobuf's parser also checks that names are text.
        found = onnx.ModelProto.FromString(bytes(content))
    except Exception as error:
        if type(error).__name__ not in ("InvalidInput", "DecodeError"):
            raise
        return
    assert not found.functions
    assert all(not each.domain for each in (*found.opset_import, *found.graph.node))
    assert all(not tensor.external_data for tensor in found.graph.initializer)
