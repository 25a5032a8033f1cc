"""Front end for ``.onnx`` files that others exported: YOLOv5 to 26, YOLOX and RT-DETR.

``read`` goes through these files in this order:

load.py       file -> ForeignGraph (foreign.py): one input, standard operators, opset 17 or newer
metadata.py   names, stride, size and task, as the exporter wrote them
shapes.py     the size and batch asked for, with everything constant computed;
              rebatch.py: another batch than the file's own, where that is proven right
recognise.py  which family it is, how its outputs are laid out, and which head reads them
rewrite.py    our input and outputs, plainer operators, and our names

A file that ``detect-video build --to onnx`` wrote says itself what it is (models/own_files.py), and
has our input, outputs and names already: the last two steps are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.errors import ModelError
from detector.errors.text import counted
from detector.models.base import FrontEnd, InputRules, ModelRequest, Network, random_weights_warning
from detector.models.formats.onnx.foreign import attributes_of
from detector.models.formats.onnx.recognise import ALIASES, FAMILIES, LAYOUTS, build_head
from detector.models.names import find_names, read_names
from detector.models.own_files import KEY, parse_description

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from detector.models.formats.onnx.foreign import ForeignGraph
    from detector.models.formats.onnx.metadata import Metadata
    from detector.models.formats.onnx.recognise import Layout

SUFFIXES = (".onnx",)

COCO = 80  # classes
MAX_MACS = 10**15  # of one picture; YOLOv8x at 8192x8192 has 2e13
DEFAULT_STRIDE = 32  # where neither the file nor its layout tells
WEIGHTED = frozenset(
    "Conv ConvTranspose Gemm MatMul BatchNormalization LayerNormalization InstanceNormalization "
    "GroupNormalization PRelu QLinearConv ConvInteger MatMulInteger QLinearMatMul".split()
)
SMALL_OPERANDS = frozenset("Add Mul Sub Div".split())


def read(request: ModelRequest) -> Network:
    """The network of an exported file. Raises ModelError."""
    from detector.models.formats.onnx.load import read_graph
    from detector.models.formats.onnx.metadata import read_metadata
    from detector.models.formats.onnx.recognise import recognise
    from detector.models.formats.onnx.rewrite import (
        put_prefix,
        rename_all,
        settle_outputs,
        simplify_operators,
    )
    from detector.models.formats.onnx.shapes import refuse_costly_constants, settle_shapes
    from detector.models.graph.build import count_macs, infer_shapes, output_shapes

    path, batch = request.path, request.batch
    foreign, sha256 = read_graph(path)
    if KEY in foreign.metadata:
        return _read_own(request, foreign, sha256)
    metadata = read_metadata(str(path), foreign.metadata)
    planar, (height, width) = settle_shapes(foreign, metadata, request.size, batch)
    parameters = _count_parameters(foreign)
    family = ALIASES.get(request.family or "", request.family)
    result = recognise(foreign, metadata, (height, width), family)
    layout, wants = result.layout, result.family
    class_names, warnings = _class_names(path, layout, metadata, request.names)
    settle_outputs(foreign, layout.outputs, batch)
    foreign.infer()
    refuse_costly_constants(foreign)
    _refuse_broken_weights(path, foreign)
    simplify_operators(foreign)
    put_prefix(foreign, planar=planar, bgr=wants.bgr, scale=wants.scale)
    rename_all(foreign)
    graph = foreign.model()
    infer_shapes(graph)
    stride = metadata.stride or max(layout.strides, default=DEFAULT_STRIDE)
    rules = InputRules(height, width, wants.geometry, stride, wants.pad_value)
    head, dense = build_head(layout, rules, len(class_names))
    macs = count_macs(graph)
    _refuse_endless(path, macs, rules)
    return Network(
        name=path.stem,
        family=wants.name,
        graph=graph,
        input=rules,
        batch=batch,
        output_shapes=output_shapes(graph),
        head=head,
        dense=dense,
        names=class_names,
        parameters=parameters,
        macs=macs,
        sha256=sha256,
        needs_nms=LAYOUTS[layout.kind].needs_nms,
        warnings=[f"{path.name} is {wants.name}: {result.why}", *warnings],
        details={"layout": layout.kind, "recognised": result.why},
    )


def _read_own(request: ModelRequest, graph: ForeignGraph, sha256: str) -> Network:
    """The network of a file that this program wrote. Raises ModelError."""
    from detector.models.formats.onnx.metadata import Metadata
    from detector.models.formats.onnx.shapes import refuse_costly_constants, settle_shapes
    from detector.models.graph.build import count_macs, infer_shapes, output_shapes

    path = request.path
    own = parse_description(graph.metadata[KEY], path)
    if request.family is not None:
        raise ModelError(
            f"{path}: --family {request.family}: detect-video wrote this file, and it says itself "
            f"that it is {own.family}; leave the option out"
        )
    _, (height, width) = settle_shapes(
        graph, Metadata(stride=own.stride), request.size, request.batch
    )
    refuse_costly_constants(graph)
    _refuse_broken_weights(path, graph)
    model = graph.model()
    infer_shapes(model)
    shapes = _fixed_outputs(path, graph)
    names, warnings = own.names, random_weights_warning(own.random_seed)
    if request.names is not None:
        names, _ = find_names(path, len(own.names), request.names)
    if own.precision != "fp32":
        warnings.append(f"{path.name} holds a graph in {own.precision}: it runs as it is")
    rules = InputRules(height, width, own.geometry, own.stride, own.pad_value)
    macs = count_macs(model)
    _refuse_endless(path, macs, rules)
    head, dense = own.head(path, rules, shapes, len(names))
    return Network(
        name=path.stem,
        family=own.family,
        graph=model,
        input=rules,
        batch=request.batch,
        output_shapes=output_shapes(model),
        head=head,
        dense=dense,
        names=names,
        parameters=own.parameters,
        parameters_fused=own.parameters_fused,
        macs=macs,
        sha256=sha256,
        random_seed=own.random_seed,
        needs_nms=own.needs_nms,
        warnings=warnings,
        details={"layout": own.kind, "recognised": "from what detect-video wrote into it"},
    )


def _fixed_outputs(path: Path, graph: ForeignGraph) -> list[tuple[int, ...]]:
    """The shapes of the outputs. Raises ModelError where they are not those of our graphs."""
    from onnx import TensorProto

    shapes = [graph.shape(name) for name in graph.outputs]
    kinds = {graph.types.get(name) for name in graph.outputs}
    if kinds != {TensorProto.FLOAT} or any(shape is None for shape in shapes):
        raise ModelError(
            f"{path}: its outputs are not float32 of fixed shape, as detect-video writes them; "
            "build it again"
        )
    return [shape for shape in shapes if shape is not None]


def _refuse_endless(path: Path, macs: int, rules: InputRules) -> None:
    if macs > MAX_MACS:
        raise ModelError(
            f"{path}: takes {macs:.1e} multiply-accumulates a picture at "
            f"{rules.width}x{rules.height}, which no machine computes in time; use a smaller --size"
        )


FRONT_END = FrontEnd(read, families=(*FAMILIES, *ALIASES))


def _count_parameters(graph: ForeignGraph) -> int:
    """The number of learned values, as the graph holds them.

    These are the operands of operators that have weights, and biases and factors for each channel.
    Grids and scales that an exporter computed are not counted.
    """
    from math import prod

    learned: set[str] = set()
    for node in graph.nodes:
        if node.op_type == "DequantizeLinear" and node.input[0] in graph.constants:
            learned.add(node.input[0])  # a quantised weight
        for name in node.input[0 if node.op_type in SMALL_OPERANDS else 1 :]:
            dims = graph.dims.get(name, ())
            per_channel = len(dims) == 1 and dims[0] != 1
            if name in graph.constants and (
                node.op_type in WEIGHTED or (node.op_type in SMALL_OPERANDS and per_channel)
            ):
                learned.add(name)
    return sum(prod(graph.constants[name].dims) for name in learned)


def _refuse_broken_weights(path: Path, graph: ForeignGraph) -> None:
    """A network with NaN or infinite weights detects nothing, or anything, without an error.

    Infinity has its place in other constants: as a limit, or behind a mask. NaN has none.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        for node in graph.nodes:
            quantising = node.op_type in ("QuantizeLinear", "DequantizeLinear")
            for at, name in enumerate(node.input):
                values = graph.value(name) if name else None
                if values is None or values.dtype.kind not in "fV":
                    continue
                values = values.astype(np.float32) if values.dtype.kind == "V" else values
                weights = quantising or (at > 0 and node.op_type in WEIGHTED)
                if np.isnan(values).any() or (weights and not np.isfinite(values).all()):
                    raise ModelError(
                        f"{path}: the weights of {node.name} are not finite numbers: the file is "
                        "damaged, or the training diverged; download or train it again"
                    )
                if quantising and at == 1 and not _scales_fit(graph, node, values):
                    raise ModelError(
                        f"{path}: the scales of {node.name} are not above zero, or not one for "
                        "each channel: the file is damaged; download it, or quantise it again"
                    )


