"""Random weights with which a network finds something: outputs that differ from cell to cell.

Untrained networks answer the same everywhere: their batch norms have never seen a picture, and their
class layers begin at a score of 0.01. Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def settle(network: nn.Module, run: Callable[[], Any]) -> None:
    """Batch norms take their statistics from what ``run`` shows to the network."""
    norms = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all runs
        norm.train()
    with torch.no_grad():
        run()
    network.eval()


def caught(layers: Iterable[nn.Module], run: Callable[[], Any]) -> torch.Tensor:
    """What ``layers`` give while ``run`` runs, as one vector."""
    seen: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _module, _inputs, out: seen.append(out.flatten()))
        for layer in layers
    ]
    with torch.no_grad():
        run()
    for hook in hooks:
        hook.remove()
    return torch.cat(seen)


def spread(layers: list[Any], run: Callable[[], Any], mean: float, deviation: float) -> None:
    """Scale each layer (Linear, Conv2d) so that its outputs have this mean and deviation."""
    for layer in layers:
        values = caught([layer], run)
        factor = deviation / max(float(values.std()), 1e-6)
        shift = mean - float(values.mean()) * factor
        with torch.no_grad():
            layer.weight.mul_(factor)
            layer.bias.mul_(factor).add_(shift)
