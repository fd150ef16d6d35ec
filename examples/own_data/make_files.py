"""Write the files that `experiment.toml` names: a stream as CSV, and a dictionary of four trained networks.

    cd examples/own_data && python make_files.py && ofms run experiment.toml

If you have your own data and networks, only the two formats matter: one row per sample, with a column for its client;
and `dictionary.json` next to one `.safetensors` file per model.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import safetensors.torch
import torch

from pump_networks import pump

HERE = Path(__file__).parent
COLUMNS = ["speed", "temperature", "pressure"]


def samples(kind: int, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pumps of four kinds, which respond differently to speed and temperature."""
    x = random.random((count, 3))
    answer = [[0.6, 0.1, 0.3], [0.1, 0.6, 0.3], [-0.4, 0.2, 0.8], [0.2, -0.5, 0.9]][kind]
    return x, x @ np.array(answer) + 0.02 * random.normal(size=count)


def write_stream(random: np.random.Generator) -> None:
    parts = []
    for number in range(12):
        x, y = samples(number % 4, 150, random)
        parts.append(pandas.DataFrame(x, columns=COLUMNS).assign(next_pressure=y, pump=f"pump-{number:02d}"))
    pandas.concat(parts).round(5).to_csv(HERE / "pumps.csv", index=False)


def write_dictionary(random: np.random.Generator) -> None:
    folder = HERE / "models"
    folder.mkdir(exist_ok=True)
    entries = []
    for kind in range(4):
        torch.manual_seed(kind)
        network = pump(8 + 4 * (kind % 2))
        x, y = (torch.tensor(values, dtype=torch.float32) for values in samples(kind, 500, random))
        optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
        for _ in range(300):
            optimizer.zero_grad()
            (network(x)[:, 0] - y).square().mean().backward()
            optimizer.step()
        file = f"kind{kind}.safetensors"
        safetensors.torch.save_file(network.state_dict(), folder / file)
        options = {"width": 8 + 4 * (kind % 2)}
        entries.append({"name": f"kind{kind}", "architecture": "pump_networks:pump", "options": options, "file": file})
    index = {"format": "ofms-dictionary/1", "task": "regression", "models": entries}
    (folder / "dictionary.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    write_stream(generator)
    write_dictionary(generator)
    print(f"pumps.csv and models/ in {HERE}")
