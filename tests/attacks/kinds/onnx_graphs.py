"""Damaged ONNX files: the bytes, and graphs of other shapes, types, names and operators."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import ENGINES, content
from tests.attacks.mutate import NUMBERS, WORDS, damage

CODES = frozenset({0, 2, 4})
OPERATORS = tuple(
    "Conv MaxPool Reshape Transpose Concat Slice Resize Split Gather Cast If Loop Scan Identity "
    "Softmax NonMaxSuppression TopK GridSample QuantizeLinear MatMul Add Nothing".split()
)


@cache
def _model() -> Any:
    import onnx

    return onnx.load_from_string(content("dots.onnx"))


def make(random: Random) -> Case:
    data = damage(random, content("dots.onnx")) if random.random() < 0.35 else _rebuilt(random)
    files = {"m.onnx": data}
    more = random.choice(
        ([], [], ["--family", "yolov8"], ["--size", "96"], ["--batch", "2"], ["--family", "yolox"])
    )
    if random.random() < 0.5:
        return Case(files, ("models", "show", "m.onnx", "--json", *more), CODES)
    files["in.mp4"] = content("in.mp4")
    argv = ("in.mp4", "--model", "m.onnx", "--engine", "null", *ENGINES, "--no-video", *more)
    return Case(files, argv, CODES)


def _rebuilt(random: Random) -> bytes:
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(_model())
    for _ in range(random.choice((1, 1, 2, 4))):
        random.choice((_node, _node, _edge, _shape, _shape, _constant, _facts))(random, model)
    data: bytes = model.SerializeToString()
    return data


def _node(random: Random, model: Any) -> None:
    nodes = model.graph.node
    node = random.choice(nodes)
    what = random.randrange(6)
    if what == 0:
        node.op_type = random.choice((*OPERATORS, ""))
    elif what == 1:
        node.domain = random.choice(("com.microsoft", "ai.onnx.ml", "nowhere"))
    elif what == 2 and node.attribute:
        one = random.choice(node.attribute)
        one.i = random.choice(NUMBERS) % 2**63
        one.type = random.randrange(15)
    elif what == 3 and len(nodes) > 1:
        nodes.remove(node)
    elif what == 4:
        nodes.add().CopyFrom(node)
    else:
        node.name = random.choice(WORDS).replace("\x00", "")


def _edge(random: Random, model: Any) -> None:
    """Another value into or out of a node: one that is not there, a circle, its own output."""
    node = random.choice(model.graph.node)
    names = [*(out for other in model.graph.node for out in other.output), "images", "", "nowhere"]
    side = random.choice((node.input, node.output))
    if len(side) and random.random() < 0.8:
        side[random.randrange(len(side))] = random.choice(names)
    else:
        side.append(random.choice(names))


def _shape(random: Random, model: Any) -> None:
    values = random.choice((model.graph.input, model.graph.output))
    if not len(values):
        return
    value = random.choice(values)
    tensor = value.type.tensor_type
    what = random.randrange(6)
    if what == 0:
        tensor.elem_type = random.randrange(24)
    elif what == 1:
        value.name = random.choice(("", "x", "images", "output0"))
    elif what == 2 and tensor.shape.dim:
        del tensor.shape.dim[random.randrange(len(tensor.shape.dim)) :]
    elif what == 3:
        tensor.shape.dim.add().dim_value = random.choice((0, 1, 7, -1))
    elif what == 4:
        values.add().CopyFrom(value)
    elif tensor.shape.dim:
        dim = random.choice(tensor.shape.dim)
        if random.random() < 0.5:
            dim.dim_value = (random.choice(NUMBERS) + 2**63) % 2**64 - 2**63
        else:
            dim.dim_param = random.choice(("batch", "height", "", "?", "batch*2"))


def _constant(random: Random, model: Any) -> None:
    constants = model.graph.initializer
    one = random.choice(constants)
    what = random.randrange(6)
    if what == 0:
        one.data_type = random.randrange(24)
    elif what == 1:
        one.raw_data = damage(random, one.raw_data)
    elif what == 2 and one.dims:
        one.dims[random.randrange(len(one.dims))] = random.choice((0, -1, 1, 2**31, 2**62))
    elif what == 3:
        one.name = random.choice(("", "images", "shape", "zero"))
    elif what == 4:
        one.data_location = 1  # external
        entry = one.external_data.add()
        entry.key, entry.value = "location", random.choice(("x.bin", "../../x", "/etc/passwd", ""))
    elif len(constants) > 1:
        constants.remove(one)


def _facts(random: Random, model: Any) -> None:
    """Opset, versions, and what the exporter wrote about the classes."""
    what = random.randrange(4)
    if what == 0 and model.opset_import:  # an earlier change may have taken them away
        model.opset_import[0].version = random.choice((0, 1, 6, 13, 22, 99, -1, 2**62))
    elif what == 1:
        model.ir_version = random.choice((0, 1, 3, 99, 2**62))
    elif what == 2 and model.metadata_props:
        fact = random.choice(model.metadata_props)
        fact.value = random.choice(
            (
                *(word.replace("\x00", "") for word in WORDS),
                "{0: 'a'",
                "[[" * 500,
                "{0: 'a', 2: 'b'}",
            )
        )
    else:
        del model.opset_import[:]


KIND = Kind("onnx", make, share=9)
