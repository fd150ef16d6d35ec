"""Arguments of `simulate` as callers give them: networks, tensors, NumPy's numbers, paths; anything else by name."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ofms.core.errors import InvalidInput
from ofms.data.arrays import real_array
from ofms.data.stream import Stream, Task
from ofms.models.dictionary import Dictionary
from ofms.plugins import Trust, trust_of

Models = (
    Dictionary | Mapping[str, nn.Module] | Sequence[nn.Module] | nn.ModuleDict | nn.ModuleList | str | os.PathLike[str]
)
_MODELS = "give a Dictionary, its folder, or networks by name as in {'small': nn.Linear(3, 1), ...}"
_STREAM = "give ofms.Stream(x, y, task); a file is read by an experiment with a table [stream]"


def plain_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields and settings with plain numbers and lists instead of NumPy's and PyTorch's; budgets in a list as text."""
    values = {name: _plain(value) for name, value in given.items()}
    budget = values.get("budget")
    if isinstance(budget, list | tuple):
        values["budget"] = ",".join(str(_plain(each)) for each in budget)
    return values


def path_of(field: str, value: object, remedy: str) -> str:
    """A path or a name as text."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidInput(field, _shown(value), remedy)
    path = os.fspath(value)
    if not isinstance(path, str):
        raise InvalidInput(field, path, "give it as text, not as bytes")
    return path


def flag_of(field: str, value: object) -> bool:
    """True or False, also NumPy's; anything else is rejected, because "no" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(field, _shown(value), "give True or False")
    return bool(value)


def count_of(field: str, value: Any) -> int | None:
    """A whole number, also one of NumPy's, or None."""
    try:
        return None if value is None else operator.index(value)
    except TypeError:
        raise InvalidInput(field, _shown(value), "give a whole number") from None


def seconds_of(field: str, value: Any) -> float:
    """A number of seconds from 0 on."""
    value = _plain(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise InvalidInput(field, _shown(value), "give the seconds between checkpoints, or 0 for one per exchange")
    return float(value)


def trusted_packages(given: object) -> Trust:
    """Trust from a record, a name, or names."""
    if isinstance(given, Trust | str):
        return trust_of(given)
    names = list(given) if isinstance(given, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise InvalidInput("trust", _shown(given), "name packages, as in trust=('pumps',)")
    return trust_of(names)


def require_models(models: object) -> None:
    """Reject anything that cannot be a dictionary, before any work; nothing else takes its place."""
    if models is None or isinstance(models, Dictionary | str | os.PathLike):
        return
    modules = _modules(models)
    if len(modules) < 2:
        raise InvalidInput("models", _shown(models), f"selection needs at least 2 models; {_MODELS}")


def dictionary_of(models: Any, task: Task) -> Dictionary:
    """A dictionary as it is, or one of networks."""
    return models if isinstance(models, Dictionary) else Dictionary.from_modules(_modules(models), task=task)


def stream_of(stream: object) -> Stream:
    """A stream whose samples are NumPy arrays of real numbers; rejected if its task is none or a value is masked."""
    if not isinstance(stream, Stream):
        raise InvalidInput("stream", _shown(stream), _STREAM)
    if stream.task not in ("classification", "regression"):
        raise InvalidInput("task", stream.task, "use classification or regression")
    x, y = real_array("stream inputs", stream.x), real_array("stream targets", stream.y)
    return replace(stream, x=x, y=y, names=tuple(_plain(name) for name in stream.names))


def _modules(models: Any) -> dict[str, nn.Module]:
    """Networks by name; those of a list are numbered."""
    if isinstance(models, nn.ModuleDict | Mapping):
        named = dict(models.items())
    elif isinstance(models, nn.ModuleList | list | tuple):
        named = {f"model{number}": module for number, module in enumerate(models)}
    elif isinstance(models, nn.Module):
        named = {"model": models}
    else:
        raise InvalidInput("models", _shown(models), _MODELS)
    for name, module in named.items():
        if not isinstance(name, str) or not isinstance(module, nn.Module):
            raise InvalidInput("models", f"{name}: {_shown(module)}", _MODELS)
    return named


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def _shown(value: object) -> str:
    """A value in one short line; of an object only its type."""
    return repr(value)[:40] if isinstance(value, str | int | float | bytes | None) else type(value).__name__
