"""Exported networks as a device accepts them: plain ONNX graphs of known operations, in bounded size.

A graph comes from the server, so it is read here before ONNX Runtime sees it. Rejected are operations of other domains,
functions, nested graphs (loops and branches), and tensors that lie in files: ONNX Runtime would read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ofms.core.errors import InvalidInput
from ofms.models.index import Task

if TYPE_CHECKING:
    from ofms.models.model import Model

# Version of the graphs' inputs and outputs; graphs of another version are exported again.
_FORMAT = "ofms-graphs/1"
MOST_BYTES = 4 * 2**20
OUTPUTS, GRADIENT = KINDS = "outputs", "gradient"
# Names of the graphs' inputs and outputs; those of tensors and their gradients follow the prefix.
TENSOR, SLOPE = "tensor.", "gradient."
INPUT, TARGETS, WEIGHTS, RESIDUALS = "x", "targets", "weights", "residuals"

# Each computes an array from arrays, and nothing else.
_OPERATIONS = """
Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast CastLike Ceil Celu Clip Concat Constant
ConstantOfShape Conv ConvTranspose Cos CumSum DepthToSpace Div Einsum Elu Equal Erf Exp Expand Flatten Floor Gather
GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization
HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log
LogSoftmax MatMul Max MaxPool Mean Min Mish Mod Mul Neg Not Or PRelu Pad Pow Range Reciprocal ReduceL1 ReduceL2
ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round
ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt
Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
OPERATIONS = frozenset(_OPERATIONS.split())


@dataclass(frozen=True)
class _Kind:
    """A message of ONNX's format: the fields that it may have, and the messages in some of them."""

    name: str
    fields: frozenset[int]
    messages: Mapping[int, _Kind]


_TENSOR = _Kind("tensor", frozenset({1, 2, 4, 5, 7, 8, 9, 10, 11}), {})
_ATTRIBUTE = _Kind("attribute", frozenset({1, 2, 3, 4, 5, 7, 8, 9, 20}), {5: _TENSOR})
_NODE = _Kind("node", frozenset({1, 2, 3, 4, 5, 7}), {5: _ATTRIBUTE})
_GRAPH = _Kind("graph", frozenset({1, 2, 5, 11, 12, 13}), {1: _NODE, 5: _TENSOR})
_OPSET = _Kind("operator set", frozenset({1, 2}), {})
_MODEL = _Kind("model", frozenset({1, 2, 3, 5, 7, 8}), {7: _GRAPH, 8: _OPSET})
_OPERATION, _NODE_DOMAIN, _OPSET_DOMAIN = 4, 7, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def graphs_key(model: Model, task: Task) -> str:
    """The name of a model's graphs: the same for models that differ in the values of their tensors only."""
    layout = {name: [str(tensor.dtype), *tensor.shape] for name, tensor in model.tensors.items()}
    content = [_FORMAT, model.architecture, dict(model.options), model.trainable, task, layout]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def require_plain(name: str, content: bytes) -> None:
    """Reject anything but a graph of known operations; the format's other fields are not accepted."""
    if len(content) > MOST_BYTES:
        raise _rejected(name, f"it is larger than {MOST_BYTES} bytes")
    try:
        _require(name, memoryview(content), _MODEL)
    except (IndexError, ValueError, UnicodeDecodeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise _rejected(name, "it is not an ONNX graph") from None


def _require(name: str, message: memoryview, kind: _Kind) -> None:
    operation = b""
    for field, value in _fields(message):
        if field not in kind.fields:
            raise _rejected(name, f"field {field} of its {kind.name} is not accepted")
        if field in kind.messages:
            if not isinstance(value, memoryview):
                raise ValueError(field)
            _require(name, value, kind.messages[field])
        elif isinstance(value, memoryview) and (kind, field) in ((_NODE, _NODE_DOMAIN), (_OPSET, _OPSET_DOMAIN)):
            if value:
                raise _rejected(name, f"operations of {bytes(value[:40])!r} are not accepted")
        elif isinstance(value, memoryview) and (kind, field) == (_NODE, _OPERATION):
            operation = bytes(value)
    if kind is _NODE and operation.decode() not in OPERATIONS:
        raise _rejected(name, f"operation {operation[:40].decode()!r} is not accepted")


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Number and bytes of each field of a protobuf message; None for numbers."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        value: memoryview | None = None
        if wire == _VARINT:
            _, at = _varint(message, at)
        elif wire == _BYTES:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        elif wire in (_FIXED32, _FIXED64):
            at += 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(wire)
        if at > len(message):
            raise ValueError(at)
        yield field, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and the position after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(shift)


def _rejected(name: str, reason: str) -> InvalidInput:
    return InvalidInput("graph", name[:60], f"this device does not run it: {reason}")
