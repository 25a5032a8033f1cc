"""Graphs that are converted for TensorRT with ``--precision fp16``, ``bf16`` or ``int8``. The tests
run the model ``street`` on frames of its clip, street.mp4."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from detector.core import engines, sources
from detector.core.analysis.summary import effect, executed
from detector.core.config.levels import merge_levels
from detector.core.engines.base import EngineOptions
from detector.core.models.base import Network
from detector.core.models.graph.build import count_macs
from detector.core.run.executed import executed_layers
from detector.core.run.prepare import prepare_network
from detector.core.stages.nms import nms
from detector.core.stages.preprocess import letterbox
from detector.core.types import Detections
from scripts.measuring.rounded import rounded
from tests.conftest import CHECKOUT
from tests.engines.trt.opening import EVERY
from tests.fakes.install import MAJORS, install_fake_tensorrt
from tests.networks import open_network

STREET = CHECKOUT / "videos/street.mp4"
PRECISIONS = ("fp16", "bf16", "int8")
FRAMES = 3


@pytest.fixture(scope="module")
def network() -> Network:
    return open_network("street")


@pytest.fixture(scope="module")
def inputs(network) -> list[np.ndarray]:
    pictures = []
    with sources.open(str(STREET)) as source:
        for frame in islice(iter(source.read, None), FRAMES):
            pictures.append(np.zeros(network.input_shape, np.uint8))
            letterbox(frame.image, pictures[-1][0], geometry=network.input.geometry)
    return pictures


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder for the plans of all TensorRT versions, and for their shared calibration."""
    return tmp_path_factory.mktemp("built")


def ready_for(network, precision, place, memory="cuda-python", **more):
    options = {"precision": precision, "device_memory": memory, "engines_dir": str(place), **more}
    config = merge_levels(
        ("test", {"calibrate": str(STREET), "calibrate_frames": 8}), ("test", options)
    )
    return prepare_network(network, "trt", config, lambda concurrency: 1)


def outputs_of(engine, pictures) -> Iterator[list[np.ndarray]]:
    for picture in pictures:
        engine.requests[0].slot[:] = picture
        yield [output.copy() for output in engine.requests[0].infer(1)]


def found_in(network, outputs) -> list[Detections]:
    return [
        nms(network.head(one, 0.25), iou=0.45, max_det=300, names=network.names) for one in outputs
    ]


