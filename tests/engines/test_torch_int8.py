"""Q/DQ graphs on torch: int8 kernels where the CPU has them, the nodes' own arithmetic where it has
not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.models.base import Network
from tests.known_answers import plus_one, run_once
from tests.networks import open_network

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from detector.core.engines.torch import abilities  # noqa: E402

INT8 = EngineOptions(precision="int8", device="cpu")

CFG = """
[net]
width=96
height=64
channels=3

[convolutional]
batch_normalize=1
filters=16
size=3
stride=2
pad=1
activation={activation}

[convolutional]
batch_normalize=1
filters=16
groups=16
size=3
stride=1
pad=1
activation={activation}

[convolutional]
batch_normalize=1
filters=16
size=1
stride=1
activation=linear

[shortcut]
from=-3
activation=linear

[maxpool]
size=2
stride=2

[convolutional]
batch_normalize=1
filters=24
size=1
stride=1
activation={activation}

[upsample]
stride=2

[route]
layers=-1,-4

[convolutional]
filters=21
size=1
stride=1
activation=linear

[yolo]
mask=0,1,2
anchors=10,14, 23,27, 37,58
classes=2
num=3
"""


def quantised(network: Network, pictures: list[np.ndarray], folder: Path) -> Network:
    """By onnxruntime itself, as it writes Q/DQ graphs: u8 with a zero point, weights s8 for each
    channel.
    """
    import onnx
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Pictures(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(pictures)

        def get_next(self) -> dict | None:
            picture = next(self.left, None)
            return None if picture is None else {"images": picture}

    onnx.save(network.graph, folder / "float.onnx")
    quantize_static(
        str(folder / "float.onnx"),
        str(folder / "int8.onnx"),
        Pictures(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return replace(network, graph=onnx.load(folder / "int8.onnx"), precision="int8-u8", path=None)


def without_rounding_before_activations(network: Network) -> Network:
    """The Q/DQ pairs between a convolution and its LeakyRelu left out, as torch's kernels leave
    them out.
    """
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(network.graph)
    maker = {node.output[0]: node for node in model.graph.node}
    gone = []
    for node in model.graph.node:
        if node.op_type != "LeakyRelu":
            continue
        back = maker[node.input[0]]
        quantize = maker[back.input[0]]
        if maker[quantize.input[0]].op_type == "Conv":
            node.input[0] = quantize.input[0]
            gone += [back, quantize]
    for node in gone:
        model.graph.node.remove(node)
    return replace(network, graph=model)


def darknet(folder: Path, activation: str) -> Network:
    (folder / "small.cfg").write_text(CFG.format(activation=activation))
    (folder / "small.names").write_text("a\nb\n")
    return open_network(str(folder / "small.cfg"), random_seed=3)


def as_written(network: Network, picture: np.ndarray) -> np.ndarray:
    """The first output, each node as ONNX defines it: onnxruntime without its rewriting, which
    rounds elsewhere.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(network.graph.SerializeToString(), settings)
    return session.run(None, {"images": picture})[0]


def run_int8(network: Network, picture: np.ndarray) -> list[np.ndarray]:
    with engines.open("torch", network, INT8) as engine:
        engine.requests[0].slot[:] = picture
        return [output.copy() for output in engine.requests[0].infer(1)]


def last_step(network: Network) -> float:
    """The scale of the last Q: one step of the output."""
    from onnx import numpy_helper

    values = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in network.graph.graph.initializer
    }
    output = network.graph.graph.output[0].name
    (node,) = [node for node in network.graph.graph.node if node.output[0] == output]
    return float(values[node.input[1]])


@pytest.fixture
def int8_kernels():
    if not abilities.has_int8_kernels():
        pytest.skip("machine: this CPU has no VNNI, or this torch no convolutions of int8")


@pytest.mark.parametrize("activation", ["linear", "relu", "leaky"])
def test_int8_kernels_answer_as_onnxruntime_does(int8_kernels, tmp_path, activation):
    """Every convolution on a kernel of int8, within two steps of the output; a step of rounding in
    one layer may become another in the next.
    """
    network = darknet(tmp_path, activation)
    pictures = [
        np.random.default_rng(at).integers(0, 256, network.input_shape, np.uint8) for at in range(4)
    ]
    graph = quantised(network, pictures, tmp_path)
    wanted = as_written(without_rounding_before_activations(graph), pictures[0])
    with engines.open("torch", graph, INT8) as engine:
        layers = engine.execution()
        engine.requests[0].slot[:] = pictures[0]
        found = engine.requests[0].infer(1)[0].copy()
    convolutions = [layer for layer in layers if layer.type == "QuantizedConv"]
    assert [layer.precision for layer in convolutions] == ["int8"] * 5
    assert not [layer for layer in layers if layer.type == "Conv2d"]
    steps = np.abs(found - wanted) / last_step(graph)
    assert steps.max() <= 2.01
    assert steps.mean() <= 0.1
    assert np.abs(wanted).max() > 20 * last_step(graph)


