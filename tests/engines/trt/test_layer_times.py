"""Layer times by TensorRT's profiler, with the graph's names. Ordinary runs have no profiler."""

import json

import pytest
from click.testing import CliRunner

from detector.core import engines
from detector.core.cli.group import cli
from detector.core.engines._layer_times import WARMUP
from detector.core.engines.base import EngineOptions
from detector.core.errors import EngineError
from detector.core.models.graph.build import count_macs, joint_cost
from detector.lab.profile import layers as layers_pass
from tests.conftest import CHECKOUT
from tests.engines.quantised import pictures
from tests.engines.trt.opening import opened
from tests.fakes.plans import as_exported, plan_of
from tests.known_answers import plus_one
from tests.networks import open_network

STREET = CHECKOUT / "videos/street.mp4"


def times_of(network, runs=3, **options):
    slots = [pictures(network, seed) for seed in range(2)]
    return engines.time_layers(
        "trt", network, EngineOptions(batch=network.batch, **options), slots, runs
    )


@pytest.mark.slow
def test_every_node_is_in_one_timed_layer(machine):
    """Every convolution is in exactly one row, together with the activation fused into it."""
    network = open_network("street", size=(64, 96))
    timed = times_of(network)
    assert machine.device.allocations == {}
    convolutions = [node.name for node in network.graph.graph.node if node.op_type == "Conv"]
    listed = [node for layer in timed.layers for node in layer.nodes]
    assert sorted(node for node in listed if node in set(convolutions)) == sorted(convolutions)
    costs = joint_cost(network.graph, [layer.nodes or (layer.name,) for layer in timed.layers])
    assert sum(cost.macs for cost in costs) == count_macs(network.graph)
    fused = {layer.name: layer.nodes for layer in timed.layers}
    assert fused["0.conv + 0.act"] == ("0.conv", "0.act")
    copy = next(layer for layer in timed.layers if layer.name.startswith("Reformatting CopyNode"))
    assert (copy.type, copy.nodes) == ("Reformat", ())
    assert {
        layer.precision for layer, cost in zip(timed.layers, costs, strict=True) if cost.macs
    } == {"fp32"}


def test_layer_times_are_medians_over_the_counted_runs(tensorrt):
    """The five counted runs have known times. The warm-up runs before them take much longer."""
    tensorrt.fake.layer_ms = lambda layer, run: (
        1000.0 if run < 2 * WARMUP else (layer + 1) * (1 + run % 7)
    )
    timed = times_of(plus_one(), runs=5)
    runs = tensorrt.fake.runs
    assert len(runs) == 2 * (WARMUP + 5)  # runs with and without the profiler alternate
    assert len(set(runs)) == 2  # the streams of two engines
    factors = sorted(1 + run % 7 for run in range(len(runs)) if run >= 2 * WARMUP and run % 2)
    assert [layer.median_ms for layer in timed.layers] == [
        (at + 1) * factors[2] for at in range(len(timed.layers))
    ]
    assert timed.run_sum_ms == pytest.approx(sum(layer.median_ms for layer in timed.layers))
    assert (timed.counted, timed.forward_ms > 0, timed.profiled_ms > 0) == (5, True, True)


def test_run_has_no_profiler_after_layer_times_were_measured(machine):
    with opened() as engine:
        times_of(plus_one())
        engine.requests[0].infer(1)
        assert engine.requests[0].context.profiler is None


@pytest.mark.slow
def test_profiled_run_is_started_without_waiting_for_it(tensorrt, monkeypatch):
    """We ask TensorRT for the times only after the run has ended."""
    pending = []
    start = tensorrt.trt.IExecutionContext.execute_async_v3

    def started(self, stream_handle):
        done = start(self, stream_handle)
        if self.profiler is not None:
            pending.append(len(tensorrt.device.streams[stream_handle].waiting))
        return done

    monkeypatch.setattr(tensorrt.trt.IExecutionContext, "execute_async_v3", started)
    times_of(plus_one())
    assert len(pending) == WARMUP + 3
    assert all(pending)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verbosity", "note"),
    [
        ("DETAILED", None),
        (None, "was built without its layers' details: the executed precision is unknown"),
        ("NONE", "its layers have only numbers as names, and the executed precision is unknown"),
    ],
)
def test_layer_times_show_what_details_a_foreign_plan_has(tensorrt, tmp_path, verbosity, note):
    (tmp_path / "x.cfg").write_text((CHECKOUT / "cfg/darknet/street.cfg").read_text())
    network = open_network("street", size=(64, 96))
    file = tmp_path / "x.engine"
    file.write_bytes(plan_of(tensorrt, as_exported(network), verbosity=verbosity))
    plan = open_network(str(file))
    timed = times_of(plan)
    first = next(node.name for node in network.graph.graph.node if node.op_type == "Conv")
    names = [layer.name for layer in timed.layers]
    if verbosity == "NONE":
        assert names == [str(at) for at in range(len(names))]
    else:
        assert any(first in name for name in names)
    rows = {layer.name: layer for layer in timed.layers}
    if verbosity == "DETAILED":
        assert rows["0.conv + 0.act"].nodes == ("0.conv", "0.act")
        assert rows["0.conv + 0.act"].precision == "fp32"
        assert len(timed.notes) == 1
    else:
        assert {layer.precision for layer in timed.layers} == {"unknown"}
        assert note in timed.notes[1]
        assert timed.notes[1].startswith(f"{file} was built without")


