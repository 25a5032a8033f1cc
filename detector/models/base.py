"""What a model file becomes: one ONNX graph plus a small description. Every engine runs the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.types import Candidates

if TYPE_CHECKING:
    import onnx


Head = Callable[[list[NDArray[np.float32]], float], Candidates]
"""(outputs of ONE picture, each with a leading axis of 1; confidence threshold) -> candidates in network pixels."""


@dataclass(frozen=True, slots=True)
class InputRules:
    """What the network's input must look like. ``geometry``: "centre" | "top-left-truncate" | "stretch"."""

    height: int
    width: int
    geometry: str
    stride: int = 32  # both sides are multiples of it
    pad_value: int = 114


@dataclass(slots=True)
class Network:
    """A model, ready for any engine.

    ``graph``: ONNX, input u8 RGB NHWC [batch, H, W, 3] with all dimensions fixed, outputs float32 raw head tensors.
    ``path``: the exported file, where it was written. ``head`` decodes one picture's outputs into candidates;
    ``dense`` decodes every row: [1, N, 5 + classes] float32: cx, cy, w, h in network pixels, objectness, class
    probabilities not multiplied. ``warnings`` are lines for the user ("random weights: boxes are meaningless").
    """

    name: str
    family: str
    graph: onnx.ModelProto
    input: InputRules
    batch: int
    output_shapes: list[tuple[int, ...]]
    head: Head
    dense: Callable[[list[NDArray[np.float32]]], NDArray[np.float32]]
    names: tuple[str, ...]
    parameters: int = 0  # as stored
    parameters_fused: int = (
        0  # of the graph's convolutions: normalisation folded, what trains only left out
    )
    macs: int = 0  # multiply-accumulates of conv, gemm and matmul for one picture; FLOPs = 2 x MACs
    sha256: str = ""  # of cfg and weights together
    random_seed: int | None = None
    needs_nms: bool = (
        True  # False: the network, or its export, leaves one box an object; --iou has nothing to do
    )
    precision: str = "fp32"  # of the graph: fp32, fp16, bf16, int8-u8, int8-s8; what ``engines.graph_wanted`` names
    path: str | None = None
    plan: str | None = (
        None  # a file that TensorRT built elsewhere: it is what runs, and ``graph`` is empty
    )
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """[B, H, W, 3] of a request's slot."""
        return (self.batch, self.input.height, self.input.width, 3)


# ----------------------------------------------------------------------
# Files that are often taken for a model: what their first bytes say they are.

START_BYTES = 512  # enough for every one of them


def mistaken(start: bytes) -> str | None:
    """What a file with this beginning is, as words after its name; None where it may be a model."""
    if not start:
        return "is empty"
    if start.startswith(b"version https://git-lfs"):
        return "is a pointer of git LFS, not the file itself"
    if start.lstrip()[:1] == b"<":
        return "is a web page, not a model"
    return None
