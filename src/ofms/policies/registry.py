"""Policies by name: one of ours, or `package.module:name` of one's own, which refers to an `Algorithm`."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib import import_module
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.policies import MODULES
from ofms.policies.fleet import Fleet, require_budgets
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import check_settings


def setting_names(policy: str) -> frozenset[str]:
    """The names of a policy's settings.

    >>> sorted(setting_names("mab"))
    ['exploration', 'learning_rate', 'loss_bound']
    """
    return frozenset(field.name for field in fields(settings_type(policy)))


def settings_type(policy: str) -> type[Any]:
    """The dataclass of a policy's settings."""
    return find_algorithm(policy).settings


def policy_summary(policy: str) -> str:
    """The first line of a policy's description."""
    return str(import_module(find_algorithm(policy).build.__module__).__doc__).splitlines()[0]


def build_policy(policy: str, settings: Any, fleet: Fleet) -> Policy:
    """A policy for a fleet, once its settings and the fleet's budgets are checked."""
    require_budgets(fleet.catalogue, fleet.budgets)
    check_settings(settings)
    return replace(find_algorithm(policy).build(settings, fleet), name=policy)


def find_algorithm(policy: str) -> Algorithm:
    """The algorithm of a name."""
    reference = MODULES.get(policy, policy)
    remedy = f"use one of {', '.join(MODULES)}, or your own as package.module:name"
    module, colon, name = reference.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise InvalidInput("policy", policy, remedy)
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise InvalidInput("policy", policy, remedy) from None
        raise InvalidInput("policy", policy, f"it cannot be imported ({error})") from None
    if not isinstance(found, Algorithm):
        raise InvalidInput("policy", policy, f"{name!r} of {module} is no ofms.policies.Algorithm")
    return found
