"""Every family's network on every engine: equal raw outputs, and graphs that other tools open."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from detector import engines
from detector.engines.base import EngineOptions
from tests.known_answers import run_once
from tests.networks import open_network

COMPUTING = [name for name in engines.names() if name != "null"]
SLOW = pytest.mark.slow
NETWORKS = [  # model, height, width: every stem, block and head that is supported
    ("yolov4-tiny-person-vehicle", 96, 64),
    ("yolov5n.yaml", 64, 96),
    ("yolov5s-5.0.yaml", 64, 96),
    ("yolov5n6.yaml", 64, 128),
    ("yolov7-tiny.yaml", 64, 96),
    pytest.param("yolov7.yaml", 64, 96, marks=SLOW),
    pytest.param("yolov7x.yaml", 64, 64, marks=SLOW),
    pytest.param("yolov7-w6.yaml", 64, 64, marks=SLOW),
    pytest.param("yolov7-e6e.yaml", 64, 64, marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize("engine", COMPUTING)
@pytest.mark.parametrize(("model", "height", "width"), NETWORKS)
def test_engines_agree_at_every_filling_of_a_batch(model, height, width, engine):
    if reason := engines.usable()[engine]:
        pytest.skip(f"machine: engine {engine}: {reason}")
    network = open_network(model, random_seed=0, size=(height, width), batch=2)
    pictures = np.random.default_rng(0).integers(0, 256, (2, height, width, 3), np.uint8)
    wanted = run_once(network, pictures, "ort")
    with engines.open(engine, network, EngineOptions(batch=2, requests=1)) as opened:
        request = opened.requests[0]
        for n in (2, 1):
            request.slot[:n] = pictures[:n]
            outputs = request.infer(n)
            assert [output.shape for output in outputs] == [
                (n, *shape[1:]) for shape in network.output_shapes
            ]
            for output, one in zip(outputs, wanted, strict=True):
                np.testing.assert_allclose(output, one[:n], rtol=1e-3, atol=1e-3)
            one_picture = [output[:1] for output in outputs]
            assert network.dense(one_picture).shape[2] == 5 + len(network.names)
            candidates = network.head(one_picture, 0.01)
            assert np.isfinite(candidates.boxes).all()
            assert len(candidates.boxes) == len(candidates.scores) == len(candidates.class_ids)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "height", "width"), NETWORKS)
def test_the_graph_opens_in_other_tools(tmp_path, model, height, width):
    """onnx's checker and its strict shape inference, on the file with all of its weights."""
    network = open_network(model, random_seed=0, size=(height, width))
    path = str(tmp_path / "x.onnx")
    onnx.save(network.graph, path)
    onnx.checker.check_model(path, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)
    shapes = [
        tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for info in inferred.graph.output
    ]
    assert shapes == network.output_shapes


@pytest.mark.slow
@pytest.mark.parametrize("model", ["yolov5n.yaml", "yolov7-tiny.yaml"])
def test_torchs_own_tools_see_the_layers_by_name(model):
    pytest.importorskip("torch", reason="machine: torch is not installed")
    network = open_network(model, random_seed=0, size=(64, 64))
    with engines.open("torch", network) as opened:
        names = {layer.name: layer.type for layer in opened.execution()}
    convolutions = [node.name for node in network.graph.graph.node if node.op_type == "Conv"]
    assert all(names[name] == "Conv2d" for name in convolutions)
