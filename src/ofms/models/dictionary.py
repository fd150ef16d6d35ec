"""The dictionary: K models, their parameters, their costs, and the folder that they live in.

A folder holds `dictionary.json` and one `.safetensors` file a model. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.models.zoo import build_module
from ofms.storage.files import new_folder

FORMAT = "ofms-dictionary/1"
INDEX = "dictionary.json"
Task = Literal["classification", "regression"]
Tensors = dict[str, torch.Tensor]

# Batch norm counts its batches; nobody predicts with the count, and it is not stored.
_NOT_STORED = "num_batches_tracked"
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MOST_BYTES = 2**50


class ModelEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A model in `dictionary.json`."""

    name: str
    architecture: str
    options: dict[str, Any]
    file: str
    storage: int | None = None
    upload: int | None = None
    trainable: list[str] | None = None


class Index(msgspec.Struct, forbid_unknown_fields=True):
    """The whole of `dictionary.json`."""

    format: str
    task: Task
    models: list[ModelEntry]


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
        """How many numbers the model has, statistics of batch norm included."""
        return sum(tensor.numel() for tensor in self.tensors.values())


@dataclass(frozen=True, eq=False)
class Dictionary:
    """K pre-trained models for one task.

    Examples
    --------
    >>> dictionary = Dictionary.from_modules({"small": nn.Linear(2, 1), "large": nn.Linear(2, 3)}, task="regression")
    >>> dictionary.catalogue().storage.tolist()
    [12, 36]
    """

    task: Task
    models: tuple[Model, ...]

    def __len__(self) -> int:
        return len(self.models)

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
            How to build each of them again, as (architecture, options); needed only to write the dictionary.
        trainable
            Patterns of the parameters that are fine-tuned; all by default.
        """
        models = []
        for name, module in modules.items():
            architecture, options = (architectures or {}).get(name, ("", {}))
            tensors = {key: tensor.detach().clone() for key, tensor in _stored(module).items()}
            entry = ModelEntry(name, architecture, dict(options), f"{name}.safetensors")
            entry.trainable = list(trainable) if trainable is not None else None
            models.append(_model(entry, module, tensors))
        dictionary = cls(task, tuple(models))
        dictionary.require_sound("models")
        return dictionary

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Dictionary:
        """Read a folder and check all of it."""
        folder = Path(folder)
        index = _read_index(folder)
        dictionary = cls(index.task, tuple(_read_model(folder, entry) for entry in index.models))
        dictionary.require_sound(str(folder))
        return dictionary

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder; it appears whole or not at all."""
        folder = Path(folder)
        for model in self.models:
            if not model.architecture:
                raise InvalidInput("architecture", None, f"say how to build {model.name!r} again, to write it")
        with new_folder(folder) as partial:
            entries = []
            for model in self.models:
                file = f"{model.name}.safetensors"
                tensors = {name: tensor.contiguous() for name, tensor in model.tensors.items()}
                safetensors.torch.save_file(tensors, partial / file)
                entries.append(_entry(model, file))
            index = msgspec.json.encode(Index(FORMAT, self.task, entries))
            (partial / INDEX).write_bytes(msgspec.json.format(index, indent=1) + b"\n")

    def catalogue(self) -> Catalogue:
        """What every client knows of the dictionary."""
        return Catalogue(
            names=tuple(model.name for model in self.models),
            storage=np.array([model.storage for model in self.models], dtype=np.int64),
            upload=np.array([model.upload for model in self.models], dtype=np.int64),
            version=np.zeros(len(self.models), dtype=np.int64),
            revision=self.revision(),
        )

    def revision(self) -> str:
        """A fingerprint of the names and all parameters."""
        digest = hashlib.sha256()
        for model in self.models:
            digest.update(model.name.encode())
            for name, tensor in sorted(model.tensors.items()):
                digest.update(name.encode())
                digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def require_sound(self, source: str) -> None:
        """Refuse a dictionary that nothing can be selected from, or that does not compute."""
        names = [model.name for model in self.models]
        if len(names) < 2:
            raise InvalidInput("models", len(names), f"{source}: selection needs at least 2")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInput("name", twice[0], f"{source}: two models have it; names must differ")
        for model in self.models:
            if Path(model.name).name != model.name:
                raise InvalidInput("name", model.name, f"{source}: it names a file; leave out slashes and dots alone")
            for name, tensor in model.tensors.items():
                if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
                    raise InvalidInput(f"{model.name}: {name}", tensor.dtype, f"{source}: store it as float32")
                if tensor.is_complex():
                    raise InvalidInput(f"{model.name}: {name}", tensor.dtype, f"{source}: only real numbers are known")
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise InvalidInput(
                        f"{model.name}: {name}", "not finite", f"{source}: train or copy the model again"
                    )

    def require_deployable(self) -> None:
        """Refuse a dictionary that devices cannot build or compute with: they compute in float32."""
        for model in self.models:
            if not model.architecture:
                raise InvalidInput("models", model.name, "a device must build it: give its architecture")
            own = model.module.state_dict()
            for name, tensor in model.tensors.items():
                for dtype in (tensor.dtype, own[name].dtype):
                    if dtype.is_floating_point and dtype != torch.float32:
                        remedy = "devices compute in float32; convert the model (`module.float()`) and write it again"
                        raise InvalidInput(f"{model.name}: {name}", dtype, remedy)


