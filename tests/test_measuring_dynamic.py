"""Dynamic quantisation changes every convolution in ONNX Runtime, and none in torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measuring.dynamic import count_changed_by_torch, quantise_dynamically

from tests.known_answers import run_once
from tests.networks import open_network


@pytest.mark.slow
def test_onnxruntime_changes_every_convolution_and_adds_nodes() -> None:
    network = open_network("street", random_seed=1, size=(64, 64))
    result = quantise_dynamically(network.graph)
    layers = sum(node.op_type == "Conv" for node in network.graph.graph.node)
    assert (result.changed, result.layers) == (layers, layers)
    assert result.added > 3 * layers  # ranges, scales and biases of every run
    assert result.bytes_after < 0.4 * result.bytes_before
    pictures = np.random.default_rng(0).integers(0, 256, network.input_shape).astype(np.uint8)
    exact = run_once(network, pictures)
    rough = run_once(replace(network, graph=result.graph), pictures)
    assert all(
        np.abs(a - b).max() < 0.2 * np.abs(a).max() for a, b in zip(exact, rough, strict=True)
    )


@pytest.mark.slow
def test_torch_changes_nothing() -> None:
    torch = pytest.importorskip("torch", reason="machine: torch is not installed")
    from detector.core.engines.torch.graph import graph_module

    street = graph_module(open_network("street", random_seed=1, size=(64, 64)).graph)
    assert count_changed_by_torch(street) == 0
    assert count_changed_by_torch(torch.nn.Sequential(torch.nn.Linear(2, 2))) == 1  # it can count
