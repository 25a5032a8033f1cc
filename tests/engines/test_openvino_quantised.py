"""OpenVINO runs files that other tools quantised."""

from dataclasses import replace

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.openvino import quantised as openvino_quantised
from detector.core.errors import EngineError
from tests.engines.quantised import pictures, quantised, run_as_written, small_network
from tests.networks import need_engine

KINDS = ("QInt8", "QUInt8", "QInt16", "QUInt16")

need_engine("openvino", allow_module_level=True)


def foreign(folder, activations="QInt8"):
    network = quantised(small_network(folder), folder, activations=activations)
    return replace(network, precision="fp32", details={"recognised": "by a test"})


def run(engine, network, requests=1):
    options = EngineOptions(requests=requests, concurrency=requests)
    with engines.open(engine, network, options) as opened:
        opened.requests[0].slot[:] = pictures(network, 9)
        return opened.requests[0].infer(1)[0].copy(), list(opened.notes)


def types(model, operator):
    constants = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return {constants[node.input[2]] for node in model.graph.node if node.op_type == operator}


@pytest.mark.parametrize("activations", KINDS)
def test_signed_bytes_become_unsigned_without_changing_values(activations, tmp_path):
    from onnx import TensorProto, checker

    network = foreign(tmp_path, activations)
    inputs, after = pictures(network, 9), openvino_quantised.unsign(network.graph)
    checker.check_model(after, full_check=True)
    np.testing.assert_array_equal(
        run_as_written(after, inputs), run_as_written(network.graph, inputs)
    )
    assert TensorProto.INT8 not in types(after, "QuantizeLinear")
    assert TensorProto.INT8 in types(after, "DequantizeLinear")  # weights are unchanged


def test_quantise_node_without_a_matching_dequantise_node_stays_signed():
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        helper.make_node("Flatten", ["q"], ["flat"]),
        helper.make_node("DequantizeLinear", ["flat", "step", "zero"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    constants = [
        numpy_helper.from_array(np.float32(0.5), "step"),
        numpy_helper.from_array(np.int8(-3), "zero"),
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:], constants))
    assert list(openvino_quantised.unsign(model).graph.node) == nodes


@pytest.mark.parametrize("activations", KINDS)
def test_conversion_to_float_removes_only_the_rounding(activations, tmp_path):
    network = foreign(tmp_path, activations)
    inputs, after = pictures(network, 9), openvino_quantised.to_float(network.graph)
    expected = run_as_written(network.graph, inputs)
    assert np.abs(run_as_written(after, inputs) - expected).max() < 0.05 * np.abs(expected).max()
    assert not [node for node in after.graph.node if "Linear" in node.op_type]


@pytest.mark.parametrize("activations", KINDS)
def test_results_agree_with_onnx_runtime(activations, tmp_path):
    """Compile several times, since OpenVINO misreads a quantised graph only now and then."""
    network = foreign(tmp_path, activations)
    assert openvino_quantised.is_wide(network.graph) == activations.endswith("16")
    expected, _ = run("ort", network)
    for _ in range(4):
        output, notes = run("openvino", network, requests=2)
        assert np.abs(output - expected).max() < 0.05 * np.abs(expected).max()
        assert any("computes in float" in note for note in notes) == openvino_quantised.is_wide(
            network.graph
        )


def spoil(model):
    """Make all scores nearly 0, as they are if OpenVINO misreads a Concat."""
    from onnx import numpy_helper

    spoiled = openvino_quantised.to_float(model)
    last = [node for node in spoiled.graph.node if node.op_type == "Conv"][-1]
    for tensor in spoiled.graph.initializer:
        if tensor.name == last.input[2]:
            biases = np.full(tensor.dims, -20, np.float32)
            tensor.CopyFrom(numpy_helper.from_array(biases, tensor.name))
    return spoiled


def test_misread_graph_runs_in_float_with_a_note(monkeypatch, tmp_path):
    network = foreign(tmp_path)
    expected, _ = run("ort", network)
    monkeypatch.setattr(openvino_quantised, "unsign", spoil)
    output, notes = run("openvino", network, requests=2)
    assert np.abs(output - expected).max() < 0.05 * np.abs(expected).max()
    assert [note for note in notes if "computes in float; --engine ort" in note]


def test_graph_that_is_misread_even_in_float_is_refused(monkeypatch, tmp_path):
    spoiled = spoil(foreign(tmp_path).graph)
    monkeypatch.setattr(openvino_quantised, "unsign", lambda model: spoiled)
    monkeypatch.setattr(openvino_quantised, "to_float", lambda model: spoiled)
    with pytest.raises(EngineError, match="from those of ONNX Runtime; use --engine ort"):
        run("openvino", foreign(tmp_path))
