"""Export the trained network to darknet's .weights, and to .f16, the same format in half floats."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from detector.core.models.formats.darknet.weights import BATCH_NORM_EPSILON, Filter, read_weights
from model.network import Street, read_layers


def write(network: Street, folder: Path, seen: int) -> list[Path]:
    """Write street.weights and street.f16."""
    weights, half = folder / "street.weights", folder / "street.f16"
    write_weights(network, weights, seen)
    filters = [fold_normalisation(f) for f in read_weights(weights, network.architecture)]
    write_filters(filters, half, "<f2")
    return [weights, half]


def write_weights(network: Street, target: Path, seen: int) -> None:
    """Write darknet's .weights with separate batch normalisation.

    ``seen``: number of training pictures, for the header.
    """
    with target.open("wb") as file:
        file.write(_header(seen))
        for layer in network.architecture.convolutions:
            block = network.blocks[str(layer.index)]
            if block.norm is None:
                parts = [block.conv.bias]
            else:
                norm = block.norm
                parts = [norm.bias, norm.weight, norm.running_mean, norm.running_var]
            for part in (*parts, block.conv.weight):
                values = part.detach().float().cpu().contiguous().numpy()
                file.write(values.astype("<f4").tobytes())


def weights_from_checkpoint(path: Path, cfg: Path) -> Path:
    """Write street.weights next to a checkpoint, from the moving average that it contains."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    network = Street(read_layers(cfg))
    network.load_state_dict(state["average"])
    target = path.with_name("street.weights")
    write_weights(network, target, state["step"] * int(state["options"]["batch"]))
    return target


def mix(parts: Sequence[tuple[Path, float]], folder: Path, cfg: Path) -> list[Path]:
    """Write the weighted mean of several runs' weights to street.weights and street.f16.

    ``parts``: pairs of a file (checkpoint.pt, .weights or .f16) and its share. If each run
    continues the one before, the mean is often better than each ("Model soups", arXiv 2203.05482).
    """
    total = sum(share for _, share in parts)
    averaged: list[Filter] = []
    for path, share in parts:
        stored = read(weights_from_checkpoint(path, cfg) if path.suffix == ".pt" else path, cfg)
        scaled = [_scaled(filter_, share / total) for filter_ in stored]
        averaged = (
            [_sum(*pair) for pair in zip(averaged, scaled, strict=True)] if averaged else scaled
        )
    folder.mkdir(parents=True, exist_ok=True)
    targets = [folder / "street.weights", folder / "street.f16"]
    for target, kind in zip(targets, ("<f4", "<f2"), strict=True):
        write_filters(averaged, target, kind)
    return targets


def _scaled(stored: Filter, share: float) -> Filter:
    return replace(stored, biases=stored.biases * share, weights=stored.weights * share)


def _sum(one: Filter, other: Filter) -> Filter:
    return replace(one, biases=one.biases + other.biases, weights=one.weights + other.weights)


def read(path: Path, cfg: Path) -> list[Filter]:
    """Read .weights or .f16, with batch normalisation folded."""
    return [fold_normalisation(f) for f in read_weights(path, read_layers(cfg))]


def fold_normalisation(stored: Filter) -> Filter:
    """Multiply the batch normalisation into the weights, and replace it by an identity.

    Afterwards no number is too small or too large for a half float.
    """
    if stored.scales is None or stored.means is None or stored.variances is None:
        return stored
    factor = stored.scales / np.sqrt(stored.variances.astype(np.float64) + BATCH_NORM_EPSILON)
    one = np.ones_like(stored.scales)
    return Filter(
        (stored.biases - stored.means * factor).astype(np.float32),
        (stored.weights * factor[:, None, None, None]).astype(np.float32),
        scales=one,
        means=np.zeros_like(one),
        # The reader divides by sqrt(1 + epsilon), which changes a weight by 5e-6 of its value: a
        # hundredth of a half float's step.
        variances=one,
    )


def calibrate_scores(
    filters: list[Filter], cfg: Path, scale: tuple[float, float], shift: tuple[float, float]
) -> None:
    """Multiply the class logits by ``scale`` and add ``shift``, in the last layer of every head."""
    architecture = read_layers(cfg)
    heads = {layer.inputs[0] for layer in architecture.yolos}
    for layer, stored in zip(architecture.convolutions, filters, strict=True):
        if layer.index in heads:
            factor = np.array(scale, np.float32)
            stored.biases, stored.weights = stored.biases.copy(), stored.weights.copy()
            stored.weights[5:] *= factor[:, None, None, None]
            stored.biases[5:] = stored.biases[5:] * factor + np.array(shift, np.float32)


def write_filters(filters: list[Filter], target: Path, kind: str) -> None:
    """Write ``filters`` in darknet's order. ``kind``: "<f4" for .weights, "<f2" for .f16."""
    with target.open("wb") as file:
        file.write(_header(0))
        for stored in filters:
            norm = (stored.scales, stored.means, stored.variances)
            for part in (stored.biases, *(p for p in norm if p is not None), stored.weights):
                file.write(part.astype(kind).tobytes())


def _header(seen: int) -> bytes:
    return struct.pack("<3iq", 0, 2, 5, seen)
