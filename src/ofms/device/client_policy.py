"""The client half of a policy as plain values, sent in the welcome.

Tuned rates depend on all budgets of a fleet, so the server resolves them once and sends numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

import msgspec

from ofms.core.errors import InvalidInput
from ofms.device.welcome import WelcomedPolicy
from ofms.plugins import NO_TRUST, Trust
from ofms.policies.local_updates import LocalUpdate
from ofms.policies.protocol import ClientPolicy, Policy
from ofms.policies.registry import load_algorithm
from ofms.storage.typed import from_values

_LOCAL_UPDATES = {kind.__name__: kind for kind in get_args(LocalUpdate)}


def describe_policy(policy: Policy, trust: Trust = NO_TRUST) -> dict[str, Any]:
    """The client half of a policy and how clients fine-tune; rejected if a device could not decode it."""
    local = policy.local
    try:
        values = {
            "name": policy.name,
            "client": msgspec.to_builtins(policy.client, str_keys=True),
            "local": None if local is None else {"kind": type(local).__name__, **asdict(local)},
            "loss_bound": policy.loss_bound,
            "observes": policy.observes,
            "reports_losses": policy.reports_losses,
            "reports_use": policy.reports_use,
            "weighs_by_use": policy.weighs_by_use,
            "remembers": policy.remembers,
            "pooling": policy.pooling,
            "own_model": policy.own_model,
            "uploaded": None if policy.uploaded is None else list(policy.uploaded),
            "offset_memories": list(policy.offset_memories),
        }
        same = read_policy(values, trust).client == policy.client
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        if isinstance(error, InvalidInput):
            raise
        same = False
    if not same:
        raise InvalidInput("policy", policy.name, "its client half must be a dataclass of plain values to be deployed")
    return values


def read_policy(values: Mapping[str, Any], trust: Trust = NO_TRUST) -> ClientPolicy:
    """Rebuild a policy from its description; raises `ValueError` or `msgspec.ValidationError` if it is none."""
    given = from_values(dict(values), WelcomedPolicy)
    return ClientPolicy(
        name=given.name,
        client=from_values(given.client, load_algorithm(given.name, trust).client, str_keys=True),
        local=None if given.local is None else _local_update(given.local),
        loss_bound=given.loss_bound,
        observes=given.observes,
        reports_losses=given.reports_losses,
        reports_use=given.reports_use,
        weighs_by_use=given.weighs_by_use,
        remembers=given.remembers,
        pooling=given.pooling,
        own_model=given.own_model,
        uploaded=given.uploaded,
        offset_memories=given.offset_memories,
    )


def _local_update(values: Mapping[str, Any]) -> LocalUpdate:
    """How clients fine-tune; rejects rates that are not finite, and counts that would divide by zero."""
    fields = dict(values)
    kind = fields.pop("kind", None)
    if kind not in _LOCAL_UPDATES:
        raise ValueError(f"clients cannot fine-tune by {kind}")
    local: LocalUpdate = from_values(fields, _LOCAL_UPDATES[kind])
    for name, value in asdict(local).items():
        least = 0 if name in ("rate", "adaptation_rate", "warm_up", "control_every") else 1
        if isinstance(value, int | float) and not least <= value < math.inf:
            raise ValueError(f"{name} is {value}")
    return local
