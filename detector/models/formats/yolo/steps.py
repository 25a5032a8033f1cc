"""What a planned network is made of: steps with names and shapes, before any number is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from detector.models.formats.yolo.description import Activation


@dataclass(frozen=True, slots=True)
class Value:
    """What a step makes: its name in the graph, and the shape of one picture's."""

    name: str
    channels: int
    height: int
    width: int
    # Every 2x2 pixels as 4 times the channels: exists on paper only, the next convolution reads the pixels themselves.
    folded: Value | None = None

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    path: str  # module path of the block it belongs to: model.6.m.0.cv2
    inputs: tuple[Value, ...]
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Step):
    """With its activation. ``form``: how its numbers are stored.

    normed    path.conv and path.bn
    plain     path, with a bias
    rep       path.rbr_dense, path.rbr_1x1 and, for equal shapes, path.rbr_identity: added up at inference (RepConv)
    implicit  path, with a vector added before and one multiplied after: ``add`` and ``multiply`` are their paths
    """

    form: str
    kernel: int
    stride: int
    padding: int
    groups: int
    activation: Activation
    node: str  # name of the Conv in the graph
    add: str = ""
    multiply: str = ""

    @property
    def stored_shape(self) -> tuple[int, int, int, int]:
        return (self.out.channels, self.inputs[0].channels // self.groups, self.kernel, self.kernel)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Under which of these the weights may be stored."""
        forms = {
            "normed": (f"{self.path}.conv.weight",),
            "rep": (f"{self.path}.rbr_dense.0.weight", f"{self.node}.weight"),
        }
        return forms.get(self.form, (f"{self.path}.weight",))

    @property
    def identity(self) -> bool:
        """Of a rep: whether a third branch is the input itself."""
        return (
            self.form == "rep" and self.stride == 1 and self.inputs[0].channels == self.out.channels
        )

    @property
    def parameters(self) -> int:
        """As stored, without running statistics."""
        outs, ins, *_ = self.stored_shape
        own = math.prod(self.stored_shape)
        if self.form == "normed":
            return own + 2 * outs
        if self.form == "rep":
            return own + outs * ins + outs * (6 if self.identity else 4)
        return own + outs + (ins + outs if self.form == "implicit" else 0)

    @property
    def parameters_fused(self) -> int:
        return math.prod(self.stored_shape) + self.out.channels

    @property
    def macs(self) -> int:
        return math.prod(self.stored_shape) * self.out.height * self.out.width


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPool(Step):
    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsample(Step):
    scale: int  # nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Concat(Step):
    """Along the channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Step):
    """Two values of one shape."""


@dataclass(frozen=True, slots=True)
class DetectionLayers:
    """The end: one map [A*(5+C), h, w] a layer."""

    path: str  # model.24
    outputs: tuple[Value, ...]
    anchors: int  # A, of each layer


@dataclass(slots=True)
class Plan:
    """A network at one input size."""

    origin: str
    height: int
    width: int
    classes: int
    anchors: list[tuple[tuple[float, float], ...]] | None
    steps: list[Step] = field(default_factory=list)
    head: DetectionLayers | None = None
    blocks: set[str] = field(default_factory=set)

    @property
    def needed(self) -> list[Step]:
        """The steps that lead to an output; others train only (yolov7-w6's auxiliary layers)."""
        wanted = {value.name for value in self.head.outputs} if self.head else set()
        found = []
        for step in reversed(self.steps):
            if step.out.name in wanted:
                found.append(step)
                wanted.update((value.folded or value).name for value in step.inputs)
        return found[::-1]

    @property
    def convolutions(self) -> list[Convolution]:
        """All of them, whether needed or not."""
        return [step for step in self.steps if isinstance(step, Convolution)]

    @property
    def parameters(self) -> int:
        """As stored: with batch normalisation, and with what only training needs."""
        return sum(step.parameters for step in self.convolutions)

    @property
    def parameters_fused(self) -> int:
        """Of the graph."""
        return sum(step.parameters_fused for step in self.needed if isinstance(step, Convolution))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the graph's convolutions for one picture."""
        return sum(step.macs for step in self.needed if isinstance(step, Convolution))

    @property
    def stride(self) -> int:
        """Both sides of the input are multiples of it: the coarsest map's."""
        outputs = self.head.outputs if self.head else ()
        return max((self.height // value.height for value in outputs), default=1)
