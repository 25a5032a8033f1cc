"""From the network in training to files: darknet's .weights, and .f16, the same numbers as half floats."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from detector.models.darknet.weights import BATCH_NORM_EPSILON, Filter, read_weights
from model.network import Street, plan_of, write_weights

HEADER = struct.pack("<3iq", 0, 2, 5, 0)


def write(network: Street, folder: Path, seen: int) -> list[Path]:
    """street.weights and street.f16."""
    weights, half = folder / "street.weights", folder / "street.f16"
    write_weights(network, weights, seen)
    write_filters([folded(f) for f in read_weights(weights, network.plan)[0]], half, "<f2")
    return [weights, half]


def of_checkpoint(path: Path, cfg: Path) -> Path:
    """The moving average of a checkpoint, as street.weights beside it."""
    import torch

    state = torch.load(path, map_location="cpu", weights_only=True)
    network = Street(plan_of(cfg))
    network.load_state_dict(state["average"])
    write_weights(network, path.with_name("street.weights"), state["step"])
    return path.with_name("street.weights")


def read(path: Path, cfg: Path) -> list[Filter]:
    return [folded(f) for f in read_weights(path, plan_of(cfg))[0]]


def folded(stored: Filter) -> Filter:
    """The same filter with its normalisation worked into the weights: what is left of it changes nothing, and
    nothing is too small or too large for half floats."""
    if stored.scales is None or stored.means is None or stored.variances is None:
        return stored
    factor = stored.scales / np.sqrt(stored.variances.astype(np.float64) + BATCH_NORM_EPSILON)
    one = np.ones_like(stored.scales)
    return Filter(
        (stored.biases - stored.means * factor).astype(np.float32),
        (stored.weights * factor[:, None, None, None]).astype(np.float32),
        scales=one,
        means=np.zeros_like(one),
        variances=one,  # 1 + epsilon under the root: 5e-6 of the weight, a hundredth of half a float's step
    )


def shift_scores(filters: list[Filter], cfg: Path, shift: tuple[float, float]) -> None:
    """Adds to the biases of the class logits, in every head."""
    plan = plan_of(cfg)
    heads = {layer.inputs[0] for layer in plan.yolos}
    for layer, stored in zip(plan.convolutions, filters, strict=True):
        if layer.index in heads:
            stored.biases = stored.biases.copy()
            stored.biases[5:] += np.array(shift, np.float32)


def write_filters(filters: list[Filter], target: Path, kind: str) -> None:
    """darknet's header and order. ``kind``: "<f4" for .weights, "<f2" for .f16."""
    with target.open("wb") as file:
        file.write(HEADER)
        for stored in filters:
            norm = (stored.scales, stored.means, stored.variances)
            for part in (stored.biases, *(p for p in norm if p is not None), stored.weights):
                file.write(part.astype(kind).tobytes())