def by_onnx_runtime(network: Network, pictures) -> list[list[np.ndarray]]:
    """Run the graph in ONNX Runtime. A bf16 graph runs in float32 with explicit rounding.

    With one thread, sums are added up in the same order as in the fake TensorRT. So int8 values are
    rounded alike.
    """
    if network.precision == "bf16":
        network = replace(network, graph=rounded(network.graph), path=None)
    with engines.open(
        "ort", network, EngineOptions(threads=1, requests=1, concurrency=1)
    ) as engine:
        return list(outputs_of(engine, pictures))


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("major", "memory"), EVERY)
def test_onnx_runtime_gives_the_same_detections_for_the_same_graph(
    monkeypatch, network, inputs, place, major, memory, precision
):
    machine = install_fake_tensorrt(monkeypatch, major, memory)
    ready = ready_for(network, precision, place, memory)
    assert ready.network.precision == {"int8": "int8-s8"}.get(precision, precision)
    expected = by_onnx_runtime(ready.network, inputs)
    with engines.open("trt", ready.network, ready.options) as engine:
        outputs = list(outputs_of(engine, inputs))
        shares = executed(executed_layers(network, engine))
    for ours, theirs in zip(outputs, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == np.float32
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    for a, b in zip(found_in(network, outputs), found_in(network, expected), strict=True):
        np.testing.assert_array_equal(a.class_ids, b.class_ids)
        np.testing.assert_allclose(a.boxes, b.boxes, atol=1e-3)
        assert len(a) > 3
    assert shares[precision]["macs"] > 0.5
    assert effect(precision, shares) is None
    assert machine.device.allocations == {}


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("major", MAJORS)
def test_each_mac_is_counted_once_in_the_precision_of_its_layer(
    monkeypatch, network, place, major, precision
):
    """This includes the convolution before an output, whose name the Cast after it has taken."""
    install_fake_tensorrt(monkeypatch, major)
    ready = ready_for(network, precision, place)
    with engines.open("trt", ready.network, ready.options) as engine:
        layers = executed_layers(network, engine)
    assert sum(layer.macs for layer in layers) == count_macs(network.graph)
    types = {layer.precision for layer in layers if layer.macs}
    # In bf16, convolutions of few channels stay fp32.
    assert types == {"fp16": {"fp16"}, "bf16": {"bf16", "fp32"}, "int8": {"int8"}}[precision]


@pytest.mark.slow
@pytest.mark.parametrize("major", MAJORS)
def test_unquantised_convolutions_are_reported_as_fp32(monkeypatch, network, place, major):
    """Half of the convolutions are not quantised."""
    from detector.core.models.graph.qdq import quantised_graph
    from detector.core.run.quantize import get_calibration

    install_fake_tensorrt(monkeypatch, major)
    config = merge_levels(
        ("test", {"calibrate": str(STREET), "calibrate_frames": 8, "engines_dir": str(place)})
    )
    ranges = get_calibration(network, config, place, lambda *_: True)[0].ranges
    convolutions = [node.name for node in network.graph.graph.node if node.op_type == "Conv"]
    kept = set(convolutions[::2])
    graph = quantised_graph(network.graph, ranges, kept, "int8-s8")
    partly = replace(network, graph=graph, precision="int8-s8", path=None)
    with engines.open("trt", partly, EngineOptions(precision="int8", requests=1)) as engine:
        executed_precision = {
            name: layer.precision for layer in engine.execution() for name in layer.nodes
        }
    for name in convolutions:
        assert executed_precision[name] == ("fp32" if name in kept else "int8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "lacking"),
    [("int8", "int8_kernels"), ("tf32", "tf32_kernels")],
    ids=["int8", "tf32"],
)
@pytest.mark.parametrize("major", MAJORS)
def test_precision_without_effect_is_reported(
    monkeypatch, network, tmp_path, place, major, precision, lacking
):
    """TensorRT may find no kernel of the requested precision, or none that is faster."""
    machine = install_fake_tensorrt(monkeypatch, major)
    ready = ready_for(network, precision, place)  # reuses the calibration; the plan below is new
    setattr(machine.fake, lacking, False)
    with engines.open(
        "trt", ready.network, EngineOptions(precision=precision, requests=1)
    ) as engine:
        shares = executed(executed_layers(network, engine))
    assert re.match(f"{precision} .*no effect: executed as fp32 100%", effect(precision, shares))


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("major", MAJORS)
def test_converted_graph_runs_a_range_of_batch_sizes(
    monkeypatch, network, inputs, place, major, precision
):
    """One plan runs batches of 1 to 4. A batch has the same outputs as its pictures alone."""
    install_fake_tensorrt(monkeypatch, major)
    four = open_network("street", batch=4)
    alone = ready_for(network, precision, place)
    both = ready_for(four, precision, place, batch=4, engine_options=["min_batch=1", "max_batch=4"])
    with engines.open("trt", alone.network, alone.options) as engine:
        expected = list(outputs_of(engine, inputs))
    with engines.open("trt", both.network, both.options) as engine:
        for at, picture in enumerate(inputs):
            engine.requests[0].slot[at] = picture[0]
        outputs = engine.requests[0].infer(FRAMES)
        for at in range(FRAMES):
            for a, b in zip(outputs, expected[at], strict=True):
                np.testing.assert_allclose(a[at : at + 1], b, rtol=1e-4, atol=1e-4)
