"""What the author of a policy tests it with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ofms.exports import exported

if TYPE_CHECKING:
    from ofms.testing.conformance import check_policy
    from ofms.testing.fleets import fleet_of, random_fleet

__all__ = ["check_policy", "fleet_of", "random_fleet"]

_MODULES = {
    "check_policy": "ofms.testing.conformance",
    "fleet_of": "ofms.testing.fleets",
    "random_fleet": "ofms.testing.fleets",
}


__getattr__ = exported(__name__, _MODULES)