def test_a_fused_layer_names_the_nodes_that_it_stands_for(int8_kernels, tmp_path):
    network = darknet(tmp_path, "leaky")
    graph = quantised(network, [np.full(network.input_shape, 99, np.uint8)], tmp_path)
    with engines.open("torch", graph, INT8) as engine:
        layer = next(layer for layer in engine.execution() if layer.name == "1.conv")
        assert {"1.conv", "1.act"} < set(layer.nodes)
        operators = Counter(layer.type for layer in engine.execution())
        # The pooling, the enlarging and the transposing work on bytes; float32 is only around the
        # shortcut.
        assert {(layer.type, layer.precision) for layer in engine.execution()} >= {
            ("BytePool", "u8"),
            ("Upsample", "u8"),
            ("Permute", "u8"),
            ("Concat", "u8"),
        }
        assert operators["Sum"] == 1


def test_without_int8_kernels_the_nodes_are_computed_as_they_say(monkeypatch, tmp_path):
    """Rounded as int8 would be, computed in float32; and that nothing got faster is said."""
    monkeypatch.setattr(abilities, "has_int8_kernels", lambda: False)
    network = darknet(tmp_path, "leaky")
    pictures = [
        np.random.default_rng(at).integers(0, 256, network.input_shape, np.uint8) for at in range(4)
    ]
    graph = quantised(network, pictures, tmp_path)
    wanted = as_written(graph, pictures[0])
    with engines.open("torch", graph, INT8) as engine:
        assert "is not faster" in " ".join(engine.notes)
        layers = engine.execution()
        assert {layer.precision for layer in layers if layer.type == "Conv2d"} == {"fp32"}
        engine.requests[0].slot[:] = pictures[0]
        found = engine.requests[0].infer(1)[0].copy()
    steps = np.abs(found - wanted) / last_step(graph)
    assert steps.max() <= 2.01
    assert steps.mean() <= 0.1


def test_quantising_one_picture_with_known_answers(tmp_path):
    """x + 1 for whole numbers, with a step of about one."""
    network = plus_one()
    pictures = [
        np.zeros(network.input_shape, np.uint8),
        np.full(network.input_shape, 255, np.uint8),
    ]
    graph = quantised(network, pictures, tmp_path)
    given = np.random.default_rng(1).integers(0, 256, network.input_shape, np.uint8)
    found = run_int8(graph, given)
    assert np.abs(found[0] - (given.transpose(0, 3, 1, 2) + 1.0)).max() <= 1.01


def test_what_is_kept_in_float_runs_in_float(int8_kernels, tmp_path):
    """A convolution without Q/DQ around it stays a Conv2d of fp32, between others of int8."""
    import onnx
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    network = darknet(tmp_path, "relu")
    picture = np.random.default_rng(0).integers(0, 256, network.input_shape, np.uint8)

    class One(CalibrationDataReader):
        left = 1

        def get_next(self) -> dict | None:
            self.left -= 1
            return None if self.left < 0 else {"images": picture}

    onnx.save(network.graph, tmp_path / "float.onnx")
    quantize_static(
        str(tmp_path / "float.onnx"),
        str(tmp_path / "mixed.onnx"),
        One(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=["1.conv", "1.act", "8.conv"],
    )
    mixed = replace(network, graph=onnx.load(tmp_path / "mixed.onnx"), precision="int8-u8")
    with engines.open("torch", mixed, INT8) as engine:
        ran = {layer.name: layer.precision for layer in engine.execution()}
        engine.requests[0].slot[:] = picture
        found = engine.requests[0].infer(1)[0].copy()
    assert [ran[name] for name in ("0.conv", "1.conv", "2.conv", "5.conv", "8.conv")] == [
        "int8",
        "fp32",
        "int8",
        "int8",
        "fp32",
    ]
    np.testing.assert_allclose(found, as_written(mixed, picture), atol=1e-4)
    assert (
        np.abs(found - run_once(network, picture, "ort")[0]).max() > 0.01
    )  # what the int8 of the others costs


@pytest.mark.slow
def test_yolo_fastest_loses_no_more_than_onnxruntime(int8_kernels, shared, tmp_path):
    """84 convolutions on real photos: as far from fp32 as onnxruntime's run of the same file, or
    nearer.
    """
    import cv2

    folder = shared / "data/weights"
    network = open_network(
        str(folder / "yolo-fastest-1.1.cfg"),
        weights=str(folder / "yolo-fastest-1.1.weights"),
        names=str(folder / "coco.names"),
    )
    photos = sorted((shared / "data/photos").glob("*.jpg"))[:4]
    size = (network.input.width, network.input.height)
    pictures = [cv2.resize(cv2.imread(str(path)), size)[None, :, :, ::-1].copy() for path in photos]
    graph = quantised(network, pictures, tmp_path)
    with engines.open("torch", graph, INT8) as engine:
        assert Counter(layer.precision for layer in engine.execution() if "Conv" in layer.type) == {
            "int8": 84
        }
    ours, theirs = [], []
    for picture in pictures[:2]:
        exact, other = run_once(network, picture, "ort"), run_once(graph, picture, "ort")
        found = run_int8(graph, picture)
        ours += [np.abs(a - b).mean() for a, b in zip(found, exact, strict=True)]
        theirs += [np.abs(a - b).mean() for a, b in zip(other, exact, strict=True)]
    assert np.mean(ours) <= 1.1 * np.mean(theirs)
