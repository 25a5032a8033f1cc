"""Engine torch runs ordinary modules named after the layers, so torch's own tools work on them."""

import numpy as np
import pytest

from detector.core import engines
from detector.core.errors import EngineError
from tests.known_answers import plus_one
from tests.networks import open_network

torch = pytest.importorskip("torch", reason="machine: torch is not installed")


@pytest.fixture(scope="module")
def network():
    return open_network("yolov4-tiny-person-vehicle", random_seed=7, size=(64, 96))


@pytest.mark.slow
def test_modules_have_the_names_of_the_nodes(network):
    with engines.open("torch", network) as engine:
        assert isinstance(engine.module, torch.fx.GraphModule)
        conv = engine.module.get_submodule("0.conv")
        assert type(conv) is torch.nn.Conv2d
        assert (conv.in_channels, conv.out_channels, conv.stride, conv.padding) == (
            3,
            32,
            (2, 2),
            (1, 1),
        )
        assert type(engine.module.get_submodule("0.act")) is torch.nn.LeakyReLU
        assert type(engine.module.get_submodule("9.maxpool")) is torch.nn.MaxPool2d
        assert type(engine.module.get_submodule("33.upsample")) is torch.nn.Upsample
        nodes = [node.name for node in network.graph.graph.node]
        assert [layer.name for layer in engine.execution()] == nodes
        assert engine.execution()[2].type == "Conv2d"
        assert {layer.precision for layer in engine.execution()} == {"fp32"}
        parameters = sum(parameter.numel() for parameter in engine.module.parameters())
        channels = sum(
            part.out_channels
            for part in engine.module.modules()
            if isinstance(part, torch.nn.Conv2d)
        )
        normed_channels = channels - 2 * 21  # the convolutions of the two heads have no batch norm
        # Scale, mean and variance of a batch norm are folded into the weights.
        assert parameters == network.parameters - 3 * normed_channels


@pytest.mark.slow
def test_torch_hooks_run_on_the_layers(network):
    called = []
    with engines.open("torch", network) as engine:
        engine.module.get_submodule("29.conv").register_forward_hook(
            lambda *_: called.append("29.conv")
        )
        engine.requests[0].infer(1)
    assert called == ["29.conv"]


def test_error_lists_the_operators_without_a_module():
    network = plus_one()
    network.graph.graph.node[2].op_type = "NonZero"
    network.graph.graph.node[3].op_type = "ScatterND"
    with pytest.raises(EngineError, match=r"NonZero, ScatterND .*--engine ort"):
        engines.open("torch", network)


def test_error_for_an_unsupported_attribute_names_the_node():
    from onnx import helper

    network = plus_one()
    network.graph.graph.node[2].attribute.append(helper.make_attribute("auto_pad", "SAME_UPPER"))
    with pytest.raises(EngineError, match=r"0\.conv .*: auto_pad="):
        engines.open("torch", network)


@pytest.mark.slow
def test_engines_of_one_graph_share_no_weights(network):
    with engines.open("torch", network) as one, engines.open("torch", network) as two:
        before = [output.copy() for output in one.requests[0].infer(1)]
        with torch.no_grad():
            two.module.get_submodule("29.conv").weight.zero_()
        for output, kept in zip(one.requests[0].infer(1), before, strict=True):
            np.testing.assert_array_equal(output, kept)
