"""Front end for ``.onnx`` files from other exporters, and for our own.

``read`` uses these modules in this order:

load.py       file -> ForeignGraph (foreign.py): one input, standard operators, opset 17 or newer
metadata.py   read names, stride, size and task, as the exporter wrote them
shapes.py     set the requested size and batch, and compute all constants;
              rebatch.py: change a batch that the file fixes, if that is provably correct
recognise.py  find the family and the layout of the outputs (models/layouts), with evidence.py
rewrite.py    add our input and outputs, simplify operators, rename nodes

The last two steps are skipped for a file that ``detect-video build --to onnx`` wrote: it describes
itself (models/own_files.py), and already has our input, outputs and names.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core.errors import ModelError
from detector.core.models.base import (
    FrontEnd,
    InputRules,
    ModelRequest,
    Network,
    random_weights_warning,
)
from detector.core.models.description import family_names, geometry_of, given_size, read_description
from detector.core.models.formats.onnx.evidence import Evidence
from detector.core.models.formats.onnx.foreign import attributes_of
from detector.core.models.formats.onnx.recognise import ALIASES
from detector.core.models.names import find_names
from detector.core.models.own_files import KEY, parse_description

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from detector.core.models.formats.onnx.foreign import ForeignGraph
    from detector.core.models.layouts.base import Bound

SUFFIXES = (".onnx",)

MAX_MACS = 10**15  # per picture; YOLOv8x at 8192x8192 has 2e13
DEFAULT_STRIDE = 32  # if neither the file nor its layout states one
WEIGHTED = frozenset(
    "Conv ConvTranspose Gemm MatMul BatchNormalization LayerNormalization InstanceNormalization "
    "GroupNormalization PRelu QLinearConv ConvInteger MatMulInteger QLinearMatMul".split()
)
# Advice for impossible detections, if we built the file from another exporter's file.
BUILD_AGAIN = "build it again from the exported file, with a --describe that fits it"
ARITHMETIC = frozenset("Add Mul Sub Div".split())


def read(request: ModelRequest) -> Network:
    from detector.core.models.formats.onnx.load import read_graph
    from detector.core.models.formats.onnx.metadata import read_metadata
    from detector.core.models.formats.onnx.pixels import needed_pixels
    from detector.core.models.formats.onnx.recognise import class_names, recognise
    from detector.core.models.formats.onnx.rewrite import (
        join_levels,
        put_prefix,
        rename_all,
        settle_outputs,
        simplify_operators,
    )
    from detector.core.models.formats.onnx.shapes import refuse_costly_constants, settle_shapes
    from detector.core.models.graph.build import infer_shapes, output_shapes

    path, batch = request.path, request.batch
    foreign, sha256 = read_graph(path)
    if KEY in foreign.metadata:
        return _read_own(request, foreign, sha256)
    metadata = read_metadata(str(path), foreign.metadata)
    described = None
    if request.describe is not None:
        described = read_description(request.describe)
        sha256 = hashlib.sha256(f"{sha256} {described}".encode()).hexdigest()
    size = request.size or (None if described is None else given_size(described.input))
    planar, (height, width) = settle_shapes(foreign, metadata, size, batch)
    parameters = _count_parameters(foreign)
    evidence = Evidence(foreign, metadata, height, width, planar)
    result = recognise(evidence, asked=request.family, described=described)
    description, bound = result.description, result.bound
    names, warnings = class_names(path, result, metadata, request.names)
    pixels = needed_pixels(evidence, description, described=described is not None)
    join_levels(foreign, bound.joined)
    _set_columns(foreign, bound)
    settle_outputs(foreign, bound.outputs, bound.bare, batch)
    foreign.infer()
    refuse_costly_constants(foreign)
    _refuse_broken_weights(path, foreign)
    simplify_operators(foreign)
    put_prefix(foreign, pixels, planar=planar)
    rename_all(foreign)
    graph = foreign.model()
    infer_shapes(graph)
    stride = metadata.stride or max(bound.strides, default=DEFAULT_STRIDE)
    geometry, pad = geometry_of(description.input), description.input.pad
    of_picture = description.outputs is not None and description.outputs.boxes.of == "picture"
    rules = InputRules(height, width, geometry, stride, pad, of_picture)
    head, dense = bound.heads(len(names))
    macs, at_most = _count_macs(path, foreign, graph, rules, warnings)
    return Network(
        name=path.stem,
        family=description.family,
        graph=graph,
        input=rules,
        batch=batch,
        output_shapes=output_shapes(graph),
        head=head,
        dense=dense,
        names=names,
        parameters=parameters,
        macs=macs,
        macs_at_most=at_most,
        sha256=sha256,
        needs_nms=bound.needs_nms,
        watched=evidence.advise(),
        warnings=[f"{path.name} is {description.family}: {result.why}", *warnings],
        details={"layout": result.kind, "recognised": result.why},
    )


def describe(request: ModelRequest) -> str:
    from detector.core.models.formats.onnx.describe import describe_graph
    from detector.core.models.formats.onnx.load import read_graph
    from detector.core.models.formats.onnx.metadata import read_metadata
    from detector.core.models.formats.onnx.shapes import settle_shapes

    path = request.path
    foreign, _ = read_graph(path)
    if KEY in foreign.metadata:
        raise ModelError(f"{path}: needs no description: detect-video built it, and it has one")
    metadata = read_metadata(str(path), foreign.metadata)
    planar, size = settle_shapes(foreign, metadata, request.size, request.batch)
    return describe_graph(path, Evidence(foreign, metadata, *size, planar), request.family)


def _read_own(request: ModelRequest, graph: ForeignGraph, sha256: str) -> Network:
    from detector.core.models.formats.onnx.metadata import Metadata
    from detector.core.models.formats.onnx.shapes import refuse_costly_constants, settle_shapes
    from detector.core.models.graph.build import infer_shapes, output_shapes

    path = request.path
    own = parse_description(graph.metadata[KEY], path)
    if request.family is not None:
        raise ModelError(
            f"{path}: --family {request.family}: detect-video wrote this file for {own.family}; "
            "omit the option"
        )
    _, (height, width) = settle_shapes(
        graph, Metadata(stride=own.stride), request.size, request.batch
    )
    refuse_costly_constants(graph)
    _refuse_broken_weights(path, graph)
    model = graph.model()
    infer_shapes(model)
    shapes = _read_output_shapes(path, graph)
    names, warnings = own.names, random_weights_warning(own.random_seed)
    if request.names is not None:
        names, _ = find_names(path, len(own.names), request.names)
    if own.precision != "fp32":
        warnings.append(f"{path.name} holds an {own.precision} graph, which runs unchanged")
    rules = InputRules(height, width, own.geometry, own.stride, own.pad_value, own.of_picture)
    macs, at_most = _count_macs(path, graph, model, rules, warnings)
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
        macs_at_most=at_most,
        sha256=sha256,
        random_seed=own.random_seed,
        needs_nms=own.needs_nms,
        watched=BUILD_AGAIN if own.decoder.watched else "",
        warnings=warnings,
        details={"layout": own.kind, "recognised": "from the metadata of detect-video"},
    )


def _read_output_shapes(path: Path, graph: ForeignGraph) -> list[tuple[int, ...]]:
    from onnx import TensorProto

    shapes = [graph.shape(name) for name in graph.outputs]
    kinds = {graph.types.get(name) for name in graph.outputs}
    if kinds != {TensorProto.FLOAT} or any(shape is None for shape in shapes):
        raise ModelError(
            f"{path}: its outputs are not float32 of fixed shape, so it was changed after the "
            "build; build it again"
        )
    return [shape for shape in shapes if shape is not None]


def _count_macs(
    path: Path, foreign: ForeignGraph, graph: onnx.ModelProto, rules: InputRules, notes: list[str]
) -> tuple[int, bool]:
    """Return the MACs per picture, and whether they are an upper bound. If so, add to ``notes``."""
    from detector.core.models.formats.onnx.most_macs import most_macs
    from detector.core.models.graph.build import count_macs, uncounted

    at_most = bool(uncounted(graph))
    macs = most_macs(foreign, graph) if at_most else count_macs(graph)
    if macs > MAX_MACS:
        raise ModelError(
            f"{path}: takes {macs:.1e} multiply-accumulates per picture at "
            f"{rules.width}x{rules.height}, too many for any machine; use a smaller --size"
        )
    if at_most:
        notes.append(
            f"the picture decides how many rows some layers of {path.name} compute; the "
            f"network takes at most {macs / 1e9:.3g} GMACs"
        )
    return macs, at_most


FRONT_END = FrontEnd(read, families=(*family_names(), *ALIASES), describe=describe)


def _set_columns(graph: ForeignGraph, bound: Bound) -> None:
    """Set the number of columns of the boxes' output if shape inference did not find it."""
    reading = bound.reading
    assert reading is not None
    boxes = reading.boxes
    name = bound.outputs[boxes.output]
    if boxes.count is not None and boxes.output != reading.scores.output:
        *sides, columns = graph.dims[name]
        if columns is None and not boxes.across:
            graph.dims[name] = (*sides, boxes.first + boxes.count)


