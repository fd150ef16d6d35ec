"""The networks of this example's dictionary: named in dictionary.json as `pump_networks:pump`."""

from __future__ import annotations

from torch import nn


def pump(width: int) -> nn.Module:
    """Predict a pump's next pressure from speed, temperature and pressure."""
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))
