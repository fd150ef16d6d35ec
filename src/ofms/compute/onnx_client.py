"""The compute of a device in ONNX Runtime, on graphs that the server exported (`ofms.compute.onnx_export`).

The tensors are inputs of the graphs, so that a new version of a model is new tensors only, and models of the same
architecture share its graphs.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ofms.compute.client import Arrays, Description, Layout
from ofms.compute.local_training import LocalTraining, pool_residuals
from ofms.compute.losses import output_losses
from ofms.compute.onnx_graphs import (
    GRADIENT,
    INPUT,
    OUTPUTS,
    RESIDUALS,
    SLOPE,
    TARGETS,
    TENSOR,
    WEIGHTS,
    require_plain,
)
from ofms.core.errors import InvalidInput
from ofms.core.pooling import pool_gradient
from ofms.core.typing import AnyArray, Floats
from ofms.models.index import Task

_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}

# Steps of 50 on two or four images at once take about as long, and 0.8 or 1.5 MiB more.
_IMAGES_AT_ONCE, _VECTORS_AT_ONCE = 1, 256


class Graph:
    """A graph in ONNX Runtime, on one thread. Inputs that it does not use may be given to it."""

    def __init__(self, name: str, content: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # Sizes change with the number of samples; without its arena, memory is given back after each call.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's errors have no base class but this one.
            raise InvalidInput("graph", name[:60], f"ONNX Runtime does not accept it: {_first_line(error)}") from None
        self.inputs: Layout = {
            each.name: (tuple(each.shape), np.dtype(_TYPES.get(each.type, np.void)))
            for each in self._session.get_inputs()
        }
        self.outputs = [each.name for each in self._session.get_outputs()]

    def run(self, inputs: Arrays) -> list[AnyArray]:
        """Outputs in the order of `outputs`; ValueError if ONNX Runtime rejects the inputs."""
        try:
            found: list[AnyArray] = self._session.run(None, {name: inputs[name] for name in self.inputs})
        except Exception as error:
            raise ValueError(_first_line(error)) from None
        return found


class OnnxClient(LocalTraining):
    """Graphs by model: `outputs`, and `gradients` for fine-tuning."""

    def __init__(
        self, outputs: Sequence[Graph], gradients: Sequence[Graph], trainable: Sequence[tuple[str, ...]], task: Task
    ) -> None:
        self.task, self.trainable = task, trainable
        self._outputs, self._gradients = outputs, gradients
        self._held: dict[int, Arrays] = {}

    @classmethod
    def build(cls, description: Description) -> OnnxClient:
        """Load the graphs of a dictionary, each once."""
        for model in description.models:
            if model.graphs is None:
                remedy = (
                    f"the server has no ONNX graph of it ({model.name}); run `ofms deploy keys FOLDER --edge` there"
                )
                raise InvalidInput("architecture", model.architecture, f"{remedy}, or install PyTorch: 'ofms[torch]'")
        graphs: dict[str, Graph] = {}
        for name in {f"{model.graphs}.{kind}" for model in description.models for kind in (OUTPUTS, GRADIENT)}:
            content = description.graphs[name].tobytes()
            require_plain(name, content)
            graphs[name] = Graph(name, content)
        outputs = [graphs[f"{model.graphs}.{OUTPUTS}"] for model in description.models]
        gradients = [graphs[f"{model.graphs}.{GRADIENT}"] for model in description.models]
        for model, *own in zip(description.models, outputs, gradients, strict=True):
            _require_interface(model.name, model.trainable, *own)
        return cls(outputs, gradients, [model.trainable for model in description.models], description.task)

    def layout(self, model: int) -> Layout:
        inputs = self._outputs[model].inputs.items()
        return {name.removeprefix(TENSOR): each for name, each in inputs if name.startswith(TENSOR)}

    def hold(self, model: int, tensors: Arrays) -> None:
        self._held[model] = _named(tensors)

    def release(self, model: int) -> None:
        del self._held[model]

    def outputs(self, model: int, x: AnyArray, tensors: Arrays | None = None) -> AnyArray:
        inputs = self._held[model] if tensors is None else _named(tensors)
        found = [self._outputs[model].run(inputs | {INPUT: x[part]})[0] for part in _parts(x)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def losses(self, outputs: AnyArray, y: AnyArray) -> AnyArray:
        return output_losses(outputs, y, self.task)

    def residuals(
        self,
        tensors: Mapping[int, Arrays],
        x: AnyArray,
        y: AnyArray,
        prediction_weights: Floats,
        offset: Floats | None = None,
    ) -> AnyArray:
        """[n, C] the gradient of the loss of the pool of held models, with [C] `offset`, in its outputs."""
        outputs = (
            (prediction_weights[model], self.outputs(model, x, tensors[model]))
            for model in np.flatnonzero(prediction_weights).tolist()
        )
        found: AnyArray = pool_residuals(outputs, y, offset).astype(np.float32)
        return found

    def gradient(
        self,
        model: int,
        tensors: Arrays,
        parameters: Arrays,
        x: AnyArray,
        y: AnyArray,
        weights: Floats | None = None,
        residuals: AnyArray | None = None,
        offset: Floats | None = None,
    ) -> Arrays:
        if residuals is None and offset is not None:
            residuals = self._own_residuals(model, tensors | parameters, x, y, offset)
        each = (np.full(len(x), 1 / len(x)) if weights is None else weights).astype(np.float32)
        width = int(self._gradients[model].inputs[TARGETS][0][1])
        samples = {INPUT: x, TARGETS: self._targets(y, width)}
        if residuals is None:
            samples |= {WEIGHTS: each, RESIDUALS: np.zeros((len(x), width), dtype=np.float32)}
        else:
            samples |= {WEIGHTS: np.zeros_like(each), RESIDUALS: each[:, None] * residuals}
        inputs = _named(tensors | parameters)
        sums: list[AnyArray] = []
        for part in _parts(x):
            found = self._gradients[model].run(inputs | {name: array[part] for name, array in samples.items()})
            # In place: a gradient is as large as the model.
            sums = [np.add(one, other, out=one) for one, other in zip(sums, found, strict=True)] if sums else found
            del found
        return dict(zip(self.trainable[model], sums, strict=True))

    def _own_residuals(self, model: int, tensors: Arrays, x: AnyArray, y: AnyArray, offset: Floats) -> AnyArray:
        """[n, C] the gradient of a model's own loss in its outputs, to which an offset is added."""
        outputs = self.outputs(model, x, tensors) + offset.astype(np.float32)
        if self.task == "classification":
            outputs = outputs - outputs.max(axis=1, keepdims=True)
        return pool_gradient(outputs, y).astype(np.float32)

    def settle(self) -> None:
        # The GNU C library keeps freed memory; on other systems there is no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        if trim is not None:
            trim(0)

    def _targets(self, y: AnyArray, width: int) -> AnyArray:
        """[n, C] values, or the indicators of the classes."""
        targets: AnyArray = y[:, None]
        if self.task == "classification":
            targets = targets == np.arange(width)
        return targets.astype(np.float32)


