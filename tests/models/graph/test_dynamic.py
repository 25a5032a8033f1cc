"""Dynamic quantisation, for what it is: nothing for torch, ConvInteger and more nodes for onnxruntime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detector.models.graph.dynamic import changed_by_torch, dynamic
from tests.known_answers import run_once
from tests.networks import open_network


def test_onnxruntime_changes_every_convolution_and_adds_nodes() -> None:
    network = open_network("street", random_seed=1, size=(64, 64))
    found = dynamic(network.graph)
    layers = sum(node.op_type == "Conv" for node in network.graph.graph.node)
    assert (found.changed, found.layers) == (layers, layers)
    assert found.added > 3 * layers  # ranges, scales and biases of every run
    assert found.bytes_after < 0.4 * found.bytes_before
    pictures = np.random.default_rng(0).integers(0, 256, network.input_shape).astype(np.uint8)
    exact, rough = (
        run_once(network, pictures),
        run_once(replace(network, graph=found.graph), pictures),
    )
    assert all(
        np.abs(a - b).max() < 0.2 * np.abs(a).max() for a, b in zip(exact, rough, strict=True)
    )


def test_torch_changes_nothing() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from detector.engines.torch.graph import graph_module

    assert (
        changed_by_torch(graph_module(open_network("street", random_seed=1, size=(64, 64)).graph))
        == 0
    )
    assert changed_by_torch(torch.nn.Sequential(torch.nn.Linear(2, 2))) == 1  # the count can count
