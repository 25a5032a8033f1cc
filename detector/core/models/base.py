"""The types of a front end, its input (``ModelRequest``) and its output (``Network``)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from detector.core.types import Candidates


Head = Callable[["list[NDArray[np.float32]]", float], "Candidates"]
"""(outputs of one picture, confidence threshold) -> candidates in network pixels. Each output has a
leading axis of 1."""

Dense = Callable[["list[NDArray[np.float32]]"], "NDArray[np.float32]"]
"""(outputs of one picture) -> all their rows, decoded. The type of ``Network.dense``."""


@dataclass(frozen=True, slots=True)
class InputRules:
    """How pictures are fitted into the input. ``geometry``: one of ``types.GEOMETRIES``.
    ``of_picture``: boxes are relative to the picture without its padding, not to the input."""

    height: int
    width: int
    geometry: str
    stride: int = 32  # both sides of the input are multiples of it
    pad_value: int | tuple[int, int, int] = 114  # grey, or red, green and blue
    of_picture: bool = False


class _Graph:
    """The descriptor of ``Network.graph``. A function may be assigned instead of a ModelProto; it
    runs on first access, because importing onnx takes a tenth of the start-up time."""

    def __get__(self, network: Network | None, owner: type[Network]) -> onnx.ModelProto:
        if network is None:
            raise AttributeError("graph")  # so that dataclass finds no default
        graph = network.__dict__["graph"]
        if callable(graph):
            graph = network.__dict__["graph"] = graph()
        return graph

    def __set__(self, network: Network, graph: onnx.ModelProto) -> None:
        network.__dict__["graph"] = graph


@dataclass
class Network:
    """A model, ready for any engine.

    ``graph``: ONNX. Its input is u8 RGB NHWC [batch, H, W, 3], all dimensions fixed. Its outputs
    are raw float32 tensors for the head. ``head`` decodes one picture's outputs into candidates.
    ``dense`` decodes every row into [1, N, 5 + classes] float32: cx, cy, w, h in network pixels,
    objectness, and class probabilities not multiplied by objectness. ``warnings`` are lines for the
    user.
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
    parameters: int = 0  # number of stored values
    # Parameters of the graph, with normalisation folded and layers for training removed.
    parameters_fused: int = 0
    macs: int = 0  # multiply-accumulates of conv, gemm and matmul for one picture; FLOPs = 2 x MACs
    macs_at_most: bool = False  # ``macs`` is an upper bound: some layers depend on the picture
    sha256: str = ""  # one digest of all the model's files
    made_with: str = ""  # digest of other things that the graph was made from (a calibration)
    random_seed: int | None = None
    needs_nms: bool = True  # False: the outputs hold one box per object, so --iou has no effect
    # Advice to print if a run stops because results are impossible. Set if the meaning of the
    # outputs was inferred. Only then does a run check its results.
    watched: str = ""
    # The graph's precision: fp32, fp16, bf16, int8-u8 or int8-s8 (``engines.graph_precision_for``).
    precision: str = "fp32"
    path: str | None = None
    # The file of a model in one engine's own format (a TensorRT plan, an OpenVINO IR). It runs
    # instead of ``graph``, which is empty.
    plan: str | None = None
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    # (key, content) as JSON values, for ``KnownGraphs.find_description``; None: nothing to store.
    description: tuple[Any, Any] | None = None
    # The next two are None until the graph is read.
    peak_bytes: int | None = None  # peak size of the graph's live tensors
    sensitive: set[str] | None = None  # nodes that stay float32 if the rest becomes bfloat16

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """Return the shape [B, H, W, 3] of the input of one inference."""
        return (self.batch, self.input.height, self.input.width, 3)


class KnownGraphs(Protocol):
    def load(self, network: Network) -> bool:
        """Set the graph and what was computed from it. Return False if no graph is stored."""

    def find_description(self, name: str, key: Any) -> Any:
        """Return the content that was stored with this key, or None (``Network.description``)."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """All settings of the model. Before a front end gets them, a known model's name is replaced by
    its files."""

    model: str
    weights: Path | None = None
    names: Path | None = None  # a file of class names, one per line
    random_seed: int | None = None  # draw weights with this seed instead of reading a file
    size: tuple[int, int] | None = None  # (height, width) instead of the model's own
    batch: int = 1
    family: str | None = None  # for a file that does not state it (FrontEnd.families)
    describe: Path | None = None  # a file that explains the model's input and outputs
    # For files that do not describe themselves (FrontEnd.self_describing):
    cfg: Path | None = None  # the darknet file that describes the model
    class_names: tuple[str, ...] = ()  # listed in the configuration, instead of in a file
    trusted: bool = False  # code in the file may run
    device: str = "auto"  # the device that will run the model; a TensorRT plan is read on it
    graphs: KnownGraphs | None = None  # graphs that were built before; None: always build

    @property
    def path(self) -> Path:
        return Path(self.model)


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """The reader of one kind of model file, and the options that it supports. ``open_network``
    rejects all other options."""

    read: Callable[[ModelRequest], Network]
    families: tuple[str, ...] = ()  # values of --family; (): the file states its family
    # Returns the text of a file for --describe; None: model files of this kind need no such file.
    describe: Callable[[ModelRequest], str] | None = None
    self_describing: bool = True  # False: supports --cfg and a list of class names
    takes_weights: bool = False  # supports --weights FILE
    takes_random_weights: bool = False  # supports --random-weights SEED


def with_graph(network: Network, request: ModelRequest) -> Network:
    """Load the graph of a network from ``request.graphs``, or else build the graph now."""
    if request.graphs is None or not request.graphs.load(network):
        from detector.core.models.graph.build import count_macs, output_shapes

        graph = network.graph
        network.output_shapes, network.macs = output_shapes(graph), count_macs(graph)
    return network


def random_weights_warning(random_seed: int | None) -> list[str]:
    if random_seed is None:
        return []
    return [f"random weights (seed {random_seed}): boxes are meaningless"]


IN_FOLDERS = (".xml", ".onnx")  # exporters write these into a folder for each model


def files_in_folder(model: str) -> list[str]:
    """List the model files of a folder such as ``yolov8n_openvino_model/``; [] if not a folder."""
    if not os.path.isdir(model):
        return []
    return sorted(
        entry.path
        for entry in os.scandir(model)
        if Path(entry.name).suffix.lower() in IN_FOLDERS and entry.is_file()
    )


START_BYTES = 512  # how much of a file ``mistaken_for`` needs


def mistaken_for(start: bytes) -> str | None:
    """Say what is wrong if a file that begins with ``start`` cannot be a model; else None."""
    if not start:
        return "is empty"
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file itself"
    if start.lstrip()[:1] == b"<":
        return "is a web page, not a model"
    return None