def _require_interface(name: str, trainable: Sequence[str], outputs: Graph, gradients: Graph) -> None:
    """Reject graphs with other inputs and outputs than a device has for them."""
    tensors = {each: layout for each, layout in outputs.inputs.items() if each.startswith(TENSOR)}
    samples = {INPUT, TARGETS, WEIGHTS, RESIDUALS}
    for graph, others in ((outputs, {INPUT}), (gradients, samples)):
        for each, layout in graph.inputs.items():
            if each not in others and tensors.get(each) != layout:
                raise InvalidInput("graph", name, f"it has an unknown input {each[:40]!r}")
    targets = gradients.inputs.get(TARGETS, ((), None))[0]
    if len(targets) != 2 or not isinstance(targets[1], int) or targets[1] < 1 or INPUT not in outputs.inputs:
        raise InvalidInput("graph", name, "it has no samples or no targets [n, C]")
    if gradients.outputs != [SLOPE + each for each in trainable] or len(outputs.outputs) != 1:
        raise InvalidInput("graph", name, "its gradients are not those of the fine-tuned parameters")


def _parts(x: AnyArray) -> Iterator[slice]:
    """Samples in parts: their gradients are summed, and a part's intermediate results stay in the cache."""
    count = _IMAGES_AT_ONCE if x.ndim > 2 else _VECTORS_AT_ONCE
    return (slice(first, first + count) for first in range(0, max(len(x), 1), count))


def _named(tensors: Arrays) -> Arrays:
    return {TENSOR + name: array for name, array in tensors.items()}


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