def _stored(module: nn.Module) -> Tensors:
    state = module.state_dict()
    return {name: tensor for name, tensor in state.items() if not name.endswith(_NOT_STORED)}


def _model(entry: ModelEntry, module: nn.Module, tensors: Tensors) -> Model:
    module.eval()
    parameters = [name for name, _ in module.named_parameters()]
    shared = {name for name, _ in module.named_parameters(remove_duplicate=False)} - set(parameters)
    if shared:
        raise InvalidInput(f"{entry.name}: {min(shared)}", "shared", "a parameter that stands twice is not supported")
    patterns = entry.trainable
    if patterns is None:
        trainable = tuple(parameters)
    else:
        trainable = tuple(name for name in parameters if any(fnmatchcase(name, each) for each in patterns))
        if not trainable:
            raise InvalidInput(f"{entry.name}: trainable", patterns, f"no parameter matches; there are {parameters}")
    size = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    storage = sum(size.values()) if entry.storage is None else entry.storage
    upload = _default_upload(storage, tensors, trainable, parameters) if entry.upload is None else entry.upload
    for field, value in (("storage", storage), ("upload", upload)):
        if not 1 <= value <= _MOST_BYTES:
            raise InvalidInput(f"{entry.name}: {field}", value, "give 1 to 2⁵⁰ bytes, or leave it out")
    return Model(entry.name, entry.architecture, entry.options, module, tensors, trainable, storage, upload)


def _default_upload(storage: int, tensors: Tensors, trainable: Sequence[str], parameters: Sequence[str]) -> int:
    """What an update takes: the whole model, or those parameters that are fine-tuned."""
    if len(trainable) == len(parameters):
        return storage
    return sum(tensors[name].numel() * tensors[name].element_size() for name in trainable)


def _entry(model: Model, file: str) -> ModelEntry:
    parameters = tuple(name for name, _ in model.module.named_parameters())
    upload = _default_upload(model.storage, model.tensors, model.trainable, parameters)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.tensors.values())
    return ModelEntry(
        model.name,
        model.architecture,
        dict(model.options),
        file,
        storage=model.storage if model.storage != size else None,
        upload=model.upload if model.upload != upload else None,
        trainable=list(model.trainable) if model.trainable != parameters else None,
    )


def _read_index(folder: Path) -> Index:
    path = folder / INDEX
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput("models", folder, f"no dictionary can be read there ({INDEX}: {error.strerror})") from None
    try:
        index = msgspec.json.decode(content, type=Index)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("models", path, f"mend the file: {error}") from None
    if index.format != FORMAT:
        raise InvalidInput("format", index.format, f"{path}: this version reads {FORMAT}")
    return index


def _read_model(folder: Path, entry: ModelEntry) -> Model:
    module = build_module(entry.architecture, entry.options)
    path = folder / entry.file
    if Path(entry.file).name != entry.file:
        raise InvalidInput("file", entry.file, f"{folder / INDEX}: name a file of the folder itself")
    try:
        tensors = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise InvalidInput("file", path, f"model {entry.name!r} has no such file; copy or train it again") from None
    except (SafetensorError, OSError) as error:
        raise InvalidInput("file", path, f"not a whole safetensors file ({error}); copy or train it again") from None
    expected = _stored(module)
    for name in sorted(expected.keys() | tensors.keys()):
        wanted = list(expected[name].shape) if name in expected else "nothing"
        found = list(tensors[name].shape) if name in tensors else "nothing"
        if wanted != found:
            raise InvalidInput(
                f"{path}: {name}",
                found,
                f"architecture {entry.architecture!r} has {wanted} there; mend one of them",
            )
    return _model(entry, module, tensors)
