"""Policies by name. A policy's module offers `Settings`, a frozen dataclass, and `build(settings, fleet)`."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.policies import MODULES
from ofms.policies.protocol import Fleet, Policy


def setting_names(policy: str) -> frozenset[str]:
    """The names of a policy's settings.

    >>> sorted(setting_names("mab"))
    ['exploration', 'learning_rate', 'loss_bound']
    """
    return frozenset(field.name for field in fields(settings_type(policy)))


def settings_type(policy: str) -> type[Any]:
    """The dataclass of a policy's settings."""
    kind: type[Any] = _module(policy).Settings
    return kind


def policy_summary(policy: str) -> str:
    """The first line of a policy's description."""
    return str(_module(policy).__doc__).splitlines()[0]


def build_policy(policy: str, settings: Any, fleet: Fleet) -> Policy:
    """A policy for a fleet, from its own settings record."""
    built: Policy = _module(policy).build(settings, fleet)
    return built


def _module(policy: str) -> Any:
    """The module of a policy: one of ours by name, or one's own by its dotted path."""
    if policy in MODULES:
        return import_module(MODULES[policy])
    remedy = f"use one of {', '.join(MODULES)}, or a module of your own, as in package.module"
    if not all(part.isidentifier() for part in policy.split(".")):
        raise InvalidInput("policy", policy, remedy)
    try:
        module = import_module(policy)
    except ModuleNotFoundError as error:
        if error.name is not None and (policy == error.name or policy.startswith(f"{error.name}.")):
            raise InvalidInput("policy", policy, remedy) from None
        raise InvalidInput("policy", policy, f"it cannot be imported ({error})") from None
    for name in ("Settings", "build"):
        if not hasattr(module, name):
            raise InvalidInput("policy", policy, f"the module has no {name!r}; it needs Settings and build")
    return module
