"""The dictionary: K models, their parameters, their costs, and the folder that stores them.

A folder holds `dictionary.json` and one `.safetensors` file per model. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from ofms.core.errors import InvalidInput
from ofms.core.ledger import human_bytes
from ofms.core.messages import Catalogue
from ofms.models.index import INDEX, ModelEntry, Task, read_index, write_index
from ofms.models.model import Model, Tensors, model_of, read_model, stored_tensors
from ofms.models.zoo import ZOO, build_skeleton
from ofms.plugins import Trust, trust_of
from ofms.storage.files import new_folder, write_whole
from ofms.storage.tensors import encode_tensors

__all__ = ["INDEX", "Dictionary", "Model", "Task", "Tensors"]

# Names of models in a short description.
_NAMED = 4
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Dictionary:
    """K pre-trained models for one task.

    Examples
    --------
    >>> dictionary = Dictionary.from_modules({"small": nn.Linear(2, 1), "large": nn.Linear(2, 3)}, task="regression")
    >>> dictionary
    Dictionary(regression, 2 models, 48 B: small, large)
    >>> dictionary.catalogue().storage.tolist()
    [12, 36]
    """

    task: Task
    models: tuple[Model, ...]

    def __len__(self) -> int:
        return len(self.models)

    def __repr__(self) -> str:
        names = [model.name for model in self.models]
        listed = ", ".join(names if len(names) <= _NAMED else [*names[: _NAMED - 1], "…", names[-1]])
        size = human_bytes(sum(model.storage for model in self.models))
        return f"Dictionary({self.task}, {len(names)} models, {size}: {listed})"

    @classmethod
    def from_modules(
        cls,
        modules: Mapping[str, nn.Module],
        *,
        task: Task,
        architectures: Mapping[str, tuple[str, Mapping[str, Any]]] | None = None,
        trainable: Sequence[str] | None = None,
    ) -> Dictionary:
        """A dictionary of your own networks.

        Parameters
        ----------
        modules
            Networks by name.
        architectures
            How to rebuild each of them, as (architecture, options); needed only to write the dictionary.
        trainable
            Patterns of the names of fine-tuned parameters; all by default.
        """
        if not hasattr(modules, "items"):
            raise InvalidInput(
                "modules", type(modules).__name__, "give networks by name, as in {'small': network, ...}"
            )
        models = []
        for name, module in modules.items():
            if not isinstance(name, str) or not isinstance(module, nn.Module):
                raise InvalidInput("modules", f"{name}: {type(module).__name__}", "give torch.nn.Modules by name")
            architecture, options = (architectures or {}).get(name, ("", {}))
            tensors = {key: _values(f"{name}: {key}", tensor) for key, tensor in stored_tensors(module).items()}
            if architecture in ZOO:
                _require_same(name, architecture, options, tensors)
            entry = ModelEntry(name, architecture, dict(options), f"{name}.safetensors")
            entry.trainable = list(trainable) if trainable is not None else None
            models.append(model_of(entry, module, tensors))
        dictionary = cls(task, tuple(models))
        dictionary.require_sound("models")
        return dictionary

    @classmethod
    def read(cls, folder: str | os.PathLike[str], *, trust: Trust | Iterable[str] = ()) -> Dictionary:
        """Read and validate a folder.

        Parameters
        ----------
        trust
            Packages from which architectures outside the zoo may be imported.
        """
        folder, trusted = Path(folder), trust_of(trust)
        index = read_index(folder)
        dictionary = cls(index.task, tuple(read_model(folder, entry, trusted) for entry in index.models))
        dictionary.require_sound(str(folder))
        return dictionary

    def with_models(self, models: Iterable[Model]) -> Dictionary:
        """With further models at the end."""
        whole = Dictionary(self.task, (*self.models, *models))
        whole.require_sound("models")
        return whole

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder atomically."""
        folder = Path(folder)
        self.require_storable()
        with new_folder(folder) as partial:
            entries = []
            for model in self.models:
                file = f"{model.name}.safetensors"
                write_whole(partial / file, encode_tensors(model.tensors))
                entries.append(model.entry(file))
            write_index(partial, self.task, entries)

    def modules(self) -> dict[str, nn.Module]:
        """Networks by name with the dictionary's parameters, in evaluation mode: the inverse of `from_modules`."""
        return {model.name: model.network() for model in self.models}

    def with_tensors(self, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Dictionary:
        """The same models with other parameters and buffers, in the types in which the dictionary stores them."""
        return replace(self, models=tuple(map(Model.with_tensors, self.models, tensors)))

    def require_storable(self) -> None:
        """Reject a dictionary that cannot be written, because it does not say how to rebuild a network."""
        for model in self.models:
            if not model.architecture:
                how = f"architectures={{{model.name!r}: ('package.module:function', {{...}})}}"
                raise InvalidInput("models", model.name, f"to write it, say how it is built: from_modules(..., {how})")

    def catalogue(self) -> Catalogue:
        """The names, costs and versions that every client knows."""
        return Catalogue(
            names=tuple(model.name for model in self.models),
            storage=np.array([model.storage for model in self.models], dtype=np.int64),
            upload=np.array([model.upload for model in self.models], dtype=np.int64),
            version=np.zeros(len(self.models), dtype=np.int64),
            revision=self.revision(),
        )

    def revision(self) -> str:
        """SHA-256 of the names and all tensors, shortened."""
        digest = hashlib.sha256()
        for model in self.models:
            digest.update(model.name.encode())
            for name, tensor in sorted(model.tensors.items()):
                digest.update(name.encode())
                digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def deviations(self) -> list[str]:
        """Costs and fine-tuned parameters that are not the defaults, which the revision does not cover."""
        entries = [model.entry("") for model in self.models]
        return [
            f"{each.name}: {each.storage}, {each.upload}, {each.trainable}"
            for each in entries
            if any(value is not None for value in (each.storage, each.upload, each.trainable))
        ]

    def require_sound(self, source: str) -> None:
        """Reject fewer than two models, ambiguous names, and tensors that are not finite real numbers."""
        if self.task not in get_args(Task):
            raise InvalidInput("task", self.task, f"{source}: use {' or '.join(get_args(Task))}")
        names = [model.name for model in self.models]
        if len(names) < 2:
            raise InvalidInput("models", len(names), f"{source}: selection needs at least 2")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInput("name", twice[0], f"{source}: two models have this name; make names unique")
        for model in self.models:
            if Path(model.name).name != model.name:
                raise InvalidInput("name", model.name, f"{source}: it becomes a file name; leave out slashes")
            if not model.name.strip() or not model.name.isprintable():
                raise InvalidInput("name", ascii(model.name), f"{source}: give a name of printable characters")
            for name, tensor in model.tensors.items():
                if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
                    raise InvalidInput(f"{model.name}: {name}", tensor.dtype, f"{source}: store it as float32")
                if tensor.is_complex():
                    raise InvalidInput(f"{model.name}: {name}", tensor.dtype, f"{source}: store it as real numbers")
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise InvalidInput(
                        f"{model.name}: {name}", "not finite", f"{source}: train or copy the model again"
                    )

    def require_deployable(self) -> None:
        """Reject a dictionary that devices cannot build or run: they compute in float32."""
        for model in self.models:
            if not model.architecture:
                raise InvalidInput("models", model.name, "devices cannot build it; give its architecture")
            own = model.module.state_dict()
            for name, tensor in model.tensors.items():
                for dtype in (tensor.dtype, own[name].dtype):
                    if dtype.is_floating_point and dtype != torch.float32:
                        remedy = "devices compute in float32; convert the model (`module.float()`) and write it again"
                        raise InvalidInput(f"{model.name}: {name}", dtype, remedy)


def _require_same(
    name: str, architecture: str, options: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Reject a description of a network that builds another one: what is written could not be read."""
    described = {key: tensor.shape for key, tensor in stored_tensors(build_skeleton(architecture, options)).items()}
    own = {key: tensor.shape for key, tensor in tensors.items()}
    for key in sorted({*described, *own}):
        if described.get(key) != own.get(key):
            both = (list(shape[key]) if key in shape else "missing" for shape in (described, own))
            reason = "it builds a network whose {} is {}, the given one's is {}".format(key, *both)
            raise InvalidInput("architectures", f"{name}: {architecture}", f"{reason}; describe the given network")


def _values(field: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a network's tensor; rejected if it has no values yet."""
    if nn.parameter.is_lazy(tensor) or tensor.is_meta:
        raise InvalidInput(field, "no values yet", "call the network with a sample, or load its parameters, before")
    return tensor.detach().clone()
