"""The layers of a darknet network, checked and with their shapes: what a cfg describes, before any weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """``inputs``: indices of the layers it reads, -1 for the picture. Shape: that of its output, of one picture."""

    index: int  # as darknet counts: the first section after [net] is 0
    line: int  # of its section in the cfg
    inputs: tuple[int, ...]
    channels: int
    height: int
    width: int
    reduction: Fraction  # input pixels per cell, along one side

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def floats(self) -> int:
        """Numbers that a .weights file holds for this layer."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Layer):
    in_channels: int  # of all groups together
    kernel: int
    stride: tuple[int, int]  # y, x
    padding: int  # zeros on every side
    dilation: int
    groups: int
    batch_normalize: bool
    activation: str

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return (self.channels, self.in_channels // self.groups, self.kernel, self.kernel)

    @property
    def floats(self) -> int:
        filters, channels, height, width = self.weight_shape
        return filters * channels * height * width + filters * (4 if self.batch_normalize else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPool(Layer):
    kernel: int
    stride: tuple[int, int]  # y, x
    pads: tuple[int, int, int, int]  # top, left, bottom, right; what lies there never wins


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragePool(Layer):
    """Over the whole plane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Layer):
    """Joins its inputs along the channels; with groups, the part ``group_id`` of each."""

    groups: int
    group_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcut(Layer):
    """Sum of its inputs."""

    activation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsample(Layer):
    stride: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout(Layer):
    """Nothing, at inference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yolo(Layer):
    anchors: tuple[tuple[float, float], ...]  # width, height in network pixels; of this layer's masks only
    classes: int
    scale_x_y: float
    new_coords: bool


@dataclass(slots=True)
class Plan:
    """The whole network of one cfg at one input size."""

    path: str
    height: int
    width: int
    letter_box: bool = False  # the picture keeps its shape, grey around it; else it is stretched
    layers: list[Layer] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def yolos(self) -> list[Yolo]:
        return [layer for layer in self.layers if isinstance(layer, Yolo)]

    @property
    def convolutions(self) -> list[Convolution]:
        return [layer for layer in self.layers if isinstance(layer, Convolution)]

    @property
    def stride(self) -> int:
        """Both sides of the input are multiples of it."""
        return max((-(-layer.reduction // 1) for layer in self.layers), default=1)

    @property
    def floats(self) -> int:
        """Numbers in a .weights file of this cfg, without its header."""
        return sum(layer.floats for layer in self.layers)

    @property
    def floats_fused(self) -> int:
        """Numbers of the graph: batch normalisation is folded into weights and a bias."""
        return sum(layer.floats - 3 * layer.channels * layer.batch_normalize for layer in self.convolutions)
