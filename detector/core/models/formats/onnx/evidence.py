"""Facts about a graph that decide between the layouts (models/layouts): shapes, operators and
constants, and the results of a test run (the probe)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core import __address__
from detector.core.models.formats.onnx.foreign import ForeignGraph, attributes_of
from detector.core.models.layouts.output_shapes import MAX_DETECTIONS, Dims, OutputShapes
from detector.core.models.probed import draw, is_dark, measure_spread

if TYPE_CHECKING:
    import onnx

    from detector.core.models.formats.onnx.metadata import Metadata

# Operators that only move or round values, or apply a logistic function.
TRANSPARENT = frozenset(
    "Concat Transpose Reshape Identity Cast Sigmoid Slice Split Squeeze Unsqueeze Flatten "
    "QuantizeLinear DequantizeLinear".split()
)
# Operators that move a picture's values without changing them.
MOVING = frozenset(
    "Cast Transpose Identity Unsqueeze Squeeze Reshape Slice Split Concat Gather Pad Resize".split()
)
ROUNDING = frozenset(("QuantizeLinear", "DequantizeLinear"))
AFFINE = frozenset("Mul Div Add Sub".split())
MAX_STEPS = 64  # at most this many nodes after the input are examined

DESCRIBE_OUTPUTS = (
    "describe its outputs: `detect-video models describe {}` writes a file for --describe"
)
DESCRIBE_PIXELS = (
    "state what pixels it takes: `detect-video models describe` writes a file for --describe; "
    "set its key input.scale"
)
PAGE = f"{__address__}/blob/main/docs/models.md"
YOLOS = re.compile(r"yolox|yolov?(5|6|7|8|9|10|11|12|26)(?!\d)|rt[-_]?detr")

# A graph that multiplies pixels by less than this (1/255, or 1/58 with a deviation) takes pixels
# of 0..255. Other graphs take 0..1.
LARGEST_PIXEL_FACTOR = 0.05


@dataclass(frozen=True, slots=True)
class PixelSteps:
    """The graph's own conversion of pixels: ``factor`` x pixel + ``offset``, for each channel."""

    factor: NDArray[np.float64]
    offset: NDArray[np.float64]
    swaps_channels: bool = False

    @property
    def scales(self) -> bool:
        return bool(np.abs(self.factor).max() < LARGEST_PIXEL_FACTOR)

    @property
    def divides(self) -> bool:
        """Whether the graph divides by a deviation, in addition to scaling pixels to 0..1."""
        plain = 1 / 255 if self.scales else 1.0
        return bool(np.ptp(self.factor) > 1e-9 or abs(self.factor[0] / plain - 1) > 0.05)

    @property
    def subtracts(self) -> bool:
        return bool(self.offset.any())

    @property
    def normalises(self) -> bool:
        return self.divides or self.subtracts