def _count_parameters(graph: ForeignGraph) -> int:
    """Count the values of weights, biases and factors per channel."""
    from math import prod

    weights: set[str] = set()
    for node in graph.nodes:
        if node.op_type == "DequantizeLinear" and node.input[0] in graph.constants:
            weights.add(node.input[0])
        for name in node.input[0 if node.op_type in ARITHMETIC else 1 :]:
            dims = graph.dims.get(name, ())
            per_channel = len(dims) == 1 and dims[0] != 1
            if name in graph.constants and (
                node.op_type in WEIGHTED or (node.op_type in ARITHMETIC and per_channel)
            ):
                weights.add(name)
    return sum(prod(graph.constants[name].dims) for name in weights)


def _refuse_broken_weights(path: Path, graph: ForeignGraph) -> None:
    """Refuse NaN in any constant, infinity in weights (but not in masks), and wrong scales."""
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
                        "damaged or the training diverged; download it or train it again"
                    )
                if quantising and at == 1 and not _scales_fit(graph, node, values):
                    raise ModelError(
                        f"{path}: the scales of {node.name} are not above zero, or do not match "
                        "its channels: the file is damaged; download it, or quantise it again"
                    )


def _scales_fit(graph: ForeignGraph, node: onnx.NodeProto, scales: NDArray[Any]) -> bool:
    """Return whether the scales are positive and fit: one in all, or one per channel or block."""
    if not (scales > 0).all():
        return False
    shape = graph.shape(node.input[0])
    if scales.ndim != 1 or shape is None:
        return scales.ndim > 0 or scales.size == 1
    axis = attributes_of(node).get("axis", 1)
    return scales.size == 1 or (-len(shape) <= axis < len(shape) and scales.size == shape[axis])
