"""The parts of a network, with their names and shapes, but without weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detector.core.models.formats.checkpoint.contents import Module
from detector.core.models.formats.yolo.description import LINEAR, Activation, YamlRow, activation_of

# Limits for malicious or broken files, far above the largest published networks.
MAX_TENSOR = 1 << 28  # floats in one tensor (a ``Value``) at batch size 1: 1 GiB
MAX_PARAMETERS = 400_000_000  # 1.6 GB; the limit of an ONNX file is 2 GB
MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Value:
    name: str
    channels: int
    height: int
    width: int
    # If set, this value has 2x2 pixels of ``folded`` as channels. Only convolutions can read it.
    folded: Value | None = None

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetStep:
    path: str  # module path of its block: model.6.m.0.cv2
    inputs: tuple[Value, ...]
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvStep(NetStep):
    """A convolution and its activation. ``form``: how its weights are stored.

    normed    path.conv and path.bn
    plain     path, with a bias
    rep       path.rbr_dense, path.rbr_1x1 and, if input and output have the same shape,
              path.rbr_identity; inference adds up all of them (RepConv)
    implicit  path, and two vectors (``implicit_names``): the first is added to the input of the
              convolution, and the second multiplies its output
    """

    form: str
    kernel: int
    stride: int
    padding: int
    groups: int
    activation: Activation
    node: str  # name of the Conv in the graph

    @property
    def stored_shape(self) -> tuple[int, int, int, int]:
        return (self.out.channels, self.inputs[0].channels // self.groups, self.kernel, self.kernel)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Possible names of the stored weights."""
        forms = {
            "normed": (f"{self.path}.conv.weight",),
            "rep": (f"{self.path}.rbr_dense.0.weight", f"{self.node}.weight"),
        }
        return forms.get(self.form, (f"{self.path}.weight",))

    @property
    def implicit_names(self) -> tuple[str, str]:
        """Names of the vector that is added and of the vector that multiplies."""
        head, _, at = self.path.rpartition(".m.")
        return f"{head}.ia.{at}.implicit", f"{head}.im.{at}.implicit"

    @property
    def identity(self) -> bool:
        """Whether a "rep" convolution has a third branch, which adds the input itself."""
        return (
            self.form == "rep" and self.stride == 1 and self.inputs[0].channels == self.out.channels
        )

    @property
    def parameters(self) -> int:
        """Number of stored parameters, without batch norm's running mean and variance."""
        outs, ins, *_ = self.stored_shape
        weights = math.prod(self.stored_shape)
        if self.form == "normed":
            return weights + 2 * outs
        if self.form == "rep":
            return weights + outs * ins + outs * (6 if self.identity else 4)
        return weights + outs + (ins + outs if self.form == "implicit" else 0)

    @property
    def parameters_fused(self) -> int:
        return math.prod(self.stored_shape) + self.out.channels

    @property
    def macs(self) -> int:
        return math.prod(self.stored_shape) * self.out.height * self.out.width


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStep(NetStep):
    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsampleStep(NetStep):
    scale: int  # factor for both sides; pixels are repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatStep(NetStep):
    """Joins channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(NetStep):
    """Adds two values of the same shape."""


@dataclass(frozen=True, slots=True)
class DetectionLayers:
    path: str  # model.24
    outputs: tuple[Value, ...]
    anchors: int  # per layer


@dataclass(slots=True)
class Architecture:
    origin: str
    height: int
    width: int
    classes: int
    anchors: list[tuple[tuple[float, float], ...]] | None
    steps: list[NetStep] = field(default_factory=list)
    head: DetectionLayers | None = None
    blocks: set[str] = field(default_factory=set)

    @property
    def needed(self) -> list[NetStep]:
        """The steps that outputs need. Others are for training (yolov7-w6's auxiliary heads)."""
        names = {value.name for value in self.head.outputs} if self.head else set()
        steps = []
        for step in reversed(self.steps):
            if step.out.name in names:
                steps.append(step)
                names.update((value.folded or value).name for value in step.inputs)
        return steps[::-1]

    @property
    def convolutions(self) -> list[ConvStep]:
        return [step for step in self.steps if isinstance(step, ConvStep)]

    @property
    def parameters(self) -> int:
        """Number of stored parameters, including those only for training."""
        return sum(step.parameters for step in self.convolutions)

    @property
    def parameters_fused(self) -> int:
        return sum(step.parameters_fused for step in self.needed if isinstance(step, ConvStep))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the graph's convolutions for one picture."""
        return sum(step.macs for step in self.needed if isinstance(step, ConvStep))

    @property
    def stride(self) -> int:
        outputs = self.head.outputs if self.head else ()
        sides = [value.height for value in outputs]
        return max((round(self.height / n) if n <= self.height else 0 for n in sides), default=1)


@dataclass(slots=True)
class ArchitectureBuilder:
    """Adds parts one by one. Activations in a checkpoint's ``modules`` override ``activation``."""

    architecture: Architecture
    activation: Activation
    modules: Mapping[str, Module] = field(default_factory=dict)
    row: YamlRow | None = None  # the row that is being added, for messages
    parameters: int = 0

    def conv(
        self,
        path: str,
        x: Value,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        activation: Activation | None = None,
    ) -> Value:
        """Add a block Conv: convolution (path.conv), batch norm (.bn) and activation (.act)."""
        activation = self._stored_activation(path) or activation or self.activation
        return self.convolution(path, x, channels, kernel, stride, padding, groups, activation)

    def convolution(
        self,
        path: str,
        x: Value,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        activation: Activation = LINEAR,
        *,
        form: str = "normed",
    ) -> Value:
        assert self.row is not None
        padding = kernel // 2 if padding is None else padding
        if x.channels % groups or channels % groups:
            raise self.row.error(
                f"cannot divide {x.channels} input channels and {channels} output channels into "
                f"{groups} groups"
            )
        node = {"normed": f"{path}.conv", "rep": f"{path}.rbr_reparam"}.get(form, path)
        height, width = (_side(side, kernel, stride, padding) for side in (x.height, x.width))
        step = ConvStep(
            path=path,
            inputs=(x,),
            out=self._value(
                node if activation == LINEAR else f"{path}.act", channels, height, width
            ),
            form=form,
            kernel=kernel,
            stride=stride,
            padding=padding,
            groups=groups,
            activation=activation,
            node=node,
        )
        self.parameters += step.parameters
        if self.parameters > MAX_PARAMETERS:
            raise self.row.error(
                f"up to here the network needs more than {MAX_PARAMETERS} parameters; "
                "check channels"
            )
        return self._add(step)

    def max_pool(
        self, path: str, x: Value, kernel: int, stride: int = 1, padding: int | None = None
    ) -> Value:
        padding = kernel // 2 if padding is None else padding
        height, width = (_side(side, kernel, stride, padding) for side in (x.height, x.width))
        out = self._value(path, x.channels, height, width)
        return self._add(
            PoolStep(path=path, inputs=(x,), out=out, kernel=kernel, stride=stride, padding=padding)
        )

    def concat(self, path: str, parts: Sequence[Value]) -> Value:
        assert self.row is not None
        if len({(part.height, part.width) for part in parts}) > 1:
            raise self.row.error(
                f"joins maps of different sizes: {', '.join(part.size for part in parts)}"
            )
        if len(parts) == 1:
            return parts[0]
        out = self._value(
            path, sum(part.channels for part in parts), parts[0].height, parts[0].width
        )
        return self._add(ConcatStep(path=path, inputs=tuple(parts), out=out))

    def add(self, path: str, a: Value, b: Value) -> Value:
        assert self.row is not None
        if (a.channels, a.height, a.width) != (b.channels, b.height, b.width):
            raise self.row.error(
                f"adds {a.channels} channels of {a.size} to {b.channels} channels of {b.size}"
            )
        return self._add(
            Add(path=path, inputs=(a, b), out=self._value(path, a.channels, a.height, a.width))
        )

    def upsample(self, path: str, x: Value, scale: int) -> Value:
        out = self._value(path, x.channels, x.height * scale, x.width * scale)
        return self._add(UpsampleStep(path=path, inputs=(x,), out=out, scale=scale))

    def fold_pixels(self, path: str, x: Value) -> Value:
        """Return ``x`` with 2x2 pixels as channels. Only a convolution can read such a value."""
        assert self.row is not None
        if x.folded is not None:
            raise self.row.error("follows another such block; put a convolution between the two")
        if x.height % 2 or x.width % 2:
            raise self.row.error(f"halves a {x.size} map, but both sides must be even")
        return Value(path, 4 * x.channels, x.height // 2, x.width // 2, folded=x)

    def _stored_activation(self, path: str) -> Activation | None:
        """Return the activation of the checkpoint's module path.act; None if there is none."""
        module = self.modules.get(f"{path}.act")
        if module is None:
            return None
        assert self.row is not None
        name, slope = module.path.rpartition(".")[2], module.settings.get("negative_slope", 0.01)
        activation = activation_of(name, slope if isinstance(slope, float) else -1.0)
        if activation is None:
            raise self.row.error(
                f"its activation {module.path} is not supported; export the model to ONNX instead"
            )
        return activation

    def _value(self, name: str, channels: int, height: int, width: int) -> Value:
        assert self.row is not None
        if height < 1 or width < 1:
            raise self.row.error(
                f"makes an empty map from a {self.architecture.width}x{self.architecture.height} "
                "input; use a larger --size"
            )
        if channels * height * width > MAX_TENSOR or channels > 65_536:
            raise self.row.error(
                f"gives {channels} channels of {width}x{height}; "
                "check channels, or use a smaller --size"
            )
        return Value(name, channels, height, width)

    def _add(self, step: NetStep) -> Value:
        assert self.row is not None
        for value in step.inputs:
            first = value.name == "images" or (
                value.folded is not None and value.folded.name == "images"
            )
            if (value.folded or first) and not isinstance(step, ConvStep):
                what = "the picture" if first else f"the output of {value.name}"
                raise self.row.error(f"reads {what}; only a convolution can")
        if len(self.architecture.steps) >= MAX_STEPS:
            raise self.row.error(f"more than {MAX_STEPS} steps; check repeats")
        self.architecture.steps.append(step)
        return step.out


def _side(side: int, kernel: int, stride: int, padding: int) -> int:
    return (side + 2 * padding - kernel) // stride + 1
