"""A file that is quantised already (Q/DQ nodes) on torch: each node as ONNX defines it, in fp32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.errors import EngineError
from detector.core.models.base import Network
from tests.engines.quantised import CONVOLUTIONS, pictures, quantised, small_network

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

CPU = {"device": "cpu"}


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """Return the network as a front end makes it from such a file: an unchanged graph, for fp32."""
    return replace(quantised(small_network(tmp_path), tmp_path), precision="fp32")


def as_written(network: Network, picture: np.ndarray) -> np.ndarray:
    """The first output by onnxruntime without its rewriting, which rounds elsewhere."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(network.graph.SerializeToString(), settings)
    return session.run(None, {"images": picture})[0]


def last_step(network: Network) -> float:
    from onnx import numpy_helper

    values = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in network.graph.graph.initializer
    }
    output = network.graph.graph.output[0].name
    (node,) = [node for node in network.graph.graph.node if node.output[0] == output]
    return float(values[node.input[1]])


@pytest.mark.slow
def test_its_nodes_are_computed_as_they_say(network):
    """Within two steps: a step of rounding in one layer may become another in the next."""
    picture = pictures(network, 7)
    wanted = as_written(network, picture)
    with engines.open("torch", network, EngineOptions(**CPU)) as engine:
        executed = {layer.name: layer.precision for layer in engine.execution()}
        engine.requests[0].slot[:] = picture
        found = engine.requests[0].infer(1)[0].copy()
    assert [executed[name] for name in CONVOLUTIONS] == ["fp32"] * len(CONVOLUTIONS)
    assert "u8" in executed.values()  # what Q gives
    steps = np.abs(found - wanted) / last_step(network)
    assert steps.max() <= 2.01
    assert steps.mean() <= 0.1
    assert np.abs(wanted).max() > 20 * last_step(network)


def test_in_bf16_it_is_refused(network):
    message = "small cannot become bf16: the file is already quantised; --precision fp32 runs it"
    with pytest.raises(EngineError, match=message):
        engines.open("torch", network, EngineOptions(precision="bf16", **CPU))


def test_int8_is_refused_with_the_engines_that_run_it():
    message = "engine torch cannot run int8; it runs fp32, .*; for int8 use --engine .*openvino"
    with pytest.raises(EngineError, match=message):
        engines.graph_wanted("torch", "int8")
