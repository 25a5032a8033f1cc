"""Quantised files (Q/DQ nodes) on torch, which computes each node as ONNX defines it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.models.base import Network
from tests.engines.quantised import CONVOLUTIONS, pictures, quantised, run_as_written, small_network

pytest.importorskip("torch", reason="machine: torch is not installed")


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """Return a quantised network with the precision fp32, which front ends set for such files."""
    return replace(quantised(small_network(tmp_path), tmp_path), precision="fp32")


def last_step(network: Network) -> float:
    from onnx import numpy_helper

    values = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in network.graph.graph.initializer
    }
    output = network.graph.graph.output[0].name
    (node,) = [node for node in network.graph.graph.node if node.output[0] == output]
    return float(values[node.input[1]])


@pytest.mark.slow
def test_quantised_nodes_are_computed_as_defined(network):
    """Allow two quantisation steps, since a rounding difference may spread to the next layer."""
    picture = pictures(network, 7)
    expected = run_as_written(network.graph, picture)
    with engines.open("torch", network, EngineOptions(device="cpu")) as engine:
        executed = {layer.name: layer.precision for layer in engine.execution()}
        engine.requests[0].slot[:] = picture
        output = engine.requests[0].infer(1)[0].copy()
    assert [executed[name] for name in CONVOLUTIONS] == ["fp32"] * len(CONVOLUTIONS)
    assert "u8" in executed.values()  # outputs of QuantizeLinear
    steps = np.abs(output - expected) / last_step(network)
    assert steps.max() <= 2.01
    assert steps.mean() <= 0.1
    assert np.abs(expected).max() > 20 * last_step(network)
