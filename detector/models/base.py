"""What a front end is asked (``ModelRequest``) and what it makes of a model file (``Network``).

A network is one ONNX graph, which every engine runs, and a small description of what goes in and comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything a user can say about the model. ``open_network`` answers it; a front end reads it.

    ``model`` is the path of a file or the name of a known model. A front end gets the request with
    the path in its place, and with the weights and the class names that belong to a known model.
    """

    model: str
    weights: Path | None = None
    names: Path | None = None  # a file of class names, one a line
    random_seed: int | None = None  # numbers from this seed instead of a weights file
    size: tuple[int, int] | None = None  # (height, width) instead of the model's own
    batch: int = 1
    family: str | None = None  # what the file is, where it does not tell (FrontEnd.families)
    # For files that do not describe themselves (FrontEnd.self_describing):
    cfg: Path | None = None  # the darknet file that describes it
    class_names: tuple[str, ...] = ()  # class names, given one by one
    trusted: bool = False  # code that the file carries may run
    device: str = "auto"  # where it will run: only that device can read a TensorRT plan

    @property
    def path(self) -> Path:
        """The model file."""
        return Path(self.model)


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Reads one kind of model file: the ``FRONT_END`` of a module in models/formats.

    The other attributes say which options go with such a file. ``open_network`` refuses the rest,
    so that ``read`` does not have to.
    """

    read: Callable[[ModelRequest], Network]
    families: tuple[str, ...] = ()  # what --family may say; () where the file itself tells
    self_describing: bool = True  # False: --cfg and a list of class names say what it is
    takes_weights: bool = False  # --weights FILE goes with it
    takes_random_weights: bool = False  # --random-weights SEED goes with it


def random_weights_warning(random_seed: int | None) -> list[str]:
    """The warning that belongs to a network with random weights; [] for stored ones."""
    if random_seed is None:
        return []
    return [f"random weights (seed {random_seed}): boxes are meaningless"]


START_BYTES = 512  # of a file: enough for ``mistaken_for``


def mistaken_for(start: bytes) -> str | None:
    """What a file that begins with ``start`` is when it is no model, as words that follow its name.

    None where it may be a model.
    """
    if not start:
        return "is empty"
    if start.startswith(b"version https://git-lfs"):
        return "is a pointer of git LFS, not the file itself"
    if start.lstrip()[:1] == b"<":
        return "is a web page, not a model"
    return None
