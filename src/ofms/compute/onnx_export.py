"""Exports networks as ONNX graphs for devices without PyTorch: outputs, and gradients of the fine-tuning loss.

The tensors are inputs of both graphs, and the number of samples is free. Needs the extra `export`.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, vjp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from ofms.compute.client import Arrays
from ofms.compute.gradient_decompositions import decompositions
from ofms.compute.local import LocalNetworks
from ofms.compute.onnx_client import Graph, OnnxClient
from ofms.compute.onnx_graphs import GRADIENT, INPUT, OUTPUTS, RESIDUALS, SLOPE, TARGETS, TENSOR, WEIGHTS, require_plain
from ofms.core.errors import InvalidInput
from ofms.models.index import Task
from ofms.models.model import Model

_SAMPLES, _MOST_DIFFERENCE = 3, 1e-4


class NotExported(Exception):
    """A network that has no ONNX graphs, and why."""


def require_exporter() -> None:
    """Reject an installation without the packages that an export needs."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise InvalidInput("edge", f"{package} is not installed", "pip install 'ofms[export]'")


def export_graphs(model: Model, task: Task) -> dict[str, bytes]:
    """Export a model's network and compare the graphs with it; by kind, encoded. Raises `NotExported`."""
    module, names = model.module, list(model.tensors)
    try:
        with _quiet():
            x = torch.rand(_SAMPLES, *input_shape(model))
            tensors = tuple(model.tensors.values())
            width = _width(module, model.tensors, x, task)
            outputs = _export(_Outputs(module, names), (tensors, x), _inputs(names), [OUTPUTS])
            samples = (x, torch.rand(_SAMPLES, width), torch.rand(_SAMPLES), torch.rand(_SAMPLES, width))
            gradient = _export(
                _traced(_gradient_of(module, names, model.trainable, task), tensors, samples),
                (tensors, *samples),
                [*_inputs(names), TARGETS, WEIGHTS, RESIDUALS],
                [SLOPE + name for name in model.trainable],
            )
            graphs = {OUTPUTS: outputs, GRADIENT: gradient}
            _require_agreement(model, task, graphs, x)
            return graphs
    except NotExported:
        raise
    except Exception as error:  # The exporter and a user's network may raise anything.
        raise NotExported(_reason(error)) from error


def input_shape(model: Model) -> tuple[int, ...]:
    """The shape of one sample: that of the zoo's networks, as the module states it, or of the first linear layer."""
    stated = model.options.get("image") if model.architecture == "vgg" else getattr(model.module, "input_shape", None)
    if stated is not None:
        return tuple(int(size) for size in stated)
    first = next((each for each in model.module.modules() if list(each.parameters(recurse=False))), None)
    if isinstance(first, nn.Linear):
        return (first.in_features,)
    raise NotExported("the shape of its input is not known; give the module an attribute input_shape, as (1, 28, 28)")


class _Outputs(nn.Module):
    """The network as a function of its tensors."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, tensors: tuple[torch.Tensor, ...], x: torch.Tensor) -> Any:
        return functional_call(self.module, dict(zip(self.names, tensors, strict=True)), (x,))


class _Gradient(nn.Module):
    """The traced gradient as a module, which the exporter needs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(
        self,
        tensors: tuple[torch.Tensor, ...],
        x: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        residuals: torch.Tensor,
    ) -> Any:
        return self.function(tensors, x, targets, weights, residuals)


def _gradient_of(module: nn.Module, names: Sequence[str], trainable: Sequence[str], task: Task) -> Callable[..., Any]:
    """The gradient of the weighted sum of the losses, plus that of the inner products of outputs and residuals.

    The gradient of a loss in the outputs is written out: it is softmax(z) - e_y, or 2·(z - y).
    """

    def gradient(tensors: Any, x: Any, targets: Any, weights: Any, residuals: Any) -> tuple[torch.Tensor, ...]:
        given = dict(zip(names, tensors, strict=True))
        start = {name: given[name] for name in trainable}
        both: Any = vjp(lambda own: functional_call(module, given | own, (x,)), start)
        outputs, pull_back = both
        slopes = outputs.softmax(dim=1) - targets if task == "classification" else 2 * (outputs - targets)
        (found,) = pull_back(weights[:, None] * slopes + residuals)
        return tuple(found[name] for name in trainable)

    return gradient


