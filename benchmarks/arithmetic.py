"""Floating-point throughput of the image networks, compared with a matrix product on the same machine.

    python benchmarks/arithmetic.py

Floating-point operations of a forward and backward pass, as PyTorch counts them; their rate in a bare loop and in a
product of two large matrices, two workers with one thread each. Run it on an idle machine.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from engine import CORES, bare_network, samples_a_second
from networks import CIFAR10, MNIST, Case
from ofms.drawing.tables import format_table
from ofms.models.zoo import build_module

SIDE = 1024


def operations(case: Case, architecture: int) -> float:
    """Floating-point operations of one sample's forward and backward pass."""
    network = build_module(*case.architectures[architecture]).eval()
    x, y = torch.rand(8, *case.sample), torch.randint(0, 10, (8,))
    with FlopCounterMode(display=False) as counter:
        loss = nn.functional.cross_entropy(network(x), y)
        torch.autograd.grad(loss, list(network.parameters()))
    return float(counter.get_total_flops()) / 8


def product_rate() -> float:
    """Operations per second in products of square matrices."""
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)

    def multiply(worker: int) -> None:
        torch.mm(a, b)

    return max(samples_a_second(multiply, 2 * SIDE**3, CORES, 2.0) for _ in range(3))


def main() -> int:
    best = product_rate()
    print(f"a product of two {SIDE} x {SIDE} matrices: {best / 1e9:.0f} GFLOP/s\n")
    rows = []
    for case in (MNIST, CIFAR10):
        for architecture in range(len(case.architectures)):
            each = operations(case, architecture)
            rate = max(bare_network(case, architecture, CORES, True, 32, 2.0) for _ in range(3))
            rows.append(
                [
                    f"{case.name}, architecture {architecture + 1}",
                    f"{each / 1e6:.0f}",
                    f"{rate:,.0f}",
                    f"{rate * each / 1e9:.0f}",
                    f"{100 * rate * each / best:.0f} %",
                ]
            )
    header = ["", "MFLOP per sample-gradient", "bare, per second", "GFLOP/s", "of the product"]
    print(format_table(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
