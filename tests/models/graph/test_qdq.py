"""Q/DQ graphs of all kinds have the right scales, and some nodes stay float."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from detector.core.models.graph.build import GraphBuilder, good_name
from detector.core.models.graph.int8 import FRONT, KINDS, NARROW_TOP
from detector.core.models.graph.qdq import (
    quantised_graph,
    s8_scale,
    tensors_to_measure,
    u8_scale,
    weight_scales,
)
from detector.core.models.graph.ranges import measure_ranges
from tests.engines.quantised import run_as_written
from tests.known_answers import run_once
from tests.networks import open_network
from tests.run.quantize.graphs import SIDE, branched, chain, conv, depthwise, in_int8, network_of

RANGES = {"0.conv": (-55.0, 200.0), "0.act": (0.0, 200.0), "2.conv": (0.0, 102.0)}


def constants(graph: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}


def readers(graph: onnx.ModelProto) -> dict[str, list[str]]:
    return {node.name: list(node.input) for node in graph.graph.node}


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero"),
    [
        (0, 255, 1, 0),
        (-51, 204, 1, 51),
        (10, 255, 1, 0),  # the range is extended to zero
        (-255, -10, 1, 255),
        (-127.5, 127.5, 1, 128),
        (0, 0, 1, 0),  # a tensor that is always zero
    ],
)
def test_u8_scale_covers_range_and_zero(low: float, high: float, scale: float, zero: int) -> None:
    assert u8_scale(low, high) == (pytest.approx(scale), zero)


@pytest.mark.parametrize(("low", "high", "scale"), [(0, 127, 1), (-254, 10, 2), (0, 0, 1)])
def test_s8_scale_covers_the_larger_side(low: float, high: float, scale: float) -> None:
    assert s8_scale(low, high) == pytest.approx(scale)


def test_weights_get_a_scale_for_each_output_channel() -> None:
    weights = np.array([[127, -254], [0, 0], [0.5, 0.25]], np.float32).reshape(3, 2, 1, 1)
    assert weight_scales(weights, 0).tolist() == pytest.approx([2, 1, 0.5 / 127])
    assert weight_scales(weights, 1).tolist() == pytest.approx([1, 2])


def test_scales_of_a_tiny_graph_equal_hand_computed_ones() -> None:
    found = constants(quantised_graph(chain().graph, RANGES, (), "int8-u8"))
    # For pictures, a step is always one grey level, whatever range was measured.
    assert (found["input.cast_q.scale"], found["input.cast_q.zero"]) == (1, 0)
    assert (found["input.transpose_q.scale"], found["input.transpose_q.zero"]) == (1, 0)
    assert found["0.act_q.scale"] == pytest.approx(200 / 255)
    assert found["0.act_q.zero"] == 0
    # A pooling's output has the scale of its input. Otherwise values would be rounded twice.
    assert found["1.maxpool_q.scale"] == found["0.act_q.scale"]
    assert found["2.conv_q.scale"] == pytest.approx(102 / 255)
    assert found["0.conv_weight_q"].reshape(3, 3).tolist() == [
        [127, 0, 0],
        [0, 127, 0],
        [0, 0, 127],
    ]
    assert found["0.conv_weight_dq.scale"].tolist() == pytest.approx([1 / 127] * 3)
    assert found["2.conv_weight_q"].reshape(2, 3).tolist() == [[127, 0, 0], [0, 127, 0]]
    assert found["2.conv_weight_dq.scale"].tolist() == pytest.approx([0.5 / 127, 0.25 / 127])
    # The bias is in steps of input scale x weight scale: -55 / (1 x 1/127).
    assert found["0.conv_bias_q"].dtype == np.int32
    assert found["0.conv_bias_q"].tolist() == [-55 * 127] * 3
    # One kernel computes convolution and Relu, so neither Q nor DQ is between them.
    assert "0.conv_q.scale" not in found


def test_s8_is_symmetric_and_only_before_convolutions() -> None:
    graph = quantised_graph(chain().graph, RANGES, (), "int8-s8")
    found = constants(graph)
    assert found["1.maxpool_q.scale"] == pytest.approx(200 / 127)
    assert found["1.maxpool_q.zero"].dtype == np.int8
    assert not any(values.any() for name, values in found.items() if name.endswith(".zero"))
    pairs = [node.name for node in graph.graph.node if node.op_type == "QuantizeLinear"]
    assert pairs == ["input.transpose_q", "1.maxpool_q"]
    assert found["0.conv.bias"].dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_right_except_for_rounding(kind: str) -> None:
    """The right outputs are relu(x - 55) / 2 and relu(x - 55) / 4."""
    network = chain()
    pictures = np.random.default_rng(0).integers(0, 256, network.input_shape).astype(np.uint8)
    quantised = replace(
        network, graph=quantised_graph(network.graph, RANGES, (), kind), precision=kind
    )
    exact, quantised_outputs = run_once(network, pictures)[0], run_once(quantised, pictures)[0]
    planes = np.maximum(pictures.astype(np.float32) - 55, 0).transpose(0, 3, 1, 2)[:, :2]
    assert np.allclose(exact, planes * np.array([0.5, 0.25], np.float32).reshape(1, 2, 1, 1))
    steps = 255 / 127 + 200 / 127 if kind == "int8-s8" else 1 + 200 / 255 + 102 / 255
    assert np.abs(quantised_outputs - exact).max() <= steps / 2 + 1e-3
    assert np.abs(quantised_outputs - exact).max() > 0


@pytest.mark.parametrize(
    ("engine", "kind"), [("ort", "int8-u8"), ("ort", "int8-s8"), ("openvino", "int8-u8")]
)
@pytest.mark.parametrize("sides", [(4,), (4, 5), (3, 4, 5)])
def test_product_is_int8_only_if_weights_are_a_matrix(sides: tuple, engine: str, kind: str) -> None:
    """A vector has no output channels. ONNX Runtime has no integer kernel for stacked matrices."""
    builder = GraphBuilder("tiny")
    first = conv(builder, "0.conv", builder.input_u8(1, SIDE, SIDE), np.eye(3), [1, 1, 1])
    weights = np.linspace(-1, 1, np.prod(sides), dtype=np.float32).reshape(sides)
    rows = weights[:, None] if len(sides) == 1 else weights
    rows[..., 1::2, :] = 0  # CPUs without VNNI add pairs of products in 16 bits: avoid overflow
    last = builder.add("MatMul", "1.matmul", [first, builder.constant("1.weight", weights)])
    network = network_of(builder, [last])
    pictures = np.random.default_rng(0).integers(0, 256, network.input_shape).astype(np.uint8)
    quantised = in_int8(network, kind, pictures)
    assert ("1.weight" in constants(quantised.graph)) == (len(sides) != 2)
    exact = run_once(network, pictures)[0]
    quantised_outputs = run_once(quantised, pictures, engine)[0]
    assert np.abs(quantised_outputs - exact).max() <= np.abs(exact).max() / 50


@pytest.mark.parametrize("kind", [FRONT, "int8-u8", "int8-s8"])
def test_only_int8_u8_front_keeps_small_channels_of_a_depthwise_convolution(kind: str) -> None:
    """The planes' ranges are 1, 1/30 and 1/1000. With a single scale, the small ones are lost."""
    network, random = depthwise(), np.random.default_rng(0)
    pictures = random.integers(0, 256, network.input_shape).astype(np.uint8)
    quantised = in_int8(network, kind, pictures)
    exact = run_once(network, pictures)[0]
    quantised_outputs = run_once(quantised, pictures, "openvino" if kind == FRONT else "ort")[0]
    errors = (np.abs(quantised_outputs - exact).max((0, 2, 3)) / 255).tolist()
    assert errors[0] < 0.02
    assert (errors[1] < 0.02) == (errors[2] < 0.02) == (kind == FRONT)
    if kind != FRONT:  # other kinds do not use the channels' ranges
        tensors = tensors_to_measure(network.graph)
        ranges = measure_ranges(network.graph, tensors, pictures, "minmax")
        assert quantised_graph(network.graph, ranges, (), kind) == quantised.graph


