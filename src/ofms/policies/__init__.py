"""Policies: who holds what, who predicts with what, what is learnt, who uploads. One file an algorithm."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.policies.protocol import Fleet, Policy

MODULES = {
    "ofms-ft": "ofms.policies.ofms_ft",
    "mab": "ofms.policies.mab",
    "fed-omd": "ofms.policies.fed_omd",
    "perfedavg": "ofms.policies.perfedavg",
}


def setting_names(policy: str) -> frozenset[str]:
    """The names of a policy's settings."""
    return frozenset(field.name for field in fields(_module(policy).Settings))


def settings_type(policy: str) -> type[Any]:
    """The dataclass of a policy's settings."""
    kind: type[Any] = _module(policy).Settings
    return kind


def build(policy: str, settings: Any, fleet: Fleet) -> Policy:
    """A policy for a fleet, from its own settings record."""
    built: Policy = _module(policy).build(settings, fleet)
    return built


def _module(policy: str) -> Any:
    if policy not in MODULES:
        raise InvalidInput("policy", policy, f"use one of {', '.join(MODULES)}")
    return import_module(MODULES[policy])
