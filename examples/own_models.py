"""Your own models and data, from Python.

    python examples/own_models.py

Eight thermostats learn which of five small networks best predicts their room's next temperature; each can hold only
two.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import ofms


def rooms(clients: int, rounds: int) -> ofms.Stream:
    """Each client's room drifts differently; a sample is the last four temperatures, the target the next one."""
    random = np.random.default_rng(0)
    hours = np.arange(rounds + 5)
    period = 12 + 4 * np.arange(clients)[:, None]
    temperature = 0.5 + 0.3 * np.sin(2 * np.pi * hours / period) + 0.02 * random.normal(size=(clients, hours.size))
    x = np.stack([temperature[:, lag : lag + rounds] for lag in range(4)], axis=-1)
    return ofms.Stream(x.astype(np.float32), temperature[:, 4 : 4 + rounds].astype(np.float32), "regression")


def trained_network(period: float) -> nn.Module:
    """A network trained on rooms of one period."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    hours = torch.arange(400.0)
    temperature = 0.5 + 0.3 * torch.sin(2 * torch.pi * hours / period)
    x = torch.stack([temperature[lag : lag + 396] for lag in range(4)], dim=1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        (network(x)[:, 0] - temperature[4:]).square().mean().backward()
        optimizer.step()
    return network


def main() -> None:
    networks = {f"period{period}": trained_network(period) for period in (12, 18, 24, 32, 40)}
    dictionary = ofms.Dictionary.from_modules(networks, task="regression")
    # Squared errors are a few hundredths: clients can learn much faster than the tuned rate, meant for losses up to 1.
    result = ofms.simulate(
        policy="ofms-ft",
        models=dictionary,
        stream=rooms(clients=8, rounds=300),
        preset="theory",
        budget="2",
        bandwidth="50%",
        learning_rate=30.0,
        fine_tuning_rate=0.01,
    )
    print(result)
    print(result.to_pandas()[["score", "regret", "down", "up"]].round(4))


if __name__ == "__main__":
    main()
