"""A graph exported for one input size, at another: where it is convolutions all through and nothing in it was laid out
for the exported size.

A grid of anchors that was computed at export would be silently wrong at another size of as many cells; so a list of
operators that hold no sizes is what counts, not whether the shapes happen to fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from detector.errors import ModelError
from detector.models.onnx_file.foreign import ForeignGraph, attributes_of
from detector.models.onnx_file.rebatch import BROADCAST, UNARY

if TYPE_CHECKING:
    import onnx

OPEN_END = np.iinfo(np.int32).max  # exporters write "to the end" as the largest number of 32 or 64 bits
POOLS = frozenset("AveragePool BatchNormalization Conv GlobalAveragePool MaxPool Concat Transpose".split())


def refuse_fixed_sizes(graph: ForeignGraph, size: tuple[int, int], exported: tuple[int, int]) -> None:
    """Raises ModelError with the first node that may hold the exported size; ``size`` and ``exported``: (h, w)."""
    for node in graph.nodes:
        if not _free(graph, node):
            height, width = exported
            raise ModelError(
                f"{graph.name}: the file is fixed at {width}x{height}, and node {node.name or node.output[0]} "
                f"({node.op_type}) may hold numbers laid out for that; use --size {width}x{height}, or export it at "
                f"{size[1]}x{size[0]} or with dynamic sizes"
            )


def _free(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    if all(not name or name in graph.constants for name in node.input):
        return False
    if node.op_type in UNARY or node.op_type in POOLS:
        return True
    if node.op_type in BROADCAST:
        return all(_per_channel(graph, name) for name in node.input if name in graph.constants)
    return node.op_type in RULES and RULES[node.op_type](graph, node)


def _per_channel(graph: ForeignGraph, name: str) -> bool:
    """A factor per channel of a map, [1, C, 1, 1]: never the rows of a decoded output, nor the scale of boxes."""
    dims = graph.dims.get(name, ())
    return len(dims) in (3, 4) and dims[-2:] == (1, 1)


def _slice(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """Of channels, or every second pixel from the first or second on: nothing that ends at a pixel."""
    parts = [graph.value(name) for name in node.input[1:]]
    dims = graph.dims.get(node.input[0], ())
    if any(part is None for part in parts) or len(parts) < 3 or len(dims) != 4:
        return False
    starts, ends, axes = parts[:3]
    assert starts is not None
    assert ends is not None
    assert axes is not None
    return all(
        axis == 1 or (axis in (2, 3) and 0 <= start < 8 and end >= OPEN_END)
        for start, end, axis in zip(starts.tolist(), ends.tolist(), axes.tolist(), strict=True)
    )


def _split(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    return len(graph.dims.get(node.input[0], ())) == 4 and attributes_of(node).get("axis", 0) == 1


def _reshape(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """A map [b, C, h, w] to [b, C, -1]."""
    target, dims = graph.value(node.input[1]), graph.dims.get(node.input[0], ())
    return target is not None and len(dims) == 4 and len(target) == 3 and target[1] in (0, dims[1]) and target[2] == -1


def _upsample(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """By factors, not to a size."""
    return len(node.input) == 3 and graph.value(node.input[2]) is not None


RULES: dict[str, Callable[[ForeignGraph, onnx.NodeProto], bool]] = {
    "Reshape": _reshape,
    "Resize": _upsample,
    "Slice": _slice,
    "Split": _split,
}
