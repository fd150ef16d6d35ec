"""Small dictionaries on disk."""

from __future__ import annotations

from pathlib import Path

import torch

from ofms.models.dictionary import Dictionary, Task
from ofms.models.zoo import mlp


def write_dictionary(folder: Path, inputs: int, outputs: int, task: Task, seed: int = 0) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        modules = {f"net{index}": mlp(inputs, [6], outputs) for index in range(6)}
    architectures = {name: ("mlp", {"inputs": inputs, "hidden": [6], "outputs": outputs}) for name in modules}
    Dictionary.from_modules(modules, task=task, architectures=architectures).write(folder)
    return folder
