"""Synthetic wave farms in WEC's format, for use without its files. No value was measured.

Sixteen converters lie at random in a square of 566 m. A site has a few wave directions with their shares, a wavelength
and the power of a single converter. Waves scattered by each other converter add to or reduce a converter's power, in
proportion to the cosine of the phase difference and to one over the square root of the distance. Layouts change slowly
from row to row, as in the real files, which record searches for good layouts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.typing import Floats
from ofms.data.drift import Drift
from ofms.data.partition import random_generator
from ofms.data.sites import Rows, drifting_site_stream, rows_needed, site_stream, site_training_sets
from ofms.data.stream import Stream, Task, TrainingSet
from ofms.data.wec import TEST_SITES, TRAINING_ROWS_PER_SITE, TRAINING_SITES, split_columns

_CONVERTERS = 16
_SIDE = 566.0
_STEP = 6.0
_ROWS_PER_SEARCH = 400
_ROWS_PER_BATCH = 4000
_NEAREST = 50.0


@dataclass(frozen=True)
class Sea:
    """A site's waves: directions in degrees with their shares, wavelength in metres, power in watts, scattering."""

    directions: dict[float, float]
    wavelength: float
    power: float
    scattering: float


_SEAS = {
    "Adelaide": Sea({232.0: 0.5, 247.0: 0.3, 217.0: 0.2}, 92.0, 88e3, 0.9),
    "Perth": Sea({232.0: 0.6, 240.0: 0.2, 255.0: 0.2}, 104.0, 90e3, 1.1),
    "Sydney": Sea({172.0: 0.3, 142.0: 0.3, 97.0: 0.2, 60.0: 0.2}, 84.0, 94e3, 0.8),
    "Tasmania": Sea({247.0: 0.7, 232.0: 0.3}, 128.0, 241e3, 1.2),
}


class SyntheticWec:
    """The dataset."""

    name = "wec-synthetic"
    task: Task = "regression"
    summary = "SYNTHETIC wave farms in WEC's format; generated, nothing measured"

    def fetch(self) -> None:
        """Nothing to download; it is generated when needed."""

    def check(self) -> str:
        return "wec-synthetic: generated when needed; synthetic, nothing measured"

    def stream(self, *, clients: int, rounds: int, seed: int) -> Stream:
        needed = rows_needed(clients, rounds)
        return site_stream({site: _site(site, needed) for site in TEST_SITES}, clients=clients, rounds=rounds)

    def drifting_stream(self, *, clients: int, rounds: int, seed: int, drift: Drift) -> Stream:
        return drifting_site_stream(self, clients=clients, rounds=rounds, seed=seed, drift=drift)

    def training_sets(self, *, seed: int) -> list[TrainingSet]:
        return site_training_sets({site: _site(site, TRAINING_ROWS_PER_SITE) for site in TRAINING_SITES})


def make_table(site: str, rows: int) -> Floats:
    """[rows, 49] rows of a site in WEC's format; a longer table starts with the same rows."""
    sea = _SEAS[site]
    generator = random_generator(0, 1000 + list(_SEAS).index(site))
    searches = []
    for _ in range(-(-rows // _ROWS_PER_SEARCH)):
        start = _SIDE * generator.random((1, 2, _CONVERTERS))
        steps = _STEP * (generator.random((_ROWS_PER_SEARCH - 1, 2, _CONVERTERS)) - 0.5)
        searches.append(_reflected(np.cumsum(np.concatenate([start, steps]), axis=0)))
    layouts = np.concatenate(searches)[:rows]
    powers = np.concatenate(
        [_powers(layouts[first : first + _ROWS_PER_BATCH], sea) for first in range(0, rows, _ROWS_PER_BATCH)]
    )
    return np.concatenate([layouts[:, 0], layouts[:, 1], powers, powers.sum(axis=1, keepdims=True)], axis=1)


def _reflected(positions: Floats) -> Floats:
    """Reflect positions at the sides of the square."""
    folded: Floats = _SIDE - np.abs(positions % (2 * _SIDE) - _SIDE)
    return folded


def _powers(layouts: Floats, sea: Sea) -> Floats:
    """[rows, 16] power of each converter for [rows, 2, 16] layouts."""
    apart = layouts[:, :, :, None] - layouts[:, :, None, :]
    distance = np.maximum(np.sqrt((apart**2).sum(axis=1)), _NEAREST)
    reach = np.sqrt(_NEAREST / distance) * (1 - np.eye(_CONVERTERS))
    number = 2 * np.pi / sea.wavelength
    gain = np.zeros(layouts.shape[::2])
    for direction, share in sea.directions.items():
        towards = np.array([np.cos(np.radians(direction)), np.sin(np.radians(direction))])
        ahead = np.tensordot(apart, towards, axes=(1, 0))
        gain += share * (reach * np.cos(number * (distance - ahead))).mean(axis=2)
    powers: Floats = sea.power * np.clip(1 + sea.scattering * gain, 0.1, None)
    return powers


def _site(site: str, rows: int) -> Rows:
    return split_columns(make_table(site, rows))


dataset = SyntheticWec()
