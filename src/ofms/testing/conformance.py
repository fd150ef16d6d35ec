"""The conformance suite: what every policy keeps, on many small fleets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.policies.fleet import Fleet, require_budgets
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.registry import load_algorithm, trust_in
from ofms.policies.settings import check_settings
from ofms.testing import checks
from ofms.testing.changing_models import check_changing_models
from ofms.testing.exchanges import losses_of
from ofms.testing.fleets import random_fleet

# Losses of an exchange are drawn up to these.
SCALES = (0.0, 1.0, 1e6)


def check_policy(
    policy: Algorithm | str, settings: Any = None, *, fleets: int = 20, seed: int = 0, models_change: bool = True
) -> list[str]:
    """Check that a policy keeps the contract of every policy, on random small fleets; no networks are needed.

    Parameters
    ----------
    policy
        An `Algorithm`, or its name: `package.module:name`, or that of a built-in policy.
    settings
        An object of its settings; by default all at their defaults.
    fleets, seed
        How many fleets are drawn, and from which seed.
    models_change
        Also check that models may come and go. Not for a policy whose settings name models by number.

    Returns
    -------
    list
        What was checked, one line each.

    Raises
    ------
    AssertionError
        The first check that fails: what it checks, the rule, and the fleet.

    Examples
    --------
    >>> for line in check_policy("follow-the-leader", fleets=2):
    ...     print(line.partition(":")[0])
    The client half is a dataclass of plain values, which a server can send to devices.
    Every exchange
    The same seed gives the same run
    N clients in one array request the same models as N arrays of one client
    States that were saved and restored continue with the same requests and grants.
    Only losses of observed models are learnt from.
    A retired model is never requested, a new one may be; weights are probabilities; the same alone and together.
    """
    name = policy if isinstance(policy, str) else "policy"
    algorithm = load_algorithm(policy, trust_in(policy)) if isinstance(policy, str) else policy
    settings = algorithm.settings() if settings is None else settings
    check_settings(settings)

    def build(fleet: Fleet) -> Policy:
        require_budgets(fleet.catalogue, fleet.budgets)
        return replace(algorithm.build(settings, fleet), name=name)

    random, suite = np.random.default_rng(seed), _suite(algorithm, build, models_change)
    for number in range(fleets):
        fleet = random_fleet(random)
        for check in suite:
            try:
                check(fleet, seed + number)
            except (AssertionError, InvalidInput) as error:
                costs, budgets = fleet.catalogue.storage.tolist(), fleet.budgets.tolist()
                where = f"models of {costs}, budgets {budgets}, bandwidth {fleet.bandwidth}, seed {seed + number}"
                raise AssertionError(f"{check.__doc__} {error} ({where})") from error
    return [str(check.__doc__) for check in suite]


Check = Callable[[Fleet, int], None]


def _suite(algorithm: Algorithm, build: Callable[[Fleet], Policy], models_change: bool) -> list[Check]:
    """The checks as functions of fleet and seed, each with what it checks as its docstring."""

    def deployable(fleet: Fleet, seed: int) -> None:
        checks.check_deployable(algorithm, build(fleet))

    def exchanges(fleet: Fleet, seed: int) -> None:
        for scale in SCALES:
            checks.check_exchanges(build(fleet), fleet, seed, losses_of(fleet, seed, scale))

    def changing(fleet: Fleet, seed: int) -> None:
        check_changing_models(build, fleet, seed)

    deployable.__doc__, exchanges.__doc__ = checks.check_deployable.__doc__, checks.check_exchanges.__doc__
    changing.__doc__ = check_changing_models.__doc__
    own = (checks.check_repeatable, checks.check_alone_and_together, checks.check_saved_states, checks.check_observed)
    plain = [_built(check, build) for check in own]
    return [deployable, exchanges, *plain, *([changing] if models_change else [])]


def _built(check: Callable[[Policy, Fleet, int], None], build: Callable[[Fleet], Policy]) -> Check:
    def checked(fleet: Fleet, seed: int) -> None:
        check(build(fleet), fleet, seed)

    checked.__doc__ = check.__doc__
    return checked