def _traced(
    function: Callable[..., Any], tensors: tuple[torch.Tensor, ...], samples: tuple[torch.Tensor, ...]
) -> nn.Module:
    """The operations of a gradient, which the exporter cannot trace itself; only the number of samples is free."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor, first: DimDynamic) -> torch.Tensor:
        sizes = [first, *[DimDynamic.STATIC] * tensor.ndim][: tensor.ndim]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(tensor, symbolic_context=context)

    own = tuple(fake(tensor, DimDynamic.STATIC) for tensor in tensors)
    batch = tuple(fake(tensor, DimDynamic.DYNAMIC) for tensor in samples)
    with mode:
        return _Gradient(make_fx(function, decomposition_table=decompositions())(own, *batch))


def _export(module: nn.Module, arguments: tuple[Any, ...], inputs: list[str], outputs: list[str]) -> bytes:
    tensors, *samples = arguments
    free = {0: torch.export.Dim.DYNAMIC}
    program = torch.onnx.export(
        module.eval(),
        arguments,
        dynamo=True,
        verbose=False,
        dynamic_shapes=(tuple(None for _ in tensors), *(free for _ in samples)),
        input_names=inputs,
        output_names=outputs,
    )
    if program is None:
        raise NotExported("PyTorch's exporter returned nothing")
    found = program.model_proto
    _strip(found)
    if [each.name for each in found.graph.input] != inputs or [each.name for each in found.graph.output] != outputs:
        raise NotExported("the exporter left out inputs or outputs")
    content: bytes = found.SerializeToString()
    require_plain("exported", content)
    return content


def _strip(found: Any) -> None:
    """Remove notes of the exporter: most of the size, and paths of this machine."""
    for each in (found, found.graph, *found.graph.node, *found.graph.input, *found.graph.output):
        each.ClearField("metadata_props")
        each.ClearField("doc_string")
    for tensor in found.graph.initializer:
        tensor.ClearField("metadata_props")
        tensor.ClearField("doc_string")
    for node in found.graph.node:
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
    found.graph.ClearField("value_info")


def _require_agreement(model: Model, task: Task, graphs: dict[str, bytes], x: torch.Tensor) -> None:
    """Compare the graphs with PyTorch, with one sample and with several."""
    client = OnnxClient([Graph(OUTPUTS, graphs[OUTPUTS])], [Graph(GRADIENT, graphs[GRADIENT])], [model.trainable], task)
    networks = LocalNetworks([model.module], [model.trainable], task)
    arrays: Arrays = {name: tensor.numpy() for name, tensor in model.tensors.items()}
    start = {name: model.tensors[name] for name in model.trainable}
    for count in (1, len(x)):
        some, weights = x[:count], np.linspace(1, 2, count)
        expected = networks.outputs(0, model.tensors, some)
        y = expected.argmin(dim=1) if task == "classification" else expected[:, 0].detach() + 1
        slopes = networks.gradient(0, model.tensors, start, some, y, weights)
        found = client.gradient(0, arrays, arrays, some.numpy(), y.numpy(), weights)
        pairs = [(client.outputs(0, some.numpy(), arrays), expected)]
        pairs += [(found[name], slopes[name]) for name in model.trainable]
        for one, other in pairs:
            right = other.detach().numpy()
            difference = float(np.abs(one - right).max(initial=0) / max(1.0, float(np.abs(right).max(initial=0))))
            if not difference <= _MOST_DIFFERENCE:
                raise NotExported(f"its graphs differ from PyTorch by {difference:.1e}")


def _width(module: nn.Module, tensors: dict[str, torch.Tensor], x: torch.Tensor, task: Task) -> int:
    outputs = functional_call(module, tensors, (x,))
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        raise NotExported("its output is not one tensor [n, C]")
    if task == "regression" and outputs.shape[1] != 1:
        raise NotExported("for regression, its output must be [n, 1]")
    return outputs.shape[1]


def _inputs(names: Sequence[str]) -> list[str]:
    return [*(TENSOR + name for name in names), INPUT]


def _reason(error: BaseException) -> str:
    """The first line of the error behind an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on packages that it does not need."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