@dataclass(slots=True)
class Evidence(OutputShapes):
    graph: ForeignGraph
    metadata: Metadata
    height: int
    width: int
    planar: bool
    forced: bool = False
    suffix: str = ".onnx"  # of the model file
    # What the file states about its input, as keys of ``InputDescription``.
    stated: Mapping[str, Any] = field(default_factory=dict)
    makers: dict[str, onnx.NodeProto] = field(init=False)
    response: float | None = None  # result of ``probed.measure_spread``; None before the probe
    _probed: Mapping[str, NDArray[Any]] | None = None
    _was_probed: bool = False
    _bright: bool = False

    def __post_init__(self) -> None:
        self.makers = self.graph.makers()

    def dims(self, name: str) -> Dims:
        return self.graph.dims.get(name, ())

    def outputs(self) -> dict[str, Dims]:
        return {name: self.dims(name) for name in self.graph.outputs}

    def fits_names(self, classes: int) -> bool:
        names = self.metadata.names
        return names is None or len(names) == classes or self.forced

    def stated_family(self) -> tuple[str | None, str]:
        """Return the stated family, a YOLO or RT-DETR, and its origin: metadata or file name."""
        for text, where in (
            (self.metadata.description, "from the metadata"),
            (self.graph.name, "from the file's name"),
        ):
            if (match := YOLOS.search(text.lower())) is None:
                continue
            if (number := match.group(1)) is None:
                return ("yolox" if match.group() == "yolox" else "rtdetr"), where
            return (f"yolov{number}" if int(number) <= 10 else f"yolo{number}"), where
        return None, ""

    def has_exporter_metadata(self) -> bool:
        """Return whether the file has the metadata that Ultralytics' exporters write."""
        return self.metadata.names is not None and self.metadata.stride is not None

    def is_yolo(self) -> bool:
        """Return whether name or metadata shows a YOLO. (Shapes do not: RTMDet has the same.)"""
        return self.stated_family()[0] is not None or self.has_exporter_metadata()

    def has_separate_boxes(self) -> bool:
        """Return whether boxes and scores are in separate outputs (YOLO-NAS)."""
        return not self.forced and any(side == 4 for _, _, side in self.rank3_outputs())

    def looks_like_list(self, rows: int, columns: int) -> bool:
        """Return whether only a list of finished detections can have this shape."""
        return (
            columns == 6
            and rows <= MAX_DETECTIONS
            and not self.pyramid(rows, 1)
            and not self.pyramid(rows, 3)
        )

    def advise(self) -> str:
        return DESCRIBE_OUTPUTS.format(f"{self.graph.name}{self.suffix}")

    def ends_in_class(self, name: str, columns: int) -> bool:
        """Return whether rows of six numbers end in a score and a class, not in two scores."""
        if columns != 6:
            return False
        if not self.fits_names(2):
            return True
        node = self.maker(name)
        last = self.makers.get(node.input[-1]) if node and node.op_type == "Concat" else None
        return last is not None and last.op_type == "Cast"

    def has_operator(self, operator: str) -> bool:
        return any(node.op_type == operator for node in self.graph.nodes)

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node that computes a tensor, looking through Identity and Cast."""
        node = self.makers.get(name)
        while node is not None and node.op_type in ("Identity", "Cast"):
            node = self.makers.get(node.input[0])
        return node

    def sides(self, name: str) -> str:
        """Return how boxes are computed: "linear" for the logistic of a linear layer (DETR),
        "moved" if a query's position is added before the logistic (Conditional DETR), else ""."""
        node = self._skip_moves(name)
        if node is None or node.op_type != "Sigmoid":
            return ""
        node = self._skip_moves(node.input[0])
        if node is None:
            return ""
        if node.op_type in ("ScatterND", "Concat"):
            return "moved"
        bias = [value for tensor in node.input if (value := self.graph.value(tensor)) is not None]
        if node.op_type == "Gemm" or (node.op_type == "Add" and bias and bias[0].size == 4):
            return "linear"
        return "moved" if node.op_type == "Add" else ""

    def _skip_moves(self, name: str) -> onnx.NodeProto | None:
        node = self.makers.get(name)
        while node is not None and node.op_type != "Concat" and node.op_type in MOVING | ROUNDING:
            node = self.makers.get(node.input[0])
        return node

    def is_raw(self, name: str) -> bool:
        """Return whether an output only joins outputs of convolutions, perhaps after a logistic."""
        pending, visited = [name], set()
        while pending:
            node = self.makers.get(pending.pop())
            if node is None:
                return False
            if node.op_type == "Conv" or id(node) in visited:
                continue
            visited.add(id(node))
            if node.op_type not in TRANSPARENT:
                return False
            constants = self.graph.constants
            pending += [tensor for tensor in node.input if tensor and tensor not in constants]
        return True

    def names_before(self, name: str) -> str:
        """Return the names of the nodes from an output back to its convolutions."""
        pending, words = [name], []
        visited: set[int] = set()
        while pending and len(visited) < 300:
            node = self.makers.get(pending.pop())
            if node is None or id(node) in visited:
                continue
            visited.add(id(node))
            words.append(node.name)
            if node.op_type != "Conv":
                pending += [tensor for tensor in node.input if tensor in self.makers]
        return " ".join(words)

    def joined_widths(self, name: str, columns: int) -> list[int]:
        """Return the widths of the parts that form an output's ``columns``, or [] if unknown."""
        node = self.maker(name)
        while node is not None and node.op_type == "Transpose":
            node = self.maker(node.input[0])
        if node is None or node.op_type != "Concat":
            return []
        widths: list[int] = []
        for tensor in node.input:
            inner = self.joined_widths(tensor, 0)
            side = self._measure_part(node, tensor)
            if side is None:
                return []
            widths += inner if sum(inner) == side else [side]
        return widths if columns in (0, sum(widths)) else []

    def find_joined_part(self, name: str, width: int) -> int | None:
        """Return the column at which an output's first part of this width begins, or None."""
        node = self.maker(name)
        if node is None or node.op_type != "Concat" or attributes_of(node)["axis"] not in (1, -1):
            return None
        start = 0
        for tensor in node.input:
            dims = self.dims(tensor)
            if len(dims) != 2 or dims[1] is None:
                return None
            if dims[1] == width:
                return start
            start += dims[1]
        return None

    def _measure_part(self, node: onnx.NodeProto, tensor: str) -> int | None:
        """Return the length of a tensor along the axis of the Concat that reads it."""
        dims, axis = self.dims(tensor), attributes_of(node)["axis"]
        return dims[axis] if -len(dims) <= axis < len(dims) else None

    def output_shapes(self) -> str:
        shapes = [
            f"{name} [{', '.join('?' if dim is None else str(dim) for dim in self.dims(name))}]"
            for name in self.graph.outputs
        ]
        return f"its outputs at {self.width}x{self.height} are {', '.join(shapes)}"

    def stem(self) -> set[int]:
        """Return the kernel sides of the convolutions that read the picture."""
        weights = [self.dims(node.input[1]) for node in self.first_convolutions()]
        return {dims[-1] if dims and dims[-1] is not None else 0 for dims in weights}

    def first_convolutions(self) -> list[onnx.NodeProto]:
        return [node for node in self._find_readers() if node.op_type == "Conv"]

    def _find_readers(self) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that read the picture, directly or after it was moved or scaled."""
        readers, pending, visited = self.graph.readers(), [self.graph.input.name], 0
        while pending and visited < MAX_STEPS:
            for node in readers.get(pending.pop(0), ()):
                visited += 1
                yield node
                if node.op_type in MOVING or node.op_type in AFFINE:
                    pending += node.output

    def pixel_steps(self) -> PixelSteps:
        factor, offset, swapped = np.ones(1), np.zeros(1), False
        readers, name = self.graph.readers(), self.graph.input.name
        for _ in range(MAX_STEPS):
            nodes = [node for node in readers.get(name, ()) if node.op_type != "Shape"]
            if len(nodes) != 1 or nodes[0].input[0] not in (name, *self.graph.constants):
                break
            node = nodes[0]
            if node.op_type in AFFINE:
                step = self._read_affine(node, name)
                if step is None:
                    break
                factor, offset = factor * step[0], offset * step[0] + step[1]
            elif node.op_type not in MOVING:
                break
            elif self._reverses_channels(node):
                factor, offset, swapped = factor[::-1], offset[::-1], not swapped
            name = node.output[0]
        return PixelSteps(factor, offset, swapped)

    def _reverses_channels(self, node: onnx.NodeProto) -> bool:
        """Return whether a node reverses three channels: x[:, [2, 1, 0]], or x.flip(1)."""
        if node.op_type == "Gather":
            order, axis = self.graph.value(node.input[1]), attributes_of(node).get("axis", 0)
            shape = self.dims(node.input[0])
            return order is not None and order.tolist() == [2, 1, 0] and shape[axis] == 3
        if node.op_type == "Slice" and len(node.input) == 5:
            steps, axes = self.graph.value(node.input[4]), self.graph.value(node.input[3])
            backwards = steps is not None and steps.tolist() == [-1]
            return backwards and axes is not None and self.dims(node.input[0])[int(axes[0])] == 3
        return False

    def _read_affine(
        self, node: onnx.NodeProto, name: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return a node's factor and offset; None without a constant of one or three values."""
        at = 1 if node.input[0] == name else 0
        value = self.graph.value(node.input[at])
        if value is None or value.size not in (1, 3) or not np.isfinite(value).all():
            return None
        constant = value.astype(np.float64).reshape(-1)
        one, zero = np.ones(1), np.zeros(1)
        if node.op_type == "Mul":
            return constant, zero
        if node.op_type == "Add":
            return one, constant
        if node.op_type == "Div" and at == 1 and constant.all():
            return 1 / constant, zero
        if node.op_type == "Sub":
            return (one, -constant) if at == 1 else (-one, constant)
        return None

    def probe(self) -> Mapping[str, NDArray[Any]] | None:
        if not self._was_probed:
            self._was_probed = True
            self._probed = self._run_probe()
            if self.response is not None and is_dark(self.response) and not self.is_bright():
                self._bright = True
                self._probed = self._run_probe()
        return self._probed

    def is_bright(self) -> bool:
        """Return whether the graph or its weights show that pixels are 0..255, not 0..1."""
        from onnx import TensorProto

        kind = self.graph.input.type.tensor_type.elem_type
        return self._bright or kind == TensorProto.UINT8 or self.pixel_steps().scales

    def _run_probe(self) -> dict[str, NDArray[Any]] | None:
        first = [node.output[0] for node in self.first_convolutions()[:1]]
        results = self._run([*self.graph.outputs, *first], self._draw_picture(self.is_bright()))
        if results is not None and first:
            self.response = measure_spread(results.pop(first[0])[0])
        return results

    def _draw_picture(self, bright: bool) -> NDArray[Any]:
        """Return a synthetic picture in the shape and type of the input, in 0..1 or 0..255."""
        from onnx import helper

        tensor = self.graph.input.type.tensor_type
        picture = draw(self.height, self.width).astype(np.float32)
        if not bright:
            picture /= 255
        if self.planar:
            picture = picture.transpose(2, 0, 1)
        if len(tensor.shape.dim) == 4:
            picture = np.repeat(picture[None], tensor.shape.dim[0].dim_value, axis=0)
        return np.ascontiguousarray(picture).astype(
            helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        )

    def _run(self, names: list[str], picture: NDArray[Any]) -> dict[str, NDArray[Any]] | None:
        """Return the tensors ``names`` of a run, or None if it fails (an engine will say why)."""
        import onnxruntime
        from onnx import helper

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        model = self.graph.model()
        model.graph.output.extend(
            helper.make_empty_tensor_value_info(name)
            for name in names
            if name not in self.graph.outputs
        )
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            results = session.run(list(names), {self.graph.input.name: picture})
        except Exception:  # onnxruntime's own errors, and protobuf's above 2 GiB
            return None
        return dict(zip(names, results, strict=True))
