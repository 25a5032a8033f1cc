"""Layer times of every engine that reports them. Each node of a graph counts exactly once."""

import time

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines._layer_times import FEWEST, WARMUP, match_layers, quiet_runs
from detector.core.engines.base import EngineOptions, LayerExecution
from detector.core.engines.ort.layers import split_into_runs
from detector.core.errors import EngineError
from detector.core.models.graph.build import count_macs, joint_cost
from tests.engines.quantised import CONVOLUTIONS, pictures, quantised, small_network
from tests.known_answers import plus_one
from tests.networks import need_engine, open_network

TIMED = ["ort", "torch", "openvino"]


def times_of(engine, network, precision="fp32"):
    need_engine(engine)
    options = EngineOptions(threads=1, batch=network.batch, precision=precision)
    slots = [pictures(network, seed) for seed in range(2)]
    return engines.time_layers(engine, network, options, slots, runs=3)


def covered(layers):
    return [node for layer in layers for node in layer.nodes or (layer.name,)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", TIMED)
def test_every_node_is_in_one_timed_layer(engine):
    network = open_network("street")
    timed = times_of(engine, network)
    convolutions = [node.name for node in network.graph.graph.node if node.op_type == "Conv"]
    listed = covered(timed.layers)
    assert sorted(node for node in listed if node in set(convolutions)) == sorted(convolutions)
    costs = joint_cost(network.graph, [layer.nodes or (layer.name,) for layer in timed.layers])
    assert sum(cost.macs for cost in costs) == count_macs(network.graph)
    assert all(
        layer.precision == "fp32"
        for layer, cost in zip(timed.layers, costs, strict=True)
        if cost.macs
    )
    assert all(layer.median_ms is not None and layer.median_ms >= 0 for layer in timed.layers)
    assert timed.forward_ms > 0
    assert timed.profiled_ms > 0
    assert timed.counted == 3


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "openvino"])
def test_quantised_convolutions_keep_their_names(engine, tmp_path):
    network = quantised(small_network(tmp_path), tmp_path)
    timed = times_of(engine, network, "int8")
    listed = covered(timed.layers)
    assert sorted(node for node in listed if node in CONVOLUTIONS) == CONVOLUTIONS


@pytest.mark.parametrize("engine", TIMED)
def test_layers_at_batch_size_3_have_the_names_of_their_convolutions(engine):
    timed = times_of(engine, plus_one(batch=3))
    assert {"0.conv", "1.conv"} <= set(covered(timed.layers))


def test_engine_without_layer_times_raises():
    network = plus_one()
    slots = [np.zeros(network.input_shape, np.uint8)]
    with pytest.raises(EngineError, match="null: no layer times"):
        engines.time_layers("null", network, EngineOptions(), slots, 1)


def test_compiled_torch_has_no_layer_times():
    need_engine("torch")
    from detector.core.engines.torch.engine import OpenTorch

    with pytest.raises(EngineError, match="--engine-options compile"):
        OpenTorch.layer_profiler(plus_one(), EngineOptions(own={"compile": "1"}))


def test_time_of_a_torch_layer_is_only_in_its_own_row():
    """A slow layer's time is only in its own row. The rows add up to at most the measured time."""
    need_engine("torch")
    from detector.core.engines.torch.engine import OpenTorch
    from detector.core.engines.torch.layers import TorchLayerProfiler

    network = plus_one()
    engine = OpenTorch(network, EngineOptions(threads=1, requests=1))
    slow = engine.module.get_submodule("1.conv")
    forward = slow.forward
    slow.forward = lambda given: (time.sleep(0.1), forward(given))[1]
    profiler = TorchLayerProfiler(engine, engine.module)
    begin = time.perf_counter()
    for seed in range(5):  # five runs, in case the machine stalls in one
        profiler.run(pictures(network, seed))
    took_ms = (time.perf_counter() - begin) * 1e3
    times_by_layer = {layer.name: times for layer, times in profiler.times()}
    assert [name for name, times in times_by_layer.items() if min(times) > 95] == ["1.conv"]
    assert all(len(times) == 5 and min(times) > 0 for times in times_by_layer.values())
    assert 500 < sum(sum(times) for times in times_by_layer.values()) <= took_ms
    profiler.close()


def test_times_are_matched_with_listed_layers():
    """Layers with the same name keep their order. Layers that are timed but not listed stay; layers
    that are listed but not timed are dropped."""
    listed = [
        LayerExecution("a", "Conv", "fp32"),
        LayerExecution("r", "Reorder", "fp32", nodes=("x",)),
        LayerExecution("r", "Reorder", "bf16"),
        LayerExecution("gone", "Conv", "fp32"),
    ]
    measured = [
        [("a", "Conv", 1.0), ("r", "R", 2.0), ("r", "R", 3.0), ("new", "Cast", 4.0)],
        [("a", "Conv", 5.0), ("r", "R", 6.0), ("r", "R", 7.0), ("new", "Cast", 8.0)],
    ]
    assert match_layers(listed, measured) == [
        (listed[0], [1.0, 5.0]),
        (listed[1], [2.0, 6.0]),
        (listed[2], [3.0, 7.0]),
        (LayerExecution("new", "Cast", "unknown"), [4.0, 8.0]),
    ]


def test_only_the_fastest_quarter_of_the_runs_counts():
    times = [0.0] * WARMUP + [9.0, 1.0, 5.0]
    assert quiet_runs(times) == [WARMUP + 1, WARMUP + 2, WARMUP]  # too few runs to drop any
    many = [0.0] * WARMUP + [float(at) for at in range(100, 0, -1)]
    assert quiet_runs(many) == list(range(WARMUP + 99, WARMUP + 74, -1))  # the fastest quarter
    assert len(quiet_runs(many[:33])) == FEWEST


def test_onnx_runtime_events_are_split_into_runs():
    def node(name, ts):
        return {
            "cat": "Node",
            "name": f"{name}_kernel_time",
            "ts": ts,
            "dur": 2,
            "args": {"op_name": "Conv"},
        }

    events = [
        {"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 9},
        node("a", 10),
        node("b", 13),
        {"cat": "Session", "name": "model_run", "ts": 10, "dur": 6},
        node("a", 20),
        node("b", 23),
        {"cat": "Session", "name": "model_run", "ts": 19, "dur": 7},
    ]
    assert split_into_runs(events) == [[("a", "Conv", 0.002), ("b", "Conv", 0.002)]] * 2
