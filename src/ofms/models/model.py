"""One model of a dictionary: its network, tensors and costs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from ofms.core.errors import InvalidInput
from ofms.models.index import INDEX, ModelEntry
from ofms.models.zoo import build_module, build_skeleton
from ofms.plugins import Trust

Tensors = dict[str, torch.Tensor]

# Batch norm counts its batches; predictions do not depend on the count, so it is not stored.
_NOT_STORED = "num_batches_tracked"
_MOST_BYTES = 2**50


@dataclass(frozen=True, eq=False)
class Model:
    """One model: how to build it, its parameters and buffers, its costs in bytes.

    Attributes
    ----------
    module
        The network, in evaluation mode. Its own parameters are not used: `tensors` are.
    tensors
        Parameters and buffers by name.
    trainable
        Names of the parameters that fine-tuning changes.
    """

    name: str
    architecture: str
    options: Mapping[str, Any]
    module: nn.Module
    tensors: Tensors
    trainable: tuple[str, ...]
    storage: int
    upload: int

    @property
    def values(self) -> int:
        """Number of values in the model, including batch norm statistics."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def network(self) -> nn.Module:
        """A copy of the network with the model's parameters and buffers."""
        network = copy.deepcopy(self.module)
        # Only what is not stored may be missing.
        network.load_state_dict(self.tensors, strict=False)
        return network

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> Model:
        """The same model with other parameters and buffers, in the types of its own."""
        return replace(self, tensors={name: tensors[name].to(own.dtype) for name, own in self.tensors.items()})

    def entry(self, file: str) -> ModelEntry:
        """The model's entry in the index, without costs and patterns that are the defaults."""
        parameters = tuple(name for name, _ in self.module.named_parameters())
        upload = _default_upload(self.storage, self.tensors, self.trainable, parameters)
        return ModelEntry(
            self.name,
            self.architecture,
            dict(self.options),
            file,
            storage=self.storage if self.storage != _size(self.tensors) else None,
            upload=self.upload if self.upload != upload else None,
            trainable=list(self.trainable) if self.trainable != parameters else None,
        )


def model_of(entry: ModelEntry, module: nn.Module, tensors: Tensors) -> Model:
    """Make a model from its entry, network and tensors."""
    module.eval()
    parameters = [name for name, _ in module.named_parameters()]
    shared = {name for name, _ in module.named_parameters(remove_duplicate=False)} - set(parameters)
    if shared:
        raise InvalidInput(f"{entry.name}: {min(shared)}", "shared", "shared parameters are not supported; copy them")
    patterns = entry.trainable
    if patterns is None:
        trainable = tuple(parameters)
    else:
        trainable = tuple(name for name in parameters if any(fnmatchcase(name, each) for each in patterns))
        if not trainable:
            raise InvalidInput(f"{entry.name}: trainable", patterns, f"no parameter matches; use some of {parameters}")
    storage = _size(tensors) if entry.storage is None else entry.storage
    upload = _default_upload(storage, tensors, trainable, parameters) if entry.upload is None else entry.upload
    if entry.storage is None and not storage:
        remedy = "it has no parameters and therefore no size; register one, or give `storage` in dictionary.json"
        raise InvalidInput("models", entry.name, remedy)
    for field, value in (("storage", storage), ("upload", upload)):
        if not 1 <= value <= _MOST_BYTES:
            raise InvalidInput(f"{entry.name}: {field}", value, "give 1 to 2⁵⁰ bytes, or leave it out")
    return Model(entry.name, entry.architecture, entry.options, module, tensors, trainable, storage, upload)


def read_model(folder: Path, entry: ModelEntry, trust: Trust) -> Model:
    """Build a model's network and read its tensors."""
    # Without parameters first: options of a few bytes may describe a network that no memory holds.
    expected = stored_tensors(build_skeleton(entry.architecture, entry.options, trust))
    path, tensors = folder / entry.file, read_tensors(folder, entry)
    for name in sorted(expected.keys() | tensors.keys()):
        wanted = list(expected[name].shape) if name in expected else "nothing"
        found = list(tensors[name].shape) if name in tensors else "nothing"
        if wanted != found:
            raise InvalidInput(
                f"{path}: {name}",
                found,
                f"architecture {entry.architecture!r} expects {wanted}; fix one of them",
            )
    return model_of(entry, build_module(entry.architecture, entry.options, trust), tensors)


def read_tensors(folder: Path, entry: ModelEntry) -> Tensors:
    """The tensors of a model's file, whatever its network; a missing or damaged file is rejected."""
    path = folder / entry.file
    if Path(entry.file).name != entry.file:
        raise InvalidInput("file", entry.file, f"{folder / INDEX}: name a file in the same folder")
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise InvalidInput("file", path, f"model {entry.name!r} has no such file; copy or train it again") from None
    except (SafetensorError, OSError) as error:
        raise InvalidInput("file", path, f"not a complete safetensors file ({error}); copy or train it again") from None


def stored_tensors(module: nn.Module) -> Tensors:
    """The parameters and buffers of a network that are stored."""
    state = module.state_dict()
    return {name: tensor for name, tensor in state.items() if not name.endswith(_NOT_STORED)}


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _default_upload(storage: int, tensors: Tensors, trainable: Sequence[str], parameters: Sequence[str]) -> int:
    """The size of an update: the whole model, or its fine-tuned parameters."""
    if len(trainable) == len(parameters):
        return storage
    return _size({name: tensors[name] for name in trainable})
