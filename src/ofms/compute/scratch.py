"""Working memory and networks of each worker thread."""

from __future__ import annotations

import copy
import threading

import torch
from torch import nn

from ofms.compute import personal
from ofms.compute.networks import Networks
from ofms.compute.protocol import Tensors
from ofms.compute.stacked import Workspace


class Scratch:
    """Working memory and networks that only the current thread uses."""

    def __init__(self, networks: Networks, device: torch.device) -> None:
        self.networks, self.device = networks, device
        self._workspaces: dict[tuple[int, str], Workspace] = {}
        self._templates: dict[tuple[int, int], nn.Module] = {}

    def workspace(self, purpose: str) -> Workspace:
        """Memory for one purpose: evaluation, whose tensors have no gradient, or updates."""
        return self._workspaces.setdefault((threading.get_ident(), purpose), Workspace(self.device))

    def own_copies(self, model: int, clients: int) -> tuple[nn.Module, Tensors]:
        """A network for `torch.func` calls with the clients' parameters, and these parameters."""
        key = (threading.get_ident(), model)
        if key not in self._templates:
            self._templates[key] = copy.deepcopy(self.networks.modules[model])
        return self._templates[key], personal.own_copies(
            self.networks.modules[model], self.networks.trainable[model], clients
        )
