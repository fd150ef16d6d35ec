"""The compute interface of a device: outputs, losses and updates of the models that one client holds.

A device depends on this protocol only. Its arrays are NumPy's, whatever computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray, Floats
from ofms.models.index import Task
from ofms.plugins import NO_TRUST, Trust
from ofms.policies.local_updates import LocalUpdate

Arrays = dict[str, AnyArray]
Layout = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
Backend = Literal["auto", "torch", "onnx"]

_PACKAGES = {"torch": "torch", "onnx": "onnxruntime"}


class ClientCompute(Protocol):
    """Networks by model, and the tensors of those that are held."""

    def layout(self, model: int) -> Layout:
        """Shapes and types of a model's tensors, by name."""
        ...

    def hold(self, model: int, tensors: Arrays) -> None:
        """Predict with these tensors, without a copy of them."""
        ...

    def release(self, model: int) -> None:
        """Release the tensors of a model."""
        ...

    def outputs(self, model: int, x: AnyArray, tensors: Arrays | None = None) -> AnyArray:
        """Outputs with given tensors, or with those held; RuntimeError, ValueError or IndexError for a wrong input."""
        ...

    def losses(self, outputs: AnyArray, y: AnyArray) -> AnyArray:
        """[n] losses of [n, C] outputs."""
        ...

    def adapted(self, model: int, tensors: Arrays, x: AnyArray, y: AnyArray, rate: float) -> Arrays:
        """All tensors, the trainable ones after one gradient step on some samples."""
        ...

    def residuals(
        self,
        tensors: Mapping[int, Arrays],
        x: AnyArray,
        y: AnyArray,
        prediction_weights: Floats,
        offset: Floats | None = None,
    ) -> AnyArray:
        """[n, C] the gradient of the loss of the pool of held models, with [C] `offset`, in its outputs."""
        ...

    def update(
        self,
        model: int,
        tensors: Arrays,
        x: AnyArray,
        y: AnyArray,
        weights: Floats,
        update_weight: float,
        local: LocalUpdate,
        residuals: AnyArray | None = None,
        offset: Floats | None = None,
    ) -> Arrays:
        """The weighted update of the fine-tuned parameters on some samples.

        `residuals` [n, C] are the gradients in the outputs, instead of those of the model's own loss; the loss of a
        gradient step is that of outputs to which [C] `offset` is added.
        """
        ...

    def settle(self) -> None:
        """Give memory that is no longer needed back to the system, after fine-tuning or a change of models."""
        ...


@dataclass(frozen=True, eq=False)
class Architecture:
    """How a welcome describes a model's network.

    Attributes
    ----------
    trainable
        Names of the fine-tuned parameters.
    graphs
        The name of its exported graphs; None if the server has none.
    """

    name: str
    architecture: str
    options: Mapping[str, Any]
    trainable: tuple[str, ...]
    graphs: str | None = None


@dataclass(frozen=True, eq=False)
class Description:
    """The networks of a dictionary: how PyTorch builds them, and the exported graphs that ONNX Runtime runs."""

    task: Task
    models: Sequence[Architecture]
    graphs: Mapping[str, AnyArray] = field(default_factory=dict)


def make_client_compute(description: Description, backend: Backend = "auto", trust: Trust = NO_TRUST) -> ClientCompute:
    """The compute of a device; packages that it does not use are not imported."""
    if choose_backend(backend) == "torch":
        from ofms.compute.torch_client import TorchClient

        return TorchClient.build(description, trust)
    from ofms.compute.onnx_client import OnnxClient

    return OnnxClient.build(description)


def choose_backend(backend: Backend) -> Literal["torch", "onnx"]:
    """What computes: PyTorch, or ONNX Runtime if it was asked for or PyTorch is not installed."""
    if backend not in get_args(Backend):
        raise InvalidInput("backend", backend, f"use one of {', '.join(get_args(Backend))}")
    wanted = ("torch", "onnx") if backend == "auto" else (backend,)
    for each in wanted:
        if _is_installed(_PACKAGES[each]):
            return cast(Literal["torch", "onnx"], each)
    extra = {"torch": "'ofms[torch]'", "onnx": "'ofms[edge]'"}.get(backend, "'ofms[edge]', or 'ofms[torch]'")
    package = _PACKAGES.get(backend, "PyTorch or ONNX Runtime")
    raise InvalidInput("backend", backend, f"{package} is not installed: pip install {extra}")


def _is_installed(package: str) -> bool:
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        return False
    # A folder of that name in the current one is a package without a file.
    return found is not None and found.origin is not None
