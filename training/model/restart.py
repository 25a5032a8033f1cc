"""Restart training from shipped weights, whose batch normalisation is folded into convolutions.

Training needs a separate batch normalisation. So we measure the mean and variance of every
convolution's output on training pictures, and set a normalisation that changes no result.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from detector.core.models.formats.darknet.weights import read_weights
from model.export import fold_normalisation
from model.network import Street


def read_into(network: Street, weights: Path, images: Iterable[Tensor]) -> None:
    """Load .weights or .f16 into ``network``. ``images``: some batches [B, 3, H, W] in 0..1."""
    convolutions = network.architecture.convolutions
    stored_filters = read_weights(weights, network.architecture)
    for layer, stored in zip(convolutions, map(fold_normalisation, stored_filters), strict=True):
        block = network.blocks[str(layer.index)]
        block.conv.weight.data.copy_(torch.from_numpy(stored.weights))
        bias = torch.from_numpy(stored.biases)
        if block.norm is None:
            block.conv.bias.data.copy_(bias)
        else:
            block.norm.bias.data.copy_(bias)
            block.norm.weight.data.fill_(1)
            block.norm.running_mean.zero_()
            block.norm.running_var.fill_(1)
    _find_normalisation(network, images)


@torch.no_grad()
def _find_normalisation(network: Street, images: Iterable[Tensor]) -> None:
    """Set the mean and variance of every normalisation to those of its input. Set its scale and
    bias such that its output does not change."""
    sums: dict[str, list[Tensor]] = {}

    def note(index: str):
        def hook(_module, inputs, _output) -> None:
            x = inputs[0].double()
            moments = [x.mean((0, 2, 3)), (x**2).mean((0, 2, 3)), torch.ones((), dtype=x.dtype)]
            totals = sums.setdefault(index, [torch.zeros_like(moment) for moment in moments])
            for total, moment in zip(totals, moments, strict=True):
                total += moment

        return hook

    normed = {index: block for index, block in network.blocks.items() if block.norm is not None}
    hooks = [block.norm.register_forward_hook(note(index)) for index, block in normed.items()]
    network.eval()
    for batch in images:
        network(batch)
    for hook in hooks:
        hook.remove()
    for index, block in normed.items():
        total, squares, count = sums[index]
        mean = total / count
        variance = (squares / count - mean**2).clamp(min=1e-6)
        norm = block.norm
        before = norm.weight / torch.sqrt(norm.running_var + norm.eps)  # about 1
        norm.bias.add_((mean * before).float())
        norm.weight.copy_((torch.sqrt(variance + norm.eps) * before).float())
        norm.running_mean.copy_(mean.float())
        norm.running_var.copy_(variance.float())
