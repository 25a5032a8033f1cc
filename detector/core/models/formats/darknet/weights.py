"""Weights of a darknet network: from a .weights file, a .f16 file of half floats, or a seed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import ModelError
from detector.core.errors.text import counted
from detector.core.models.base import START_BYTES, mistaken_for
from detector.core.models.catalogue import absent_model
from detector.core.models.formats.darknet.layers import CfgNetwork, Convolution

HALF_SUFFIX = ".f16"
BATCH_NORM_EPSILON = 1e-5  # as in AlexeyAB's darknet; the original used 1e-6


@dataclass(slots=True)
class Filter:
    """A convolution's weights. ``scales``, ``means`` and ``variances`` belong to its batch norm."""

    biases: NDArray[np.float32]  # [filters]
    weights: NDArray[np.float32]  # [filters, channels / groups, kernel, kernel]
    scales: NDArray[np.float32] | None = None
    means: NDArray[np.float32] | None = None
    variances: NDArray[np.float32] | None = None


def read_weights(path: Path, architecture: CfgNetwork) -> list[Filter]:
    number = np.dtype("<f2" if path.suffix.lower() == HALF_SUFFIX else "<f4")
    needed = architecture.floats * number.itemsize
    try:
        with path.open("rb") as file:
            data = file.read(needed + 1024)  # enough to see that a file is too long
            size = max(len(data), path.stat().st_size)
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and path.suffix in (".pt", ".onnx"):
            raise absent_model(path) from exc  # the user meant a model, not weights for a cfg
        raise ModelError(f"{path}: cannot be read: {exc.strerror}; give --weights FILE") from exc
    if what := mistaken_for(data[:START_BYTES]):
        raise ModelError(f"{path}: {what}; download it again")
    start = _header_size(path, data)
    if size - start != needed:
        count, rest = divmod(size - start, number.itemsize)
        stray = f" and {counted(rest, 'stray byte')}" if rest else ""
        raise ModelError(
            f"{path}: {architecture.path} needs {architecture.floats} floats, this file has "
            f"{count}{stray}: {'truncated, or ' if size - start < needed else ''}are these the "
            "weights of another cfg?"
        )
    # A signalling NaN would cause a warning here; ``fold`` reports it.
    with np.errstate(invalid="ignore"):
        floats = np.frombuffer(data, number, offset=start).astype(np.float32, copy=False)
    return list(_split(floats, architecture))


def _header_size(path: Path, data: bytes) -> int:
    """Return the size of the header in bytes: major, minor and revision (int32), and the number of
    pictures seen in training (int64 since format version 0.2, int32 before)."""
    if len(data) < 16:
        raise ModelError(
            f"{path}: has {len(data)} bytes, but the header of a .weights file alone takes 16 or "
            "20; download it again"
        )
    major, minor, _ = struct.unpack_from("<3i", data)
    return 20 if major * 10 + minor >= 2 else 16


def _split(floats: NDArray[np.float32], architecture: CfgNetwork) -> Iterator[Filter]:
    at = 0

    def take(count: int) -> NDArray[np.float32]:
        nonlocal at
        at += count
        return floats[at - count : at]

    for layer in architecture.convolutions:
        n = layer.channels
        biases = take(n)
        norm = [take(n), take(n), take(n)] if layer.batch_normalize else [None] * 3
        weights = take(int(np.prod(layer.weight_shape))).reshape(layer.weight_shape)
        yield Filter(biases, weights, *norm)


def random_weights(architecture: CfgNetwork, seed: int) -> list[Filter]:
    """Return weights that keep activations near 1. All versions of numpy draw the same weights."""
    stream = np.random.RandomState(seed)
    return [_draw_filter(stream, layer) for layer in architecture.convolutions]


def _draw_filter(stream: np.random.RandomState, layer: Convolution) -> Filter:
    n = layer.channels
    shape = layer.weight_shape
    fan_in = int(np.prod(shape[1:]))
    biases = 0.1 * stream.standard_normal(n)
    norm: list[NDArray[np.float32] | None] = [None] * 3
    if layer.batch_normalize:
        scales = 1 + 0.1 * stream.standard_normal(n)
        means = 0.1 * stream.standard_normal(n)
        variances = 0.5 + stream.random_sample(n)
        norm = [_f32(scales), _f32(means), _f32(variances)]
    weights = stream.standard_normal(n * fan_in) * np.sqrt(2 / fan_in)
    return Filter(_f32(biases), _f32(weights).reshape(shape), *norm)


def _f32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return values.astype(np.float32)


def fold(
    architecture: CfgNetwork, layer: Convolution, stored: Filter, input_scale: float = 1.0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weights and biases that include batch norm and input scale, computed in float64:
    scales * (conv(x) - means) / sqrt(variances + eps) + biases."""
    with np.errstate(all="ignore"):  # the results are checked below
        weights = stored.weights.astype(np.float64)  # warns for a signalling NaN
        biases = stored.biases.astype(np.float64)
        if stored.scales is not None and stored.means is not None and stored.variances is not None:
            factor = stored.scales / np.sqrt(
                stored.variances.astype(np.float64) + BATCH_NORM_EPSILON
            )
            biases = biases - stored.means * factor
            weights = weights * factor[:, None, None, None]
        folded = (weights * input_scale).astype(np.float32), biases.astype(np.float32)
    if not (np.isfinite(folded[0]).all() and np.isfinite(folded[1]).all()):
        raise ModelError(
            f"{architecture.path}:{layer.line}: the weights of this [convolutional] are not finite "
            "numbers: the weights file is damaged or belongs to another cfg"
        )
    return folded
