"""The client half of a policy as plain values, sent in the welcome.

Tuned rates depend on all budgets of a fleet, so the server resolves them once and sends numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

import msgspec

from ofms.core.errors import InvalidInput
from ofms.plugins import NO_TRUST, Trust
from ofms.policies.local_updates import LocalUpdate
from ofms.policies.protocol import ClientPolicy, Policy
from ofms.policies.registry import load_algorithm

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
            "remembers": policy.remembers,
            "pooling": policy.pooling,
            "own_model": policy.own_model,
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
    """Rebuild a policy from its description."""
    local = None if values["local"] is None else dict(values["local"])
    return ClientPolicy(
        name=str(values["name"]),
        client=msgspec.convert(values["client"], load_algorithm(str(values["name"]), trust).client, str_keys=True),
        local=None if local is None else msgspec.convert(local, _LOCAL_UPDATES[local.pop("kind")]),
        loss_bound=values["loss_bound"],
        observes=values["observes"],
        reports_losses=bool(values["reports_losses"]),
        # Servers before 0.3.0 do not send these; their policies use none of them.
        reports_use=bool(values.get("reports_use", False)),
        remembers=int(values.get("remembers", 0)),
        pooling=values.get("pooling", "mean"),
        own_model=values.get("own_model"),
    )
