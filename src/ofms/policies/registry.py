"""Policies by name: a built-in one, or `package.module:name` of a user-defined `Algorithm`."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ofms.core.choices import suggest
from ofms.core.errors import InvalidInput
from ofms.plugins import NO_TRUST, SYNTAX, Trust, is_reference, load_object, module_of, trust_of
from ofms.policies import MODULES
from ofms.policies.fleet import Fleet, require_budgets
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import check_settings, require_types

_OURS = Trust(("ofms.policies",))


def load_algorithm(policy: str, trust: Trust = NO_TRUST) -> Algorithm:
    """A policy's settings, client and builder; imported only if it is built in or trusted."""
    require_policy_name("policy", policy)
    ours = policy in MODULES
    found = load_object(MODULES.get(policy, policy), field="policy", trusted=_OURS if ours else trust)
    if not isinstance(found, Algorithm):
        kind = type(found).__name__
        raise InvalidInput("policy", policy, f"it is a {kind}; name an Algorithm(settings, client, build)")
    if not (isinstance(found.settings, type) and is_dataclass(found.settings) and callable(found.build)):
        remedy = "its Algorithm needs settings, a dataclass, and build, a function of settings and fleet"
        raise InvalidInput("policy", policy, remedy)
    if not ours:
        require_types(policy, found.settings)
    return found


def require_policy_name(field: str, policy: str) -> None:
    """Reject a name that is neither a built-in policy nor a reference; nothing is imported."""
    if policy not in MODULES and not is_reference(policy):
        raise InvalidInput(field, policy, f"{suggest(policy, MODULES)}, or your own as {SYNTAX}")


def trust_in(policy: str) -> Trust:
    """Trust in the module of a user-defined policy that was named in a command or a call."""
    return trust_of(module_of(policy)) if is_reference(policy) else NO_TRUST


def setting_names(policy: str, trust: Trust = NO_TRUST) -> frozenset[str]:
    """The names of a policy's settings.

    >>> sorted(setting_names("mab"))
    ['exploration', 'learning_rate', 'loss_bound']
    """
    return frozenset(field.name for field in fields(settings_type(policy, trust)))


def settings_type(policy: str, trust: Trust = NO_TRUST) -> type[Any]:
    """The dataclass of a policy's settings."""
    return load_algorithm(policy, trust).settings


def policy_summary(policy: str) -> str:
    """The first line of the docstring of a policy's module."""
    return str(inspect.getdoc(inspect.getmodule(load_algorithm(policy).build))).splitlines()[0]


def build_policy(policy: str, settings: Any, fleet: Fleet, trust: Trust = NO_TRUST) -> Policy:
    """Check a policy's settings and the fleet's budgets, then build the policy."""
    require_budgets(fleet.catalogue, fleet.budgets)
    check_settings(settings)
    build = load_algorithm(policy, trust).build
    try:
        inspect.signature(build).bind(settings, fleet)
    except TypeError:
        raise InvalidInput("policy", policy, "its build must accept settings and a fleet") from None
    built = build(settings, fleet)
    if not isinstance(built, Policy):
        raise InvalidInput("policy", policy, f"its build returned a {type(built).__name__}; return a Policy")
    return replace(built, name=policy)
