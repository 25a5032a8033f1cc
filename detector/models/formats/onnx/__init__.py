"""Front end for ``.onnx`` files that others exported: YOLOv5 to 26, YOLOX, RT-DETR, with NMS inside or not.

load.py       file -> ForeignGraph: one input, standard operators, opset 17
fold.py       what does not depend on the picture is computed; shapes become fixed
rebatch.py    another batch than the file's own, where that is proven right; resize.py: another size
metadata.py   names, stride, size and task, as the exporter wrote them
recognise.py  which family it is, and how its outputs are laid out; families.py: the table
prefix.py     u8 RGB NHWC at the input; outputs.py: float32 and fixed shapes at the end
plain.py, naming.py  plainer operators, and names of the house
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.errors import ModelError
from detector.models.base import FrontEnd, InputRules, ModelRequest, Network
from detector.models.formats.onnx.recognise import (
    ALIASES,
    DECODED,
    END_TO_END,
    FAMILIES,
    GRID,
    QUERIES,
)
from detector.models.names import find_names
from detector.stages.heads import (
    Grid,
    anchor_free,
    anchor_free_dense,
    decoded,
    decoded_dense,
    end_to_end,
    end_to_end_dense,
    queries,
    queries_dense,
    yolox,
    yolox_dense,
)

if TYPE_CHECKING:
    from detector.models.formats.onnx.foreign import ForeignGraph
    from detector.models.formats.onnx.recognise import Layout, Metadata

SUFFIXES = (".onnx",)

COCO = 80
WEIGHTED = frozenset(
    "Conv ConvTranspose Gemm MatMul BatchNormalization LayerNormalization InstanceNormalization GroupNormalization "
    "PRelu QLinearConv ConvInteger MatMulInteger QLinearMatMul".split()
)
SMALL_OPERANDS = frozenset("Add Mul Sub Div".split())
STRIDE = 32  # where the file does not say


def read(request: ModelRequest) -> Network:
    """The network of an exported file. Raises ModelError."""
    from detector.models.formats.onnx.load import load
    from detector.models.formats.onnx.recognise import read_metadata, recognise
    from detector.models.formats.onnx.rewrite import (
        make_plain,
        put_prefix,
        rename_all,
        settle_outputs,
    )
    from detector.models.formats.onnx.shapes import settle_shapes
    from detector.models.graph.build import count_macs, infer_shapes, output_shapes

    path, batch = request.path, request.batch
    foreign, sha256 = load(path)
    metadata = read_metadata(str(path), foreign.metadata)
    planar, (height, width) = settle_shapes(foreign, metadata, request.size, batch)
    parameters = _parameters(foreign)
    family = ALIASES.get(request.family or "", request.family)
    found = recognise(foreign, metadata, (height, width), family)
    class_names, warnings = _class_names(path, found.layout, metadata, request.names)
    settle_outputs(foreign, found.layout.outputs, batch)
    foreign.infer()
    make_plain(foreign)
    put_prefix(foreign, planar=planar, bgr=found.family.bgr, scale=found.family.scale)
    rename_all(foreign)
    _refuse_broken_weights(path, foreign)
    graph = foreign.model()
    infer_shapes(graph)
    rules = InputRules(
        height,
        width,
        found.family.geometry,
        metadata.stride or max(found.layout.strides, default=STRIDE),
        found.family.pad_value,
    )
    head, dense = _head(found.layout, rules, len(class_names))
    return Network(
        name=path.stem,
        family=found.family.name,
        graph=graph,
        input=rules,
        batch=batch,
        output_shapes=output_shapes(graph),
        head=head,
        dense=dense,
        names=class_names,
        parameters=parameters,
        macs=count_macs(graph),
        sha256=sha256,
        needs_nms=found.layout.kind not in (END_TO_END, QUERIES),
        warnings=[f"{path.name} is {found.family.name}: {found.why}", *warnings],
        details={"layout": found.layout.kind, "recognised": found.why},
    )


FRONT_END = FrontEnd(read, families=(*FAMILIES, *ALIASES))


def _parameters(graph: ForeignGraph) -> int:
    """Numbers that were learned, as the graph holds them: operands of the operators that have weights, and biases and
    factors per channel. Grids and scales that an exporter computed are not among them."""
    from math import prod

    learned: set[str] = set()
    for node in graph.nodes:
        if node.op_type == "DequantizeLinear" and node.input[0] in graph.constants:
            learned.add(node.input[0])  # a quantised weight
        for name in node.input[0 if node.op_type in SMALL_OPERANDS else 1 :]:
            sides = graph.dims.get(name, ())
            large = len(sides) == 1 and sides[0] != 1
            if name in graph.constants and (
                node.op_type in WEIGHTED or (node.op_type in SMALL_OPERANDS and large)
            ):
                learned.add(name)
    return sum(prod(graph.constants[name].dims) for name in learned)


def _refuse_broken_weights(path: Path, graph: ForeignGraph) -> None:
    """Such a network detects nothing, or anything; nobody would know why."""
    import numpy as np

    for node in graph.nodes:
        for name in node.input[1:] if node.op_type in WEIGHTED else ():
            values = graph.value(name) if name else None
            if values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
                raise ModelError(
                    f"{path}: the weights of {node.name} are no finite numbers: a damaged file, or a training that "
                    "diverged"
                )


def _class_names(
    path: Path, layout: Layout, metadata: Metadata, given: Path | None
) -> tuple[tuple[str, ...], list[str]]:
    """Given, else the file's own, else beside it or COCO's."""
    if given is None and metadata.names is not None:
        if layout.classes is not None and len(metadata.names) != layout.classes:
            raise ModelError(
                f"{path}: its metadata holds {len(metadata.names)} names, its output has {layout.classes} classes; "
                "give --names FILE with one name a class"
            )
        return metadata.names, []
    if layout.classes is not None:
        return find_names(path, layout.classes, given)
    if given is not None:  # finished detections do not tell how many classes there are
        from detector.models.names import read_names

        return read_names(given), []
    found, warnings = find_names(path, COCO, None)
    return found, [
        *warnings,
        f"{path.name} names no classes: COCO's {COCO} are assumed; --names FILE gives others",
    ]


def _head(layout: Layout, rules: InputRules, classes: int) -> tuple[Any, Any]:
    """candidates and dense rows of a layout."""
    if layout.kind == DECODED:
        return decoded, decoded_dense
    if layout.kind == GRID:
        grid = Grid(rules.height, rules.width, layout.strides)
        return partial(yolox, grid=grid), partial(yolox_dense, grid=grid)
    if layout.kind == END_TO_END:
        return partial(end_to_end, form=layout.form), partial(
            end_to_end_dense, form=layout.form, classes=classes
        )
    if layout.kind == QUERIES:
        more: dict[str, Any] = {
            "width": rules.width,
            "height": rules.height,
            "logits": layout.form == "logits",
        }
        return partial(queries, **more), partial(queries_dense, **more)
    rows = layout.form == "rows"
    return partial(anchor_free, rows=rows), partial(anchor_free_dense, rows=rows)