def _scales_fit(graph: ForeignGraph, node: onnx.NodeProto, scales: NDArray[Any]) -> bool:
    """Whether scales are above zero, and one for all, one a channel, or of blocks."""
    if not (scales > 0).all():
        return False
    shape = graph.shape(node.input[0])
    if scales.ndim != 1 or shape is None:
        return scales.ndim > 0 or scales.size == 1
    axis = attributes_of(node).get("axis", 1)
    return scales.size == 1 or (-len(shape) <= axis < len(shape) and scales.size == shape[axis])


def _class_names(
    path: Path, layout: Layout, metadata: Metadata, given: Path | None
) -> tuple[tuple[str, ...], list[str]]:
    """The names from ``given``, else the file's own, else those beside the file, else COCO's.

    The list holds warnings for the user.
    """
    if given is None and metadata.names is not None:
        if layout.classes is not None and len(metadata.names) != layout.classes:
            raise ModelError(
                f"{path}: its metadata holds {counted(len(metadata.names), 'name')}, its output "
                f"has {counted(layout.classes, 'class')}; give --names FILE with one name a class"
            )
        return metadata.names, []
    if layout.classes is not None:
        return find_names(path, layout.classes, given)
    # Finished detections do not tell how many classes there are.
    if given is not None:
        return read_names(given), []
    names, warnings = find_names(path, COCO, None)
    assumed = f"{path.name} names no classes: COCO's {COCO} are assumed; --names FILE gives others"
    return names, [*warnings, assumed]