def test_nodes_computed_from_constants_stay_float() -> None:
    builder = GraphBuilder("tiny")
    first = conv(builder, "0.conv", builder.input_u8(1, SIDE, SIDE), np.eye(3))
    large = builder.upsample("1.up", builder.constant("1", np.ones((1, 3, 2, 2), np.float32)), 2)
    last = conv(builder, "3.conv", builder.add("Add", "2.add", [first, large]), np.eye(3))
    pictures = np.zeros((1, SIDE, SIDE, 3), np.uint8)
    quantised = in_int8(network_of(builder, [last]), "int8-u8", pictures)
    assert readers(quantised.graph)["1.up"][0] == "1"


def test_weights_of_7_bits_do_not_overflow() -> None:
    """White pictures give the largest sums. This CPU's kernel computes them without overflow."""
    network = branched()
    pictures = np.full(network.input_shape, 255, np.uint8)
    graph = in_int8(network, "int8-u8", pictures, NARROW_TOP).graph
    largest = [
        np.abs(numpy_helper.to_array(tensor).astype(np.int32)).max()
        for tensor in graph.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and tensor.dims and "zero" not in tensor.name
    ]
    assert set(largest) == {NARROW_TOP}
    assert 2 * 255 * NARROW_TOP < 2**15
    own = run_once(replace(network, graph=graph), pictures)[-1]
    written = run_as_written(graph, pictures)
    step = (255 + 255) / 127 * 3 / 700
    assert np.abs(own - written).max() <= step


