"""Architectures by name: plain `nn.Sequential`s, so that parameters are named by position."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from ofms.core.choices import suggest
from ofms.core.errors import InvalidInput
from ofms.core.failures import describe_failure
from ofms.plugins import NO_TRUST, SYNTAX, Trust, is_reference, load_object

Factory = Callable[..., nn.Module]


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """A multi-layer perceptron with ReLU.

    >>> sum(parameter.numel() for parameter in mlp(14, [100] * 5, 1).parameters())
    42001
    """
    layers: list[nn.Module] = []
    width = inputs
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def vgg(
    image: Sequence[int],
    blocks: Sequence[Sequence[int]],
    dense: int,
    classes: int,
    pool: Sequence[bool] | None = None,
    batch_norm: bool = False,
    dropout: Sequence[float] | None = None,
) -> nn.Sequential:
    """Blocks of unpadded 3×3 convolutions, then one dense layer.

    Parameters
    ----------
    image
        Channels, height, width.
    blocks
        The widths of the convolutions of each block.
    dense
        Units of the dense layer.
    pool
        Whether a block ends with a 2×2 max-pool; all do by default.
    batch_norm
        Whether a batch norm follows each ReLU.
    dropout
        One rate per block and one for the dense layer; no dropout by default.

    Examples
    --------
    >>> network = vgg([1, 28, 28], [[32, 32]], dense=50, classes=10)
    >>> sum(parameter.numel() for parameter in network.parameters())
    240528
    """
    channels, height, width = image
    pools = [True] * len(blocks) if pool is None else list(pool)
    rates = [0.0] * (len(blocks) + 1) if dropout is None else list(dropout)
    if len(pools) != len(blocks):
        raise InvalidInput("pool", pools, f"give one flag per block: {len(blocks)}")
    if len(rates) != len(blocks) + 1:
        raise InvalidInput("dropout", rates, f"give {len(blocks) + 1} rates: one per block and one for the dense layer")
    layers: list[nn.Module] = []
    for widths, pooled, rate in zip(blocks, pools, rates[:-1], strict=True):
        for units in widths:
            layers += [nn.Conv2d(channels, units, 3), nn.ReLU()]
            if batch_norm:
                layers.append(nn.BatchNorm2d(units))
            channels, height, width = units, height - 2, width - 2
        if pooled:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        if rate:
            layers.append(nn.Dropout(rate))
        if height < 1 or width < 1:
            raise InvalidInput("blocks", list(blocks), f"an image of {image[1]}×{image[2]} is too small for them")
    layers += [nn.Flatten(), nn.Linear(channels * height * width, dense), nn.ReLU()]
    if batch_norm:
        layers.append(nn.BatchNorm1d(dense))
    if rates[-1]:
        layers.append(nn.Dropout(rates[-1]))
    return nn.Sequential(*layers, nn.Linear(dense, classes))


ZOO: dict[str, Factory] = {"mlp": mlp, "vgg": vgg}


def build_module(architecture: str, options: Mapping[str, Any], trust: Trust = NO_TRUST) -> nn.Module:
    """A network from the zoo, or from a user-defined `package.module:factory` if its package is trusted."""
    factory = ZOO.get(architecture) or _own_factory(architecture, trust)
    return _made(factory, architecture, options)


def build_skeleton(architecture: str, options: Mapping[str, Any], trust: Trust = NO_TRUST) -> nn.Module:
    """The same network on the meta device, where parameters take no memory; a user-defined one is built first."""
    factory = ZOO.get(architecture)
    if factory is None:
        return build_module(architecture, options, trust).to("meta")
    with torch.device("meta"):
        return _made(factory, architecture, options)


def _made(factory: Factory, architecture: str, options: Mapping[str, Any]) -> nn.Module:
    try:
        module = factory(**options)
    except InvalidInput:
        raise
    except Exception as error:
        # A user-defined factory may raise anything.
        reason = describe_failure(error)
        raise InvalidInput(
            "options", dict(options), f"architecture {architecture!r} does not accept them: {reason}"
        ) from error
    if not isinstance(module, nn.Module):
        raise InvalidInput("architecture", architecture, "the factory must return a torch.nn.Module")
    return module


def _own_factory(architecture: str, trust: Trust) -> Factory:
    if not is_reference(architecture):
        known = f"{suggest(architecture, ZOO)}, or {SYNTAX} for your own"
        raise InvalidInput("architecture", architecture, known)
    factory = load_object(architecture, field="architecture", trusted=trust)
    if not (inspect.isfunction(factory) or inspect.isclass(factory)):
        raise InvalidInput("architecture", architecture, "name a function or class that makes a torch.nn.Module")
    return cast("Factory", factory)
