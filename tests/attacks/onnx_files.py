"""Hostile ONNX files. ``cases(seed)`` yields random cases without end; ``known()`` yields the named
cases. A case is (name, files).

``files``: path -> content; the model is ``m.onnx``. Random cases change one to four fields of a
valid export (a dimension, a type, a name, an attribute, a version), or its bytes.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

from tests.attacks.mutate import damage
from tests.models import exports

Files = dict[str, bytes]
Change = Callable[[onnx.ModelProto], None]

INTEGERS = (
    0,
    1,
    -1,
    2,
    7,
    99,
    255,
    4096,
    1 << 31,
    (1 << 31) - 1,
    1 << 40,
    (1 << 63) - 1,
    -(1 << 63),
)
NUMBERS = (0.0, -1.0, float("nan"), float("inf"), 1e38, 1e-45)
TEXTS = ("", "\0", "\x1b[31m", "../x", "/etc/passwd", "a" * 5000, "é", "images", "output0", "Loop")
TEXTS += tuple(
    "Conv MaxPool Reshape Transpose Concat Slice Resize Split Gather Cast Scan Identity Softmax "
    "NonMaxSuppression TopK GridSample QuantizeLinear MatMul Add Nothing".split()
)
TEXTS += ("1" * 6000, "If", "Constant", "ai.onnx", "com.microsoft", "%s%n", "a/" * 400, "None")
EXPORTS = (
    exports.decoded,
    exports.anchor_free,
    exports.finished,
    exports.nms_inside,
    exports.padded,
    exports.parts,
    exports.queries,
    exports.yolox,
    exports.best_cells,
)


@cache
def valid_export(number: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = EXPORTS[number].__call__().save(Path(folder) / "m.onnx", exports.STATED)
        return Path(path).read_bytes()


def cases(seed: int) -> Iterator[tuple[str, Files]]:
    random = Random(seed)
    for number in count(1):
        data = valid_export(random.randrange(len(EXPORTS)))
        if random.random() < 0.7:
            model = onnx.load_model_from_string(data)
            changes = [_change(random, model) for _ in range(random.randint(1, 4))]
            yield f"fields-{seed}-{number}: {'; '.join(changes)}", {"m.onnx": _bytes(model)}
        else:
            yield f"bytes-{seed}-{number}", {"m.onnx": damage(random, data)}


def known(names: Collection[str] | None = None) -> Iterator[tuple[str, Files]]:
    """Yield the named cases, one for each class of damage. ``names``: yield only these."""
    for name, change in CHANGES.items():
        if names is None or name in names:
            yield name, {"m.onnx": changed(change)}
    for name, make in FILES.items():
        if names is None or name in names:
            yield name, make()


def changed(change: Change) -> bytes:
    model = onnx.load_model_from_string(valid_export(0))
    change(model)
    return _bytes(model)


def _bytes(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString())


# ----------------------------------------------------------------------
# Random changes


def _change(random: Random, model: Message) -> str:
    """Change one field of one message in place, and return a description of the change."""
    message, field = random.choice(list(_fields(model)))
    name, is_list = f"{message.DESCRIPTOR.name}.{field.name}", field.is_repeated
    if is_list:
        values = getattr(message, field.name)
        change = random.random()
        at = random.randrange(len(values))
        if change < 0.25:
            del values[at]
            return f"{name} less"
        if change < 0.4 and len(values) < 1000:
            values.extend([values[at]] * random.choice((1, 1, 30)))
            return f"{name} more"
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            values[at].Clear()
            return f"{name} empty"
        values[at] = value = _value(random, field, values[at], model)
    elif random.random() < 0.2 or field.type == FieldDescriptor.TYPE_MESSAGE:
        message.ClearField(field.name)
        return f"{name} gone"
    else:
        value = _value(random, field, getattr(message, field.name), model)
        setattr(message, field.name, value)
    return f"{name} = {str(value)[:20]!r}"


def _fields(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    for field, value in message.ListFields():
        yield message, field
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from _fields(inner)


def _value(random: Random, field: FieldDescriptor, old: object, model: Message) -> object:
    if field.type == FieldDescriptor.TYPE_STRING:
        words = [f for f in (m.name for m in model.graph.node) if f]  # type: ignore[attr-defined]
        return random.choice((*TEXTS, *words[:3]))
    if field.type == FieldDescriptor.TYPE_BYTES:
        data = bytes(old)  # type: ignore[call-overload]
        return random.choice(
            (b"", data[:-1], data + b"\0", data[: len(data) // 2], b"\xff" * len(data))
        )
    if field.type == FieldDescriptor.TYPE_ENUM:
        return random.choice([value.number for value in field.enum_type.values])
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return random.choice(NUMBERS)
    if field.type == FieldDescriptor.TYPE_INT32:
        return random.choice([*range(30), 99, -1, (1 << 31) - 1])
    if field.type == FieldDescriptor.TYPE_UINT64:
        return random.choice([abs(number) for number in INTEGERS])
    return random.choice((*INTEGERS, int(old) + 1, int(old) * 2))  # type: ignore[call-overload]


# ----------------------------------------------------------------------
# Named cases: changes of a valid YOLOv5 export


def _constant(model: onnx.ModelProto, name: str, values: np.ndarray) -> str:
    model.graph.initializer.append(numpy_helper.from_array(values, name))
    return name


def _before_the_output(
    model: onnx.ModelProto, operator: str, inputs: list[str], **attributes: object
) -> None:
    """Insert a node, and add its largest value to the output, so that it is not optimized away."""
    end = model.graph.node.pop()
    model.graph.node.append(helper.make_node(operator, inputs, ["made"], **attributes))
    model.graph.node.append(helper.make_node("Cast", ["made"], ["float"], to=TensorProto.FLOAT))
    model.graph.node.append(helper.make_node("ReduceMax", ["float"], ["most"], keepdims=0))
    model.graph.node.append(helper.make_node("Add", [end.input[0], "most"], [*end.output]))


def _from_constants(operator: str, *constants: object, **attributes: object) -> Change:
    def change(model: onnx.ModelProto) -> None:
        names = [
            _constant(model, f"giant{at}", np.asarray(value)) for at, value in enumerate(constants)
        ]
        _before_the_output(model, operator, names, **attributes)

    return change


def _operands(operator: str, *lists: object) -> Change:
    """Insert an operator. Its inputs: the tensor that the last node reads, then ``lists``."""

    def change(model: onnx.ModelProto) -> None:
        names = [_constant(model, f"list{at}", np.asarray(one)) for at, one in enumerate(lists)]
        _before_the_output(model, operator, [model.graph.node[-1].input[0], *names])

    return change


def _range(model: onnx.ModelProto) -> None:
    ends = [np.array(value, np.int64) for value in (0, 1 << 40, 1)]
    _before_the_output(model, "Range", [_constant(model, f"r{n}", v) for n, v in enumerate(ends)])


def _chain_of_giants(model: onnx.ModelProto) -> None:
    """Add a column of 2^12 values to a row of the same values. Do the same with the sum, seven
    times. Shape inference finds the shape of the first sum only."""
    name = _constant(model, "long", np.ones(1 << 12, np.float32))
    for at in range(8):
        shape = _constant(model, f"s{at}", np.array([-1, 1], np.int64))
        model.graph.node.insert(0, helper.make_node("Reshape", [name, shape], [f"column{at}"]))
        model.graph.node.insert(1, helper.make_node("Add", [f"column{at}", name], [f"wide{at}"]))
        name = f"wide{at}"
    _before_the_output(model, "Identity", [name])


def add_functions(model: onnx.ModelProto, count: int, calls: int, chain: bool = True) -> None:
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for at in range(count):
        inner = helper.make_node("Relu", ["x"], ["y0"])
        nodes = [inner]
        if at:
            nodes = [
                helper.make_node(
                    f"f{at - 1}", ["x" if n == 0 else f"y{n - 1}"], [f"y{n}"], domain="own"
                )
                for n in range(calls)
            ]
        nodes.append(helper.make_node("Identity", [nodes[-1].output[0]], ["y"]))
        model.functions.append(helper.make_function("own", f"f{at}", ["x"], ["y"], nodes, opset))
    if not chain:
        model.functions[0].node[0].op_type, model.functions[0].node[0].domain = (
            f"f{count - 1}",
            "own",
        )
    model.opset_import.append(helper.make_opsetid("own", 1))
    end = model.graph.node.pop()
    model.graph.node.append(
        helper.make_node(f"f{count - 1}", [end.input[0]], [*end.output], domain="own")
    )


def _many_nodes(count: int, operator: str = "Relu", **more: object) -> Change:
    def change(model: onnx.ModelProto) -> None:
        end = model.graph.node.pop()
        name = end.input[0]
        for at in range(count):
            model.graph.node.append(
                helper.make_node(operator, [name], [f"n{at}"], name="n", **more)
            )
            name = f"n{at}"
        model.graph.node.append(helper.make_node("Identity", [name], [*end.output]))

    return change


def _nested(depth: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        info = helper.make_tensor_value_info("b", TensorProto.FLOAT, [1])
        constant = helper.make_node("Constant", [], ["b"], value_floats=[1.0])
        graph = helper.make_graph([constant], "g", [], [info])
        yes = _constant(model, "yes", np.array(True))
        for at in range(depth):
            name = f"b{at}"
            node = helper.make_node(
                "If", [yes], [name], then_branch=graph, else_branch=graph if at < 5 else _leaf()
            )
            graph = helper.make_graph(
                [node], "g", [], [helper.make_tensor_value_info(name, 1, [1])]
            )
        _before_the_output(model, "If", [yes], then_branch=graph, else_branch=_leaf())

    return change


def _leaf() -> onnx.GraphProto:
    constant = helper.make_node("Constant", [], ["leaf"], value_floats=[1.0])
    return helper.make_graph([constant], "l", [], [helper.make_tensor_value_info("leaf", 1, [1])])


def _tensor(**fields: object) -> Change:
    def change(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[0]
        for name, value in fields.items():
            if isinstance(value, list):
                del getattr(tensor, name)[:]
                getattr(tensor, name).extend(value)
            elif value is None:
                tensor.ClearField(name)
            else:
                setattr(tensor, name, value)

    return change


def _metadata(key: str, value: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        kept = [(entry.key, entry.value) for entry in model.metadata_props if entry.key != key]
        del model.metadata_props[:]
        helper.set_model_props(model, dict([*kept, (key, value)]))

    return change


def _input(*sides: int | str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].CopyFrom(
            helper.make_tensor_value_info("images", TensorProto.FLOAT, sides)
        )

    return change


def _opset(version: int) -> Change:
    return lambda model: setattr(model.opset_import[0], "version", version)


def _quantised(scale: list[float]) -> Change:
    def change(model: onnx.ModelProto) -> None:
        weights = _constant(model, "q", np.ones((4,), np.int8))
        scales = _constant(
            model, "qs", np.array(scale, np.float32).reshape(len(scale) if len(scale) != 1 else ())
        )
        zero = _constant(model, "qz", np.zeros((len(scale),) if len(scale) != 1 else (), np.int8))
        _before_the_output(model, "DequantizeLinear", [weights, scales, zero])

    return change


def _nan(model: onnx.ModelProto) -> None:
    _before_the_output(model, "Identity", [_constant(model, "nan", np.full(4, np.nan, np.float32))])


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = model.graph.node[-1].output[0]


def _no_outputs(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def _doubled(model: onnx.ModelProto) -> None:
    model.graph.node.append(model.graph.node[-1])


def _named(name: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            node.name = name

    return change


CHANGES: dict[str, Change] = {
    "range of 2^40": _range,
    "expand": _from_constants("Expand", np.float32([1]), [1 << 20, 1 << 20]),
    "tile": _from_constants("Tile", np.ones(4, np.float32), [1 << 40]),
    "pad": _from_constants("Pad", np.ones(4, np.float32), [0, 1 << 36]),
    "one hot": _from_constants("OneHot", [1], 1 << 36, np.float32([0, 1])),
    "constant of shape": _from_constants("ConstantOfShape", [1 << 18, 1 << 18]),
    "eye": _from_constants("EyeLike", np.ones((4, 4), np.float32)),
    "resize": _from_constants(
        "Resize", np.ones((1, 1, 4, 4), np.float32), np.float32([]), np.float32([1, 1, 1e5, 1e5])
    ),
    "slow resize": _from_constants(
        "Resize",
        np.ones((1, 1, 64, 64), np.float32),
        np.float32([]),
        np.float32([1, 1, 50, 50]),
        mode="cubic",
    ),
    "chain": _chain_of_giants,
    "a valid slice": _operands("Slice", [0], [1], [1]),
    "scalar starts": _operands("Slice", np.int64(0), [1], [1]),
    "scalar starts, ends and axes": _operands("Slice", np.int64(0), np.int64(1), np.int64(1)),
    "two-dimensional starts": _operands("Slice", [[0]], [[1]], [[1]]),
    "fewer ends than starts": _operands("Slice", [0, 0], [1]),
    "more axes than starts": _operands("Slice", [0], [1], [1, 2]),
    "an axis beyond the rank": _operands("Slice", [0], [1], [9]),
    "the same axis twice": _operands("Slice", [0, 0], [1, 1], [1, -2]),
    "float starts and ends": _operands("Slice", np.float32([0]), np.float32([1])),
    "a scalar shape": _operands("Reshape", np.int64(-1)),
    "scalar sizes": _operands("Resize", np.float32([]), np.float32([]), np.int64(1)),
    "scalar factors": _operands("Resize", np.float32([]), np.float32(1)),
    "scalar repeats": _operands("Tile", np.int64(1)),
    "32 functions that call the previous one twice": lambda model: add_functions(model, 32, 2),
    "1000 functions in a chain": lambda model: add_functions(model, 1000, 1),
    "functions in a cycle": lambda model: add_functions(model, 3, 1, chain=False),
    "110,000 nodes": _many_nodes(110_000),
    "8,000 nodes with the same name": _many_nodes(8_000),
    "8,000 identity nodes": _many_nodes(8_000, "Identity"),
    "10 nested branches": _nested(10),
    "20 nested branches": _nested(20),
    "tensor with too few bytes": _tensor(raw_data=b"1"),
    "tensor without bytes": _tensor(raw_data=None),
    "tensor with bytes and floats": _tensor(float_data=[1.0, 2.0]),
    "tensor with floats only": _tensor(raw_data=None, float_data=[1.0]),
    "tensor with a negative side": _tensor(dims=[-1, 3]),
    "tensor with a huge side": _tensor(dims=[1 << 62]),
    "sides whose product overflows": _tensor(dims=[1 << 32, 1 << 32]),
    "zero times a huge side": _tensor(dims=[0, 1 << 62], raw_data=b""),
    "40 dimensions": _tensor(dims=[1] * 40),
    "unknown type": _tensor(data_type=99),
    "type 0": _tensor(data_type=0),
    "tensor of strings": _tensor(data_type=8),
    "tensor of complex numbers": _tensor(data_type=14),
    "names nested 5,000 deep": _metadata("names", "{0: " + "[" * 5000 + "]" * 5000 + "}"),
    "90,000 names": _metadata("names", "{" + ",".join(f"{n}: 'x'" for n in range(90_000)) + "}"),
    "infinite class number": _metadata("names", "{1e999: 'a'}"),
    "names of 100,000 minus signs": _metadata("names", "-" * 100_000 + "1"),
    "names with a backslash": _metadata("names", r"{0: 'a\d', 1: 'b', 2: 'c'}"),
    "one long name": _metadata("names", "{0: '" + "x" * 900_000 + "', 1: 'b', 2: 'c'}"),
    "lone surrogate in a name": _metadata("names", r"{0: '\ud800', 1: 'b', 2: 'c'}"),
    "task": _metadata("task", "x\x1b[2J" * 100_000),
    "stride": _metadata("stride", "9" * 5000),
    "imgsz": _metadata("imgsz", "[1e999, -1]"),
    "no dimensions": _input(),
    "7 dimensions": _input(1, 1, 1, 1, 1, 3, 4),
    "empty input": _input(1, 3, 0, 0),
    "huge input": _input(1, 3, 1 << 30, 1 << 30),
    "huge batch": _input(1 << 40, 3, 64, 64),
    "negative input": _input(1, 3, -64, -64),
    "opset 0": _opset(0),
    "opset 10^9": _opset(10**9),
    "opset -1": _opset(-1),
    "opset 1": _opset(1),
    "opset 7": _opset(7),
    "ir 0": lambda model: setattr(model, "ir_version", 0),
    "ir 10^9": lambda model: setattr(model, "ir_version", 10**9),
    "scale of NaN": _quantised([float("nan")]),
    "scale of zero": _quantised([0.0]),
    "no scale": _quantised([]),
    "7 scales for 4 weights": _quantised([1.0] * 7),
    "NaN": _nan,
    "cycle": _cycle,
    "no outputs": _no_outputs,
    "the same node twice": _doubled,
    "empty node names": _named(""),
    "node names of escape codes": _named("\x1b[2J\0\n"),
    "node names of slashes": _named("/" * 1000),
    "node names of 500 parts": _named("a/" * 500),
    "node names of 100,000 characters": _named("a" * 100_000),
}


# ----------------------------------------------------------------------
# Named cases: files next to the model, and damaged bytes


def with_external_data(
    location: str, offset: str = "", length: str = "", *, node: bool = False
) -> Files:
    """Return a model with a tensor of 16 floats (64 bytes) in another file. ``node``: the tensor
    belongs to a Constant node, not to the initializers."""
    model = onnx.load_model_from_string(valid_export(0))
    tensor = TensorProto(name="far", data_type=TensorProto.FLOAT, dims=[16])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value:
            tensor.external_data.add(key=key, value=value)
    if node:
        _before_the_output(model, "Constant", [], value=tensor)
    else:
        model.graph.initializer.append(tensor)
        _before_the_output(model, "Identity", ["far"])
    return {"m.onnx": _bytes(model), "w.bin": np.ones(16, np.float32).tobytes()}


def _shared_by_many() -> Files:
    files = with_external_data("w.bin")
    model = onnx.load_model_from_string(files["m.onnx"])
    far = model.graph.initializer[-1]
    for at in range(100):
        model.graph.initializer.append(far)
        model.graph.initializer[-1].name = f"far{at}"
    return {**files, "m.onnx": _bytes(model)}


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _deep(levels: int) -> Files:
    graph = b""
    for _ in range(levels):
        graph = _field(1, _field(5, _field(6, graph)))
    return {"m.onnx": _field(7, graph)}


FILES: dict[str, Callable[[], Files]] = {
    "nothing": lambda: {"m.onnx": b""},
    "a million empty nodes": lambda: {"m.onnx": _field(7, b"\x0a\x00" * 1_000_000)},
    "empty inputs": lambda: {"m.onnx": _field(7, _field(1, b"\x0a\x00" * 3_000_000))},
    "packed zeros": lambda: {"m.onnx": _field(7, _field(5, _field(7, b"\0" * (1 << 29))))},
    "graphs nested 1,000 deep": lambda: _deep(1000),
    "graphs nested 30 deep": lambda: _deep(30),
    "wrong wire types": lambda: {"m.onnx": b"\x08" + b"\xff" * 12 + b"\x3d\0\0\0\0"},
    "groups": lambda: {"m.onnx": b"\x3b" * 1000},
    "name not in UTF-8": lambda: {"m.onnx": valid_export(0).replace(b"images", b"im\xff\xfees")},
    "missing external file": lambda: {"m.onnx": with_external_data("w.bin")["m.onnx"]},
    "valid external file": lambda: with_external_data("w.bin"),
    "valid external file of a node": lambda: with_external_data("w.bin", node=True),
    "missing file of a node": lambda: {"m.onnx": with_external_data("w.bin", node=True)["m.onnx"]},
    "external file too short": lambda: {**with_external_data("w.bin"), "w.bin": b"123"},
    "external file too long": lambda: {**with_external_data("w.bin"), "w.bin": b"1" * 1000},
    "offset beyond the file": lambda: with_external_data("w.bin", "1000000"),
    "offset that is not a number": lambda: with_external_data("w.bin", "x"),
    "negative offset": lambda: with_external_data("w.bin", "-4"),
    "offset of 6,000 digits": lambda: with_external_data("w.bin", "9" * 6000),
    "length that does not fit the shape": lambda: with_external_data("w.bin", "", "63"),
    "huge length": lambda: with_external_data("w.bin", "0", "9" * 18),
    "location in the parent folder": lambda: with_external_data("../w.bin"),
    "absolute location": lambda: with_external_data("/etc/passwd"),
    "absolute location in a node": lambda: with_external_data("/etc/passwd", node=True),
    "device": lambda: with_external_data("/dev/zero"),
    "no location": lambda: with_external_data(""),
    "NUL in the location": lambda: with_external_data("w\0.bin"),
    "long location": lambda: with_external_data("w" * 5000),
    "location that is a folder": lambda: with_external_data("."),
    "external file shared by 101 tensors": _shared_by_many,
}