def test_note_on_our_plan_without_details_contains_the_option(tensorrt):
    timed = times_of(plus_one(), own={"detailed": "0"})
    assert "detailed=0" in timed.notes[1]
    assert timed.layers[-1].nodes == ("1.conv",)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda self: False, "engine trt: no layer times: TensorRT gave no reason"),
        (lambda self: True, "engine trt: no layer times: the profiler reported no layers"),
    ],
)
def test_profiler_without_layers_raises_engine_error(tensorrt, monkeypatch, method, message):
    monkeypatch.setattr(tensorrt.trt.IExecutionContext, "report_to_profiler", method)
    with pytest.raises(EngineError, match=message):
        times_of(plus_one())
    assert tensorrt.device.allocations == {}


@pytest.mark.slow
def test_failure_to_attach_the_profiler_leaves_no_device_memory(tensorrt, monkeypatch):
    from detector.core.engines.trt.running import TrtRequest

    def failing(self, profiler):
        raise EngineError("engine trt: no")

    monkeypatch.setattr(TrtRequest, "attach", failing)
    with pytest.raises(EngineError, match="engine trt: no"):
        times_of(plus_one())
    assert tensorrt.device.allocations == {}


@pytest.fixture
def few_runs(monkeypatch):
    monkeypatch.setattr(layers_pass, "BUDGET_S", 0.5)


def profiled(*arguments) -> dict:
    command = [
        "profile",
        STREET,
        *"--engine trt --frames 4 --only layers,roofline --json".split(),
        *arguments,
    ]
    result = CliRunner().invoke(cli, [str(argument) for argument in command])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("few_runs")
def test_profile_command_shows_layer_times(tensorrt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = profiled("--run-dir", "run", "--engines-dir", "built", "--precision", "fp16")
    layers = document["layers"]
    assert (layers["engine"], layers["device"], layers["peaks"]) == ("trt", "cuda:0", None)
    assert sum(row["macs"] for row in layers["rows"]) == layers["macs"]
    assert sum(row["ms"] for row in layers["rows"]) == pytest.approx(layers["sum_ms"])
    assert {row["precision"] for row in layers["rows"] if row["macs"]} == {"fp16"}
    assert len(tensorrt.fake.builds) == 1, "the run and both timed engines share one plan"
    assert "cuda:0" in document["not_available"]["roofline"]
    table = CliRunner().invoke(cli, ["report", "run", "--format", "table"]).stdout
    assert "layers of trt fp16" in table
    assert "note: TensorRT " in table


@pytest.mark.slow
@pytest.mark.usefixtures("few_runs")
def test_profile_command_shows_what_a_foreign_plan_contains(tensorrt, tmp_path, monkeypatch):
    """MACs are unknown without a graph. We report times and names, and note what is missing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.cfg").write_text((CHECKOUT / "cfg/darknet/street.cfg").read_text())
    (tmp_path / "x.engine").write_bytes(plan_of(tensorrt, as_exported(open_network("street"))))
    layers = profiled("--run-dir", "run", "--model", "x.engine")["layers"]
    assert layers["macs"] is None
    assert {row["macs"] for row in layers["rows"]} == {0}
    assert any("x.engine was built without" in note for note in layers["notes"])
    assert layers["notes"][-1].startswith("a TensorRT plan contains no graph")
    table = CliRunner().invoke(cli, ["report", "run", "--format", "table"]).stdout
    assert "x.engine was built without" in " ".join(table.split())
