"""What a front end is asked (``ModelRequest``) and what it makes of a model file (``Network``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from detector.core.types import Candidates


Head = Callable[["list[NDArray[np.float32]]", float], "Candidates"]
"""(outputs of one picture, confidence threshold) -> candidates in network pixels. Each output has a
leading axis of 1."""

Dense = Callable[["list[NDArray[np.float32]]"], "NDArray[np.float32]"]
"""Every row of one picture's outputs, decoded: ``Network.dense``."""


@dataclass(frozen=True, slots=True)
class InputRules:
    """``geometry``: one of ``types.GEOMETRIES``. ``of_picture``: boxes come out as if the picture
    filled the input, whatever padding it has."""

    height: int
    width: int
    geometry: str
    stride: int = 32  # both sides are multiples of it
    pad_value: int | tuple[int, int, int] = 114  # grey, or red, green and blue
    of_picture: bool = False


class _Graph:
    """The attribute ``Network.graph``: a ModelProto, or a function that gives it when it is first
    asked for. Reading a graph imports onnx, which is a tenth of a start."""

    def __get__(self, network: Network | None, owner: type[Network]) -> onnx.ModelProto:
        if network is None:
            raise AttributeError("graph")  # so that dataclass sees no default
        given = network.__dict__["graph"]
        if callable(given):
            given = network.__dict__["graph"] = given()
        return given

    def __set__(self, network: Network, graph: onnx.ModelProto) -> None:
        network.__dict__["graph"] = graph


@dataclass
class Network:
    """A model, ready for any engine.

    ``graph``: ONNX. Its input is u8 RGB NHWC [batch, H, W, 3], all dimensions fixed. Its outputs
    are raw float32 tensors for the head. ``head`` decodes one picture's outputs into candidates.
    ``dense`` decodes every row into [1, N, 5 + classes] float32: cx, cy, w, h in network pixels,
    objectness, and the probabilities of the classes, not multiplied with it. ``warnings`` are lines
    for the user.
    """

    name: str
    family: str
    if TYPE_CHECKING:
        graph: onnx.ModelProto
    else:
        graph: Any = _Graph()
    input: InputRules
    batch: int
    output_shapes: list[tuple[int, ...]]
    head: Head
    dense: Dense
    names: tuple[str, ...]
    parameters: int = 0  # as stored
    # Of the graph's convolutions: normalisation is folded, and what only trains is left out.
    parameters_fused: int = 0
    macs: int = 0  # multiply-accumulates of conv, gemm and matmul for one picture; FLOPs = 2 x MACs
    macs_at_most: bool = False  # the picture decides how many rows some layers compute
    sha256: str = ""  # of cfg and weights together
    made_with: str = ""  # a digest of what else the graph is made of, such as a calibration
    random_seed: int | None = None
    needs_nms: bool = True  # False: it gives one box for each object, so --iou has no effect
    # What its outputs mean was found out, not written by us: a run watches for what cannot be so,
    # and ends with what to do then. "" where it need not.
    watched: str = ""
    # Of the graph: fp32, fp16, bf16, int8-u8 or int8-s8, as ``engines.graph_wanted`` names it.
    precision: str = "fp32"
    path: str | None = None
    # A file that one engine built for itself elsewhere (a TensorRT plan, an OpenVINO IR): this is
    # what runs, and ``graph`` is empty.
    plan: str | None = None
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    # Of the graph's tensors at once, and nodes that stay float32 in bfloat16, where they are known
    # without reading the graph.
    peak_bytes: int | None = None
    sensitive: set[str] | None = None

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """[B, H, W, 3] of a request's slot."""
        return (self.batch, self.input.height, self.input.width, 3)


class KnownGraph(NamedTuple):
    """A graph that was built before. ``load`` reads its file."""

    path: str
    output_shapes: Sequence[tuple[int, ...]]
    macs: int
    peak_bytes: int
    sensitive: set[str]
    load: Callable[[], onnx.ModelProto]


class KnownGraphs(Protocol):
    def find(self, network: Network) -> KnownGraph | None: ...


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything a user can say about the model. A front end gets the path in place of ``model``,
    and the weights and class names of a known model."""

    model: str
    weights: Path | None = None
    names: Path | None = None  # a file of class names, one a line
    random_seed: int | None = None  # numbers from this seed instead of a weights file
    size: tuple[int, int] | None = None  # (height, width) instead of the model's own
    batch: int = 1
    family: str | None = None  # what the file is, where it does not tell (FrontEnd.families)
    describe: Path | None = None  # a file that says what its input and outputs mean
    # For files that do not describe themselves (FrontEnd.self_describing):
    cfg: Path | None = None  # the darknet file that describes it
    class_names: tuple[str, ...] = ()  # class names, given one by one
    trusted: bool = False  # code that the file carries may run
    device: str = "auto"  # where it will run: only that device can read a TensorRT plan
    graphs: KnownGraphs | None = None  # built before; None: every graph is built

    @property
    def path(self) -> Path:
        return Path(self.model)


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Reads one kind of model file; the other attributes say which options go with it, and
    ``open_network`` refuses the rest."""

    read: Callable[[ModelRequest], Network]
    families: tuple[str, ...] = ()  # what --family may say; () where the file itself tells
    # Writes the file for --describe, which goes with such a file; None where it says all itself.
    describe: Callable[[ModelRequest], str] | None = None
    self_describing: bool = True  # False: --cfg and a list of class names say what it is
    takes_weights: bool = False  # --weights FILE goes with it
    takes_random_weights: bool = False  # --random-weights SEED goes with it


def with_graph(
    network: Network, request: ModelRequest, build: Callable[[], onnx.ModelProto]
) -> Network:
    """Give a network the graph that was built before, else the one that ``build`` makes now."""
    known = None if request.graphs is None else request.graphs.find(network)
    if known is not None:
        network.graph = known.load
        network.output_shapes, network.macs = list(known.output_shapes), known.macs
        network.path, network.peak_bytes = known.path, known.peak_bytes
        network.sensitive = known.sensitive
        return network
    from detector.core.models.graph.build import count_macs, output_shapes

    network.graph = build()
    network.output_shapes, network.macs = output_shapes(network.graph), count_macs(network.graph)
    return network


def random_weights_warning(random_seed: int | None) -> list[str]:
    if random_seed is None:
        return []
    return [f"random weights (seed {random_seed}): boxes are meaningless"]


IN_FOLDERS = (".xml", ".onnx")  # suffixes of models that exporters put into a folder of their own


def files_in_folder(model: str) -> list[str]:
    """List the model files of a folder such as ``yolov8n_openvino_model/``; [] if not a folder."""
    if not os.path.isdir(model):
        return []
    return sorted(
        entry.path
        for entry in os.scandir(model)
        if Path(entry.name).suffix.lower() in IN_FOLDERS and entry.is_file()
    )


START_BYTES = 512  # of a file: enough for ``mistaken_for``


def mistaken_for(start: bytes) -> str | None:
    """Describe a file that begins with ``start`` if it is not a model; else return None."""
    if not start:
        return "is empty"
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file itself"
    if start.lstrip()[:1] == b"<":
        return "is a web page, not a model"
    return None