@pytest.mark.parametrize("kind", KINDS)
def test_kept_nodes_are_unchanged(kind: str) -> None:
    before = chain().graph
    after = quantised_graph(before, RANGES, {"0.conv", "0.act"}, kind)
    assert readers(after)["0.conv"] == readers(before)["0.conv"]
    assert readers(after)["0.act"] == readers(before)["0.act"]
    # If a convolution computes an output, the DequantizeLinear after it has the output's name.
    assert readers(after)["2.conv_raw" if kind == "int8-u8" else "2.conv"][0].endswith("_dq")
    found = constants(after)
    assert np.array_equal(found["0.conv.weight"], constants(before)["0.conv.weight"])
    assert "2.conv.weight" not in found  # weights that no node reads are dropped


@pytest.mark.parametrize("kind", KINDS)
def test_graph_is_unchanged_if_all_nodes_are_kept(kind: str) -> None:
    before = branched().graph
    after = quantised_graph(before, {}, {node.name for node in before.graph.node}, kind)
    assert list(after.graph.node) == list(before.graph.node)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_quantised_graph_has_valid_names_and_is_deterministic(kind: str) -> None:
    network = open_network("street", random_seed=1, size=(64, 64))
    slots = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype(np.uint8)
    graph = in_int8(network, kind, slots).graph
    names = [node.name for node in graph.graph.node]
    assert len(set(names)) == len(names)
    assert all(good_name(name) for name in names)
    assert all([node.name] == list(node.output) for node in graph.graph.node)
    assert list(graph.graph.output) == list(network.graph.graph.output)
    again = in_int8(network, kind, slots).graph
    assert again.SerializeToString(deterministic=True) == graph.SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize("kind", KINDS)
def test_output_that_a_convolution_reads_keeps_name_and_values(kind: str) -> None:
    """The first convolution computes an output of the graph. The second convolution reads it."""
    builder = GraphBuilder("tiny")
    first = conv(builder, "0.conv", builder.input_u8(1, SIDE, SIDE), np.eye(3), [1, 1, 1])
    network = network_of(builder, [first, conv(builder, "1.conv", first, np.eye(3), [0, 0, 0])])
    ranges = dict.fromkeys(tensors_to_measure(network.graph), (0.0, 256.0))
    graph = quantised_graph(network.graph, ranges, set(), kind)
    found = run_once(
        replace(network, graph=graph, path=None), np.full((1, SIDE, SIDE, 3), 100, np.uint8)
    )
    for output in found:
        np.testing.assert_allclose(output, 101, atol=2.1)  # a step of s8 is 2


def test_one_calibration_serves_every_batch_size() -> None:
    one, three = chain(), chain(3)
    pictures = np.random.default_rng(0).integers(0, 256, three.input_shape).astype(np.uint8)
    singly = replace(one, graph=quantised_graph(one.graph, RANGES, (), "int8-u8"))
    together = replace(three, graph=quantised_graph(three.graph, RANGES, (), "int8-u8"))
    rows = np.concatenate([run_once(singly, picture[None])[0] for picture in pictures])
    assert np.array_equal(run_once(together, pictures)[0], rows)


@pytest.mark.slow
def test_onnxruntime_runs_every_convolution_in_integers(tmp_path: Path) -> None:
    """ONNX Runtime uses integer kernels only for nodes with Q and DQ on both sides."""
    import onnxruntime as ort

    network = open_network("street", random_seed=1, size=(64, 64))
    slots = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype(np.uint8)
    graph = in_int8(network, "int8-u8", slots).graph
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(graph.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(settings.optimized_model_filepath).graph.node]
    layers = sum(node.op_type == "Conv" for node in network.graph.graph.node)
    assert kinds.count("QLinearConv") == layers
    assert "Conv" not in kinds


def test_a_large_bias_on_tiny_weights_fits_into_its_int32() -> None:
    network = chain()
    for tensor in network.graph.graph.initializer:
        if tensor.name == "0.conv.weight":
            values = numpy_helper.to_array(tensor) * np.float32(1e-9)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    found = constants(quantised_graph(network.graph, RANGES, (), "int8-u8"))
    scales = found["0.conv_bias_dq.scale"].astype(np.float64)
    assert found["0.conv_bias_q"] * scales == pytest.approx([-55] * 3, rel=1e-6)
