"""TensorRT plans, also for a range of batch sizes or with user options, are built once and kept."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.trt.build import FixedBatchError, any_batch
from detector.core.engines.trt.plan_file import make_log
from detector.core.errors import EngineError, UsageError
from tests.conformance import test_engines as conformance
from tests.engines.trt.opening import built, opened, plans
from tests.fakes.install import install_fake_tensorrt
from tests.fakes.tensorrt_state import RTX_MAJOR, ort_session
from tests.known_answers import plus_one
from tests.networks import open_network, parsed


@pytest.mark.slow
def test_plan_is_built_once_and_runs(tensorrt, tmp_path):
    first = built(tensorrt, tmp_path)
    again = built(tensorrt, tmp_path)
    assert [made["network"] for made in tensorrt.fake.builds] == ["plus_one"]
    assert first.options.artefact == again.options.artefact
    assert again.build_s == 0
    assert Path(first.options.artefact).read_bytes()[:4] == b"ftrt"
    with engines.open("trt", first.network, first.options) as engine:
        inputs = conformance.pictures(1)
        engine.requests[0].slot[:] = inputs
        conformance.assert_answers(engine.requests[0].infer(1), inputs)
        (note,) = engine.notes
        assert re.match(f"TensorRT {tensorrt.trt.__version__} .* Fake L4.* cuda-python", note)


def test_the_manifest_holds_the_key_and_the_facts(tensorrt, tmp_path):
    from detector.core.engines._built.store import read_manifest

    manifest = read_manifest(built(tensorrt, tmp_path, precision="tf32").options.artefact)
    key = manifest["key"]
    assert key["tensorrt"] == tensorrt.trt.__version__
    assert (key["gpu"], key["capability"], key["cuda"], key["batches"]) == (
        "Fake L4",
        "8.9",
        13,
        [1, 1, 1],
    )
    assert key["precision"] == "tf32"
    assert manifest["facts"]["gpu"] == "Fake L4"


@pytest.mark.slow
def test_second_plan_is_built_for_another_gpu_with_a_note(monkeypatch, tmp_path):
    built(install_fake_tensorrt(monkeypatch), tmp_path)
    other = install_fake_tensorrt(monkeypatch, gpus=(("Fake H100", (9, 0)),))
    ready = built(other, tmp_path)
    assert len(plans(tmp_path)) == 2
    assert "8.9 is now 9.0; gpu Fake L4" in " ".join(ready.notes)


def test_tf32_is_a_flag_of_the_builder(tensorrt, tmp_path):
    built(tensorrt, tmp_path)
    built(tensorrt, tmp_path, precision="tf32")
    assert [made["tf32"] for made in tensorrt.fake.builds] == [False, True]


def test_range_of_batch_sizes_is_one_plan_with_two_profiles(tensorrt, tmp_path):
    built(tensorrt, tmp_path, own={"max_batch": 8})
    assert [profile["images"] for profile in tensorrt.fake.builds[0]["profiles"]] == [
        [[1, 2, 3, 3]] * 3,
        [[1, 2, 3, 3], [8, 2, 3, 3], [8, 2, 3, 3]],
    ]
    for batch in (1, 4, 8):
        ready = built(tensorrt, tmp_path, batch=batch)
        with engines.open("trt", ready.network, ready.options) as engine:
            assert engine.requests[0].context._profile == (0 if batch == 1 else 1)
            inputs = conformance.pictures(batch, batch)
            engine.requests[0].slot[:] = inputs
            conformance.assert_answers(engine.requests[0].infer(batch), inputs)
            assert "unknown" not in {layer.precision for layer in engine.execution()}
    assert len(tensorrt.fake.builds) == 1
    built(tensorrt, tmp_path, batch=9)
    assert len(tensorrt.fake.builds) == 2


@pytest.mark.slow
def test_own_options_reach_the_builder(tensorrt, tmp_path):
    own = {
        "workspace_mb": 64,
        "level": 1,
        "version_compatible": 1,
        "hardware_compatible": "ampere",
        "detailed": 0,
    }
    ready = built(tensorrt, tmp_path, own=own)
    made = tensorrt.fake.builds[0]
    assert (made["workspace"], made["level"], made["portable"]) == (64 << 20, 1, True)
    assert (made["hardware"], made["verbosity"]) == ("AMPERE_PLUS", "LAYER_NAMES_ONLY")
    # The plan contains a runtime. We let this runtime start, because we built the plan.
    with engines.open("trt", ready.network, ready.options) as engine:
        assert {layer.precision for layer in engine.execution()} == {"unknown"}


@pytest.mark.parametrize(
    ("engine", "own", "message"),
    [
        ("trt", {"max_batch": "x"}, "max_batch=x: give a whole number, at least 1$"),
        ("trt", {"min_batch": "2"}, "--batch 1 is outside the plan's batches 2..1"),
        ("trt", {"opt_batch": "3"}, "opt_batch=3: outside the plan's batches 1..1"),
        ("trt", {"hardware_compatible": "volta"}, "give same or ampere"),
        ("trt", {"level": "6"}, "level=6: .* at most 5"),
        ("trt", {"detailed": "maybe"}, "detailed=maybe:"),
        ("trt", {"colour": "1"}, "engine trt has no such option; its options: min_batch"),
        ("rtx", {"level": "3"}, "engine rtx has no such option"),
        ("rtx", {"graphs": "2"}, "graphs=2: give 1 or 0"),
        ("rtx", {"targets": "9.0"}, "targets=9.0: no plan can be built for 9.0; give one"),
        ("rtx", {"targets": "8.6+"}, "no plan can be built for an empty target"),
        ("rtx", {"targets": "7.5+8.6"}, r"7\.5 \(Turing\) has no bf16"),
    ],
)
def test_invalid_own_options_are_refused(monkeypatch, engine, own, message):
    install_fake_tensorrt(monkeypatch, RTX_MAJOR if engine == "rtx" else 11)
    precision = "bf16" if "bf16" in message else "fp32"
    with pytest.raises(UsageError, match=message):
        engines.open(engine, plus_one(), EngineOptions(own=own, precision=precision))


def test_timings_are_kept_beside_the_plans_and_used_again(tensorrt, tmp_path):
    built(tensorrt, tmp_path)
    [timings] = tmp_path.glob("*.timings")
    assert timings.name.startswith("trt-Fake-L4-")
    built(tensorrt, tmp_path, precision="tf32")
    assert [made["timings_known"] for made in tensorrt.fake.builds] == [0, len(b"timings;")]
    for level, unproved in enumerate((b"timings;" * 9, b"no cache")):
        timings.write_bytes(unproved)
        built(tensorrt, tmp_path, own={"level": level})
        assert tensorrt.fake.builds[-1]["timings_known"] == 0


def test_every_run_of_a_plan_shows_the_warnings_of_its_build(tensorrt, tmp_path):
    parse = tensorrt.trt.OnnxParser.parse

    def warned(parser, graph):
        for text in ("a.cpp:7: one", "one", "Empty initializer r", "t", "u", "v", "w", "x", "y"):
            parser._logger.log(tensorrt.trt.ILogger.Severity.WARNING, text)
        return parse(parser, graph)

    tensorrt.trt.OnnxParser.parse = warned
    for _ in range(2):
        *_, first, _, _, _, last, more = built(tensorrt, tmp_path).notes
        assert (first, last) == ("TensorRT warns: one", "TensorRT warns: w")
        assert more == "TensorRT: 2 more warnings"
    assert len(tensorrt.fake.builds) == 1


def test_warning_about_a_second_logger_is_not_a_note(tensorrt, tmp_path):
    beside = tensorrt.trt.Builder(make_log(tensorrt.trt))
    notes = built(tensorrt, tmp_path).notes
    assert not [note for note in notes if "logger" in note], beside


@pytest.mark.slow
def test_build_reports_progress_and_is_cancelled_if_the_callback_returns_false(tensorrt, tmp_path):
    steps = []
    built(tensorrt, tmp_path, progress=lambda *step: steps.append(step) or True)
    assert steps[0] == ("Building engine", 0, 6)
    assert [done for doing, done, _ in steps if doing == "Building engine"] == [0, 1, 2, 3, 4, 5]
    assert all(done <= of for _, done, of in steps)
    assert len({doing for doing, *_ in steps}) > 5  # including nested phases
    with pytest.raises(EngineError, match="build was cancelled"):
        built(tensorrt, tmp_path, precision="tf32", progress=lambda doing, done, of: done < 1)
    assert len(plans(tmp_path)) == 1


def test_ctrl_c_while_building_passes_through(tensorrt, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(tensorrt, tmp_path, progress=interrupted)
    assert plans(tmp_path) == []


def test_error_names_a_node_whose_constant_has_the_batch_size(tensorrt, tmp_path):
    network = plus_one(2)
    graph = network.graph.graph
    graph.initializer.add(name="pads", data_type=1, dims=[2, 3, 2, 3], float_data=[0.0] * 36)
    graph.node[2].output[0] = "shifted"
    graph.node.add(op_type="Add", name="2.add", input=["shifted", "pads"], output=["0.conv"])
    with pytest.raises(EngineError, match=r"2\.add.*--batch 2"):
        built(tensorrt, tmp_path, network, batch=2, own={"max_batch": 8})
    built(tensorrt, tmp_path, network, batch=2)  # a plan for one batch size may contain that size


@pytest.mark.parametrize(
    ("nodes", "culprit"),
    [
        ("a = Reshape(x, merged) [second] y = Reshape(a, whole)", "node second "),
        ("[first] a = Reshape(x, rows) y = Reshape(a, whole)", "node first "),
        ("y = Reshape<allowzero = 1>(x, whole)", ""),
        ("a = Reshape(x, kept) y = Reshape(a, whole)", ""),
        ("a = Reshape(x, whole) b = Reshape(fixed, whole) y = Add(a, b)", ""),  # b: no batch axis
    ],
)
def test_reshape_takes_any_batch_if_batch_is_the_first_axis(nodes, culprit):
    constants = """int64[2] merged = {-1, 3}, int64[2] rows = {4, 3}, int64[3] kept = {1, 0, -1},
        int64[3] whole = {1, 4, 3}, float[4, 3] fixed = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}"""
    model = parsed(f"(float[1, 2, 2, 3] x) => (float[1, 4, 3] y) <{constants}> {{ {nodes} }}")
    if culprit:
        with pytest.raises(FixedBatchError, match=culprit):
            any_batch(model)
        return
    inputs = np.arange(60, dtype=np.float32).reshape(5, 2, 2, 3)
    answers = [ort_session(model).run(None, {"x": one})[0] for one in np.split(inputs, 5)]
    (together,) = ort_session(any_batch(model)).run(None, {"x": inputs})
    np.testing.assert_array_equal(together, np.concatenate(answers))


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("OutOfMemory (Requested size was 9 bytes.)", "; try --batch 2, or .*workspace_mb=256"),
        ("0.conv_1 has no runners", r" \(node 0\.conv, Conv\); use --engine ort or openvino"),
        ("K of 1.conv exceeds 3840", r" \(node 1\.conv, Conv\); use --engine ort or openvino"),
        ("conv of 1.convolution", "; use --engine ort or openvino"),
    ],
)
def test_failed_build_raises_with_reason_and_cure(tensorrt, tmp_path, reason, cure):
    def fail(builder, network, config):
        builder._logger.log(tensorrt.trt.ILogger.Severity.ERROR, reason)

    tensorrt.trt.Builder.build_serialized_network = fail
    with pytest.raises(EngineError, match=f"{re.escape(reason)}{cure}"):
        built(tensorrt, tmp_path, batch=4)


ZEROS = ", ".join(["0"] * 18)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("[odd] t = Unique(f) y = Identity(f)", r"cannot read .* Unique at odd: .*--engine ort"),
        # Only the parser's check reports this node.
        (
            '[odd] y = ScatterElements<reduction = "mul">(f, zeros, f)',
            r"ScatterElements at odd: Unsupported reduction type; use --engine ort",
        ),
        # The parser accepts this node, but the builder does not.
        (
            "m = ReduceMax<keepdims = 0>(f) many = Expand(m, size) [odd_1] t, i = TopK(many, k) "
            "s = ReduceMax<keepdims = 0>(t) y = Add(f, s)",
            r"could not build .* K exceeds .* \(node odd_1, TopK\); use --engine ort",
        ),
        # QuantizeLinear without a zero point returns uint8.
        ("[q1] q = QuantizeLinear(f, scale) y = DequantizeLinear(q, scale)", "node q1 .*uint8"),
        ("[q1] q = QuantizeLinear(f, scale, u8) y = DequantizeLinear(q, scale)", "q1 .*uint8"),
        ("q = QuantizeLinear(f, scale, s8) y = DequantizeLinear(q, scale)", None),
        ("q = QuantizeLinear<output_dtype = 3>(f, scale) y = DequantizeLinear(q, scale)", None),
    ],
)
def test_error_names_a_node_that_cannot_be_built(tensorrt, nodes, message):
    constants = "float scale = {0.5}, uint8 u8 = {0}, int8 s8 = {0}, int64[1] k = {3841}"
    constants += f", int64[1] size = {{4000}}, int64[1, 2, 3, 3] zeros = {{{ZEROS}}}"
    head = f"(uint8[1, 2, 3, 3] u) => (float[1, 2, 3, 3] y) <{constants}>"
    graph = parsed(f"{head} {{ f = Cast<to = 1>(u) {nodes} }}", 21)
    network = replace(plus_one(), graph=graph, output_shapes=[(1, 2, 3, 3)])
    with pytest.raises(EngineError, match=message) if message else nullcontext():
        opened(network).close()


def test_error_names_the_option_if_a_layer_lacks_memory(tensorrt, tmp_path):
    with pytest.raises(EngineError, match=r"within workspace limit.* without .*workspace_mb=1, or"):
        built(tensorrt, tmp_path, open_network("street-1"), own={"workspace_mb": 1})


def spoiled(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoiled, "it is damaged, or not a plan"),
        (lambda data: data[:9], "it is damaged, or not a plan"),
        (lambda data: b"PK\3\4" + data[4:], r"not a TensorRT plan: it begins with b'PK"),
    ],
)
def test_error_names_the_file_of_a_corrupt_plan(tensorrt, tmp_path, change, message):
    ready = built(tensorrt, tmp_path)
    file = Path(ready.options.artefact)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(EngineError, match=message) as caught:
        engines.open("trt", ready.network, ready.options)
    assert str(file) in str(caught.value)
    assert tensorrt.device.allocations == {}


def test_error_names_a_plan_of_another_gpu_or_version(monkeypatch, tmp_path):
    ready = built(install_fake_tensorrt(monkeypatch, 10), tmp_path)
    for major, gpus, message in (
        (10, (("Fake H100", (9, 0)),), "it was built for another GPU"),
        (11, (("Fake L4", (8, 9)),), "it was built by another version of TensorRT"),
    ):
        install_fake_tensorrt(monkeypatch, major, gpus=gpus)
        with pytest.raises(EngineError, match=message) as caught:
            engines.open("trt", ready.network, ready.options)
        assert ready.options.artefact in str(caught.value)
