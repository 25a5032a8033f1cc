"""Graphs in half precision: one float type per node, unchanged outputs, known roundings."""

import numpy as np
import pytest

from detector.core.errors import ModelError
from detector.core.models.base import InputRules, Network
from detector.core.models.graph.build import GraphBuilder, good_name, output_shapes, tail_nodes
from detector.core.models.graph.halves import (
    _bfloat16_bits,
    convert_to_halves,
    operand_name,
    sensitive_nodes,
)
from detector.core.types import Candidates
from tests.networks import open_network

HALF = {"fp16": 10, "bf16": 16}  # TensorProto's numbers
FLOAT = 1


def network_of(
    builder: GraphBuilder, outputs: list[str], batch: int, height: int, width: int
) -> Network:
    graph = builder.model(outputs)
    return Network(
        name="tiny",
        family="test",
        graph=graph,
        input=InputRules(height, width, "stretch", 1),
        batch=batch,
        output_shapes=output_shapes(graph),
        dense=lambda outputs: outputs[0],
        names=("thing",),
        head=lambda outputs, conf: Candidates(
            np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, int)
        ),
    )


def tiny(batch: int = 1, scale: float = 0.1, decode: bool = False) -> Network:
    """Make a network: two convolutions multiply three planes by ``scale``, a Resize upsamples them.
    ``decode``: a Mul then multiplies them by 3."""
    builder = GraphBuilder("tiny")
    x = builder.input_u8(batch, 2, 2)
    wide = builder.constant("0.conv.weight", np.eye(8, 3, dtype=np.float32).reshape(8, 3, 1, 1))
    x = builder.add("Conv", "0.conv", [x, wide], kernel_shape=[1, 1])
    weights = builder.constant(
        "1.conv.weight", np.eye(3, 8, dtype=np.float32).reshape(3, 8, 1, 1) * np.float32(scale)
    )
    x = builder.add("Conv", "1.conv", [x, weights], kernel_shape=[1, 1])
    scales = builder.constant("2.upsample.scales", np.array([1, 1, 2, 2], np.float32))
    x = builder.add(
        "Resize",
        "2.upsample",
        [x, "", scales],
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    if decode:
        x = builder.add("Mul", "3", [x, builder.constant("3.factor", np.array([3], np.float32))])
    return network_of(builder, [x], batch, 2, 2)


def by_reference(network: Network) -> list[np.ndarray]:
    """Run white pictures in ONNX's reference evaluator, which rounds as each type requires."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(network.graph).run(
        None, {"images": np.full(network.input_shape, 255, np.uint8)}
    )


def types_of(network: Network) -> dict[str, int]:
    graph = network.graph.graph
    infos = (*graph.input, *graph.value_info, *graph.output)
    found = {info.name: info.type.tensor_type.elem_type for info in infos}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("decode", [False, True])
def test_every_node_reads_only_one_float_type(precision: str, decode: bool) -> None:
    network = convert_to_halves(tiny(decode=decode), precision)
    types = types_of(network)
    for node in network.graph.graph.node:
        floats = {
            types[name] for name in node.input if name and types[name] in (FLOAT, HALF[precision])
        }
        if node.op_type == "Resize":  # ONNX requires float32 scales
            floats = {types[node.input[0]]}
        assert len(floats) <= 1, node.name
    assert HALF[precision] in types.values()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", ["street", "yolov4-tiny-person-vehicle"])
def test_outputs_keep_names_shapes_and_type(precision: str, name: str) -> None:
    before = open_network(name, random_seed=0, batch=2)
    after = convert_to_halves(before, precision)
    assert [info.name for info in after.graph.graph.output] == [
        info.name for info in before.graph.graph.output
    ]
    assert output_shapes(after.graph) == before.output_shapes
    assert {types_of(after)[info.name] for info in after.graph.graph.output} == {FLOAT}
    assert (after.precision, after.path, before.precision) == (precision, None, "fp32")
    names = [node.name for node in after.graph.graph.node]
    assert len(set(names)) == len(names)
    assert all(good_name(name) for name in names)
    assert all([node.name] == list(node.output) for node in after.graph.graph.node)
    convolutions = [node.name for node in before.graph.graph.node if node.op_type == "Conv"]
    assert types_of(after)[convolutions[len(convolutions) // 2]] == HALF[precision]


def test_picture_is_cast_directly_to_fp16_but_not_to_bf16() -> None:
    """The cast to bf16 comes after the first convolution, which stays float32."""
    fp16, bf16 = (
        [(node.name, node.attribute[0].i) for node in graph.node if node.op_type == "Cast"]
        for graph in (convert_to_halves(tiny(), each).graph.graph for each in HALF)
    )
    assert fp16[0] == ("input.cast", HALF["fp16"])
    assert bf16[:2] == [("input.cast", FLOAT), ("0.conv_bf16", HALF["bf16"])]


def test_thin_convolutions_stay_float32_only_in_bf16() -> None:
    """Convolutions with few input channels per group are thin; the others become bfloat16."""
    builder = GraphBuilder("tiny")
    x = builder.input_u8(1, 2, 2)
    for index, (shape, group) in enumerate((((8, 3), 1), ((8, 1), 8), ((8, 8), 1))):
        weights = builder.constant(f"{index}.conv.weight", np.ones((*shape, 1, 1), np.float32))
        x = builder.add("Conv", f"{index}.conv", [x, weights], kernel_shape=[1, 1], group=group)
        x = builder.add("Relu", f"{index}.act", [x])
    x = builder.add("Conv", "3.conv", [x, "2.conv.weight"], kernel_shape=[1, 1])
    network = network_of(builder, [x], 1, 2, 2)
    names = ["0.conv", "0.act", "1.conv", "1.act", "2.conv", "2.act"]
    types = types_of(convert_to_halves(network, "bf16"))
    assert [types[name] for name in names] == [FLOAT] * 4 + [HALF["bf16"]] * 2
    types = types_of(convert_to_halves(network, "fp16"))
    assert [types[name] for name in names] == [HALF["fp16"]] * 6


def chain(*widths: int) -> Network:
    """Make 1 x 1 convolutions with activations. MACs per pixel: channels in x channels out."""
    builder = GraphBuilder("chain")
    x = builder.input_u8(1, 2, 2)
    for index, (inputs, outputs) in enumerate(zip((3, *widths), widths, strict=False)):
        weights = builder.constant(
            f"{index}.conv.weight", np.ones((outputs, inputs, 1, 1), np.float32)
        )
        x = builder.add("Conv", f"{index}.conv", [x, weights], kernel_shape=[1, 1])
        x = builder.add("Relu", f"{index}.act", [x])
    return network_of(builder, [x], 1, 2, 2)


@pytest.mark.parametrize(
    ("widths", "kept"),
    [
        ((8,) * 6, 1),  # the first layer has 24 of 344 MACs; the first two have 88, a quarter
        ((8,) * 7, 1),  # two layers: 88 of 408, slightly more than a fifth
        ((8,) * 8, 2),  # two layers: 88 of 472, less than a fifth
        ((8,) * 12, 2),  # three layers: 152 of 728, slightly more than a fifth
        ((8,) * 13, 3),  # three layers: 152 of 792, less than a fifth
    ],
)
def test_the_stem_stays_float32_only_in_bf16(widths: tuple[int, ...], kept: int) -> None:
    """The stem is the first layers and their activations. It has at most a fifth of the MACs."""
    network = chain(*widths)
    types = types_of(convert_to_halves(network, "bf16"))
    inner = range(len(widths) - 1)  # the last activation makes the output
    for end in ("conv", "act"):
        assert [types[f"{at}.{end}"] for at in inner] == [
            FLOAT if at < kept else HALF["bf16"] for at in inner
        ]
    types = types_of(convert_to_halves(network, "fp16"))
    assert {types[f"{at}.conv"] for at in inner} == {HALF["fp16"]}


def test_input_nodes_stay_float32_with_a_thin_first_convolution() -> None:
    """Otherwise the picture would be rounded and then widened again."""
    network = chain(8, 1)  # the first convolution has 24 of 32 MACs
    assert sensitive_nodes(network.graph) == {"input.cast", "input.transpose", "0.conv", "0.act"}


def test_thin_convolution_inside_an_attention_is_converted() -> None:
    """If this convolution stayed float32, openvino 2026.4 would not compile YOLO11 in bfloat16."""
    builder = GraphBuilder("attention")
    x = builder.input_u8(1, 2, 2)
    for name, groups in (("0.conv", 1), ("1.conv", 3), ("2.conv", 3)):
        weights = builder.constant(f"{name}.weight", np.ones((3, 3 // groups, 1, 1), np.float32))
        if name == "2.conv":
            shape = builder.constant("places.shape", np.array([1, 3, 2, 2]))
            x = builder.add("Reshape", "places", [x, shape])
        x = builder.add("Conv", name, [x, weights], kernel_shape=[1, 1], group=groups)
    stays = sensitive_nodes(network_of(builder, [x], 1, 2, 2).graph)
    assert {"0.conv", "1.conv", "2.conv"} & stays == {"0.conv", "1.conv"}


def test_nodes_between_two_float32_nodes_stay_float32() -> None:
    network = chain(*(8,) * 12)
    alone = sensitive_nodes(network.graph)
    assert sensitive_nodes(network.graph, {"6.conv", "7.conv"}) - alone == {
        "6.conv",
        "6.act",
        "7.conv",
    }


def test_converted_graph_rounds_to_half_precision() -> None:
    """In float16, 0.1 is 0.0999756. 255 times that is 25.49378, which rounds to 25.5."""
    (output,) = by_reference(convert_to_halves(tiny(), "fp16"))
    assert output.dtype == np.float32
    assert output.shape == (1, 3, 4, 4)
    assert (output == 25.5).all()


def test_nodes_after_the_last_convolution_stay_float32() -> None:
    network = convert_to_halves(tiny(decode=True), "fp16")
    assert tail_nodes(tiny(decode=True).graph) == {"2.upsample", "3"}
    assert types_of(network)["2.upsample"] == FLOAT
    kinds = [node.op_type for node in network.graph.graph.node]
    assert kinds == ["Cast", "Transpose", "Conv", "Conv", "Cast", "Resize", "Mul"]
    assert (by_reference(network)[0] == 3 * 25.5).all()  # nothing is rounded after the convolution


@pytest.mark.parametrize(("scale", "expected"), [(1e5, FLOAT), (6e4, 10), (-1e5, FLOAT)])
def test_constants_beyond_float16_keep_their_node_in_float32(scale: float, expected: int) -> None:
    assert types_of(convert_to_halves(tiny(scale=scale), "fp16"))["1.conv"] == expected


def test_transposed_convolutions_stay_float32_in_bf16() -> None:
    wide = np.ones((8, 8, 1, 1), np.float32)
    builder = GraphBuilder("tiny")
    x = builder.add("Conv", "0", [builder.input_u8(1, 2, 2), builder.constant("w", wide[:, :3])])
    for name, operator in (("1", "Conv"), ("2", "Conv"), ("3", "ConvTranspose"), ("4", "Conv")):
        x = builder.add(operator, name, [x, builder.constant(f"{name}.w", wide)])
    for precision, expected in (("fp16", HALF["fp16"]), ("bf16", FLOAT)):
        network = convert_to_halves(network_of(builder, [x], 1, 2, 2), precision)
        assert types_of(network)["3"] == expected


def test_bfloat16_has_the_range_of_float32() -> None:
    assert types_of(convert_to_halves(tiny(scale=1e5), "bf16"))["1.conv"] == HALF["bf16"]


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1 + 2**-8, 0x3F80),  # half way: rounds to even, here down
        (1 + 3 * 2**-8, 0x3F82),  # half way: rounds to even, here up
        (1 + 2**-8 + 2**-20, 0x3F81),
        (np.inf, 0x7F80),
        (np.nan, 0x7FC0),
        (0.0, 0),
    ],
)
def test_bfloat16_rounds_to_the_nearest_even(value: float, bits: int) -> None:
    assert _bfloat16_bits(np.array([value], np.float32))[0] == bits


@pytest.mark.parametrize(
    ("tensor", "name"),
    [("0.conv", "0.conv_fp16"), ("12", "n12_fp16"), ("model.24", "model.n24_fp16")],
)
def test_names_of_converted_operands_get_an_ending_and_stay_valid(tensor: str, name: str) -> None:
    assert operand_name(tensor, "fp16") == name
    assert good_name(name)


def test_only_fp32_is_converted() -> None:
    with pytest.raises(ModelError, match="graph is fp16"):
        convert_to_halves(convert_to_halves(tiny(), "fp16"), "bf16")
