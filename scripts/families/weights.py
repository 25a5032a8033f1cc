"""Scale random weights so that outputs differ from cell to cell and a network detects something.

Untrained networks give the same outputs everywhere: their batch norms have no statistics, and their
class layers start at a score of 0.01. Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def scale_outputs(layers: list[Any], run: Callable[[], Any], mean: float, deviation: float) -> None:
    """Scale each layer (Linear, Conv2d) so that its outputs have this mean and deviation."""
    outputs_by_layer: dict[int, list[torch.Tensor]] = {index: [] for index in range(len(layers))}
    hooks = [
        layer.register_forward_hook(
            lambda _module, _inputs, out, index=index: outputs_by_layer[index].append(out.flatten())
        )
        for index, layer in enumerate(layers)
    ]
    with torch.no_grad():
        run()
    for hook in hooks:
        hook.remove()
    for index, layer in enumerate(layers):
        values = torch.cat(outputs_by_layer[index])
        factor = deviation / max(float(values.std()), 1e-6)
        with torch.no_grad():
            layer.weight.mul_(factor)
            layer.bias.mul_(factor).add_(mean - float(values.mean()) * factor)
