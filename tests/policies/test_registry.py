"""Policies by name: built-in ones, and a user's own, which is imported if it is trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofms.core.errors import InvalidInput
from ofms.plugins import NO_TRUST, Trust
from ofms.policies.registry import (
    build_policy,
    load_algorithm,
    require_policy_name,
    setting_names,
    settings_type,
    trust_in,
)
from ofms.policies.single_model_server import find_model
from tests.problems import catalogue_of, fleet_of

OWN = """
from dataclasses import dataclass
from ofms.policies import Algorithm, Share
from ofms.policies.follower_client import FollowerClient as Client
from ofms.policies.mab import build as build_mab, MAB

@dataclass(frozen=True)
class Settings:
    epsilon: Share = 0.1

class Plain:
    epsilon = 0.1

def build(settings, fleet):
    return build_mab(MAB(exploration=settings.epsilon), fleet)

algorithm = Algorithm(Settings, Client, build)
number = 3
no_dataclass = Algorithm(Plain, Client, build)
an_object = Algorithm(Settings(), Client, build)
no_function = Algorithm(Settings, Client, 3)
nothing_built = Algorithm(Settings, Client, lambda settings, fleet: None)
one_parameter = Algorithm(Settings, Client, lambda settings: None)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trust:
    (tmp_path / "own_policy_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return Trust(("own_policy_of_a_test",))


def test_a_policy_of_ones_own_is_built_if_it_is_trusted(own: Trust) -> None:
    name = "own_policy_of_a_test:algorithm"
    with pytest.raises(InvalidInput, match=r"^policy = own_policy_of_a_test:algorithm: .*not trusted"):
        load_algorithm(name)
    assert setting_names(name, own) == {"epsilon"}
    fleet = fleet_of([1, 1], [2])
    built = build_policy(name, settings_type(name, own)(epsilon=0.25), fleet, own)
    assert (built.name, built.server.exploration) == (name, 0.25)  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match=r"^epsilon = 5: give a number from 0 to 1$"):
        build_policy(name, settings_type(name, own)(epsilon=5), fleet, own)
    with pytest.raises(InvalidInput, match="its build returned a NoneType; return a Policy"):
        build_policy("own_policy_of_a_test:nothing_built", settings_type(name, own)(), fleet, own)
    with pytest.raises(InvalidInput, match="its build must accept settings and a fleet"):
        build_policy("own_policy_of_a_test:one_parameter", settings_type(name, own)(), fleet, own)
    with pytest.raises(InvalidInput, match="not trusted"):
        build_policy(name, settings_type(name, own)(), fleet)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("number", "it is a int; name an Algorithm"),
        ("no_dataclass", "its Algorithm needs settings, a dataclass, and build"),
        ("an_object", "its Algorithm needs settings, a dataclass, and build"),
        ("no_function", "its Algorithm needs settings, a dataclass, and build"),
    ],
)
def test_what_is_no_algorithm_is_rejected(name: str, remedy: str, own: Trust) -> None:
    with pytest.raises(InvalidInput, match=rf"^policy = own_policy_of_a_test:{name}: {remedy}"):
        load_algorithm(f"own_policy_of_a_test:{name}", own)


def test_names_are_checked_before_anything_is_imported() -> None:
    for known in ("mab", "package.module:name"):
        require_policy_name("policy", known)
    with pytest.raises(
        InvalidInput, match=r"^rival = mob: did you mean 'mab'\? use one of late-hedge, .*, or your own as"
    ):
        require_policy_name("rival", "mob")
    with pytest.raises(InvalidInput, match=r"^policy = mob: "):
        load_algorithm("mob")
    assert trust_in("package.module:name") == Trust(("package.module",))
    assert trust_in("mab") == NO_TRUST


def test_models_by_name_or_index() -> None:
    catalogue = catalogue_of([1, 1])
    assert [find_model(catalogue, each) for each in ("model1", 0, 1)] == [1, 0, 1]
    for wrong in ("model7", 2, -1):
        with pytest.raises(
            InvalidInput, match=rf"^model = {wrong}: give a name from the dictionary or an index from 0 to 1"
        ):
            find_model(catalogue, wrong)
