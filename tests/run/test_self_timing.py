"""The timing of engines at a model's first run: when it happens, its result, and who uses it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from detector.core import engines
from detector.core.api import Detector
from detector.core.config.schema import CalibrationConfig, Config, NetworkConfig, RuntimeConfig
from detector.core.engines import _ranking, base
from detector.core.errors import EngineError, machine
from detector.core.models import ModelRequest, open_network
from detector.core.models.graph.int8 import FRONT
from detector.core.run import choose, in_force, losses, measurements, sampling, saving, self_timing
from detector.core.run.detect import Hooks, detect
from detector.core.run.loading import load_model
from detector.core.run.losses import LIMIT_S, SHARE
from detector.core.run.measurements import SWITCH, Timing
from detector.core.run.plan import PlanDraft
from detector.core.run.quantize import search
from detector.core.run.quantize.calibrate import FLOAT_IN_BF16, NARROW, packaged
from detector.core.run.sampling import SourceSample
from detector.core.run.self_timing import MAX_ROUNDS, OPENING, ROUNDS
from detector.core.session.measured import Interval, MeasuredMachine
from detector.core.types import Background, Detections

STREET = str(Path(__file__).parents[2] / "videos/street.mp4")
SPEEDS = {  # seconds per inference
    ("ort", "fp32"): 0.010,
    ("ort", "int8"): 0.006,
    ("openvino", "fp32"): 0.0095,
    ("openvino", "bf16"): 0.008,
    ("openvino", "int8"): 0.004,
}
BOX_COUNTS: dict[tuple[str, str], float] = {}  # boxes that an engine finds; 20 if absent
MAKE = self_timing.make


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeEngine:
    """An engine with one request, whose ``infer`` takes a known time and returns a known value."""

    concurrency = 1

    def __init__(self, ticks: FakeClock, seconds: float, count: float) -> None:
        self.requests, self.slot = [self], [None]
        self._ticks, self._seconds = ticks, seconds
        self._output = np.full((1, 1), count, np.float32)

    def infer(self, n: int) -> list[np.ndarray]:
        self._ticks.now += self._seconds
        return [self._output]

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture(scope="module")
def street():
    return open_network(ModelRequest("street-1"))


def set_flags(monkeypatch, *flags: str) -> None:
    for module in (machine, losses):
        monkeypatch.setattr(module, "cpu_flags", lambda: frozenset(flags))


@pytest.fixture
def ticks(monkeypatch) -> FakeClock:
    clock = FakeClock()

    def open_engine(network, config, name, precision, stack: ExitStack, _) -> object:
        if (name, precision) not in SPEEDS:
            raise EngineError(f"{name} has no {precision} here")
        clock.now += 0.2
        engine = FakeEngine(clock, SPEEDS[name, precision], BOX_COUNTS.get((name, precision), 20))
        return self_timing._WarmEngine(name, precision, stack.enter_context(engine), 3)

    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(self_timing, "_open_engine", open_engine)
    monkeypatch.setattr(base, "NVIDIA_DRIVER", Path("/no/driver"))
    set_flags(monkeypatch, "avx_vnni", "amx_bf16")
    monkeypatch.setattr(_ranking, "choose_by_rank", lambda *_: ("ort", "engine ort: by rank"))
    monkeypatch.setattr(_ranking, "suggest_library", lambda device: None)
    monkeypatch.setattr(engines, "why_unusable", lambda *_: dict.fromkeys(measurements.TIMED))
    monkeypatch.setattr(measurements, "library_version", lambda name: f"{name} 1.0")
    monkeypatch.setattr(measurements, "this_machine", lambda: MeasuredMachine("C", "f", 2, None))
    monkeypatch.setattr(self_timing, "make", partial(MAKE, clock=clock))
    return clock


def settings(folder, model="street-1", **runtime) -> Config:
    return Config(
        network=NetworkConfig(model=model),
        runtime=RuntimeConfig(engines_dir=str(folder), **runtime),
    )


def choose_engine(network, config):
    return choose.choose(network, config, timed=True)


def test_faster_library_is_suggested_once_and_then_only_if_verbose(
    street, ticks, tmp_path, monkeypatch
):
    monkeypatch.setattr(_ranking, "suggest_library", lambda device: "install it")
    for is_first in (True, False):
        [hint] = [
            note for note in choose_engine(street, settings(tmp_path)).notes if note == "install it"
        ]
        assert isinstance(hint, Background) != is_first
    assert "install it" not in choose_engine(street, settings(tmp_path, engine="ort")).notes


def test_fastest_engine_is_chosen_with_the_packaged_calibration(street, ticks, tmp_path):
    choice = choose_engine(street, settings(tmp_path))
    runtime = choice.config.runtime
    assert (runtime.engine, runtime.precision) == ("openvino", "int8")
    assert choice.config.calibration.calibrate == "packaged"
    assert choice.reason.startswith("engine openvino, int8: measured 2.5x")
    assert choice.reason.endswith("agreement with fp32: 0.986")
    (note,) = choice.notes
    assert note.startswith("first run of street-1")
    assert "ort fp32 100, openvino int8 250, ort int8 167" in note
    assert str(tmp_path / "measured.json") in note
    assert choose_engine(street, settings(tmp_path)).notes == (), "timed twice"
    (note,) = choose_engine(street, settings(tmp_path, threads=1)).notes
    assert note.endswith(choice.reason)


@pytest.mark.parametrize("changed", ["library", "machine", "engine"])
def test_timing_is_repeated_after_a_change(street, ticks, tmp_path, monkeypatch, changed):
    choose.find_timing(street, settings(tmp_path))
    if changed == "library":
        monkeypatch.setattr(measurements, "library_version", lambda name: f"{name} 2.0")
    elif changed == "machine":
        monkeypatch.setattr(
            measurements, "this_machine", lambda: MeasuredMachine("D", "f", 4, None)
        )
    else:
        reasons = {"ort": None, "openvino": "is broken"}
        monkeypatch.setattr(engines, "why_unusable", lambda *_: reasons)
    assert choose.find_timing(street, settings(tmp_path)).note is not None


@pytest.mark.parametrize(
    "runtime",
    [
        {"engine": "ort", "precision": "fp32"},
        {"engine": "torch"},
        {"batch": 2},
        {"threads": 1},
        {"concurrency": 3},
        {"engine_options": ("bf16=all",)},
        {"device": "cuda"},
        {"self_timing": False},
    ],
    ids=str,
)
def test_run_with_other_settings_is_not_timed(street, ticks, tmp_path, runtime):
    assert choose.find_timing(street, settings(tmp_path, **runtime)) is None
    assert ticks.now == 0


class FakeSample:
    def __init__(self, frames: int | None) -> None:
        self.frames, self.samples = frames, 0

    def count_frames(self) -> int | None:
        return self.frames

    def sample(self) -> SourceSample:
        self.samples += 1
        return SourceSample([np.zeros((8, 8, 3), np.uint8)] * 3, None)


@pytest.fixture
def foreign(street, ticks, monkeypatch):
    def decode(network, outputs, conf) -> list[Detections]:
        return [some_boxes(int(output[0][0, 0]), conf) for output in outputs]

    monkeypatch.setattr(search, "detections", decode)
    monkeypatch.setattr(sampling, "Ahead", lambda ahead: ahead)
    network = replace(street, sha256="ab" * 32, macs=1_000_000_000)

    def choose_for(ahead, config):
        return choose.choose(network, config, timed=True, ahead=(ahead,))

    return choose_for


def some_boxes(count: int, conf: float) -> Detections:
    corners = 20 * np.arange(count, dtype=np.float32)[:, None] + np.array([0, 0, 9, 9], np.float32)
    scores = np.where(np.arange(count) < 0.8 * count, 0.9, 0.2).astype(np.float32)
    above = scores >= conf
    return Detections(corners[above], scores[above], np.zeros(above.sum(), np.int64), ("a",))


@pytest.mark.parametrize(
    ("box_counts", "agreement", "expected"),
    [
        ({}, 1.0, ("openvino", "bf16")),
        ({("openvino", "bf16"): 18}, 30 / 31, ("ort", "fp32")),
        ({("openvino", "bf16"): float("nan")}, 0.0, ("ort", "fp32")),
        ({("openvino", "bf16"): 40}, 0.0, ("ort", "fp32")),  # rounding cannot double the boxes
        (dict.fromkeys(SPEEDS, 5), 1.0, ("openvino", "bf16")),  # few boxes: compare low scores, too
        (dict.fromkeys(SPEEDS, 0), None, ("ort", "fp32")),  # nothing to compare
    ],
    ids=["equal", "one box missing", "nan", "another network", "few boxes", "no box"],
)
def test_custom_model_is_compared_on_frames_of_the_run(
    foreign, ticks, tmp_path, monkeypatch, box_counts, agreement, expected
):
    """SPEEDS makes bf16 1.25 times as fast as ONNX Runtime's fp32; int8 is not tried."""
    monkeypatch.setattr("tests.run.test_self_timing.BOX_COUNTS", box_counts)
    ahead, config = FakeSample(5000), settings(tmp_path, "somebody.onnx")
    choice = foreign(ahead, config)
    runtime = choice.config.runtime
    assert (runtime.engine, runtime.precision) == expected
    stored = measurements.read(config)
    assert ahead.samples == 1
    assert bool(stored) == any(box_counts.get(key, 20) for key in SPEEDS)
    if stored:
        rows = {(row.engine, row.precision): row.agreement for row in stored[0].rows}
        assert set(rows) == {("ort", "fp32"), ("openvino", "fp32"), ("openvino", "bf16")}
        assert agreement in (None, rows["openvino", "bf16"])
        again = foreign(ahead, config)
        assert (again.config, ahead.samples, again.notes) == (choice.config, 1, ())


@pytest.mark.parametrize(
    ("frames", "opened", "runtime"),
    [
        (100, 0, {}),  # the network's MACs show that the run is too short
        (700, 1, {}),  # the first engine's speed shows that the run is too short
        (5000, 0, {"precision": "int8"}),
        (5000, 0, {"engine": "ort"}),
    ],
)
def test_short_run_is_not_timed(foreign, ticks, tmp_path, monkeypatch, frames, opened, runtime):
    monkeypatch.setitem(SPEEDS, ("ort", "fp32"), 0.005)
    ahead = FakeSample(frames)
    before = ticks.now
    foreign(ahead, settings(tmp_path, "somebody.onnx", **runtime))
    assert (ahead.samples, measurements.read(settings(tmp_path))) == (0, [])
    assert ticks.now - before == pytest.approx(opened * (0.2 + 3 * 0.005))


@pytest.mark.parametrize("frames", [1500, 2500, 4000, None])
def test_timing_takes_at_most_a_twentieth_of_its_run(foreign, ticks, tmp_path, frames):
    before = ticks.now
    foreign(FakeSample(frames), settings(tmp_path, "somebody.onnx"))
    longest = 3 * 3 * sum((0.010, 0.0095, 0.008)) + 0.2  # time to finish the current round
    allowed = LIMIT_S if frames is None else SHARE * frames * 0.010
    assert ticks.now - before <= allowed + longest
    (stored,) = measurements.read(settings(tmp_path))
    assert len(stored.rows) == (3 if frames in (2500, 4000, None) else 2)


@pytest.mark.parametrize("engine", ["ort", "trt"])
def test_gpu_engine_is_timed_unless_it_builds_plans(foreign, ticks, tmp_path, monkeypatch, engine):
    speeds = {(engine, "fp32"): 0.010, (engine, "tf32"): 0.006, (engine, "fp16"): 0.004}
    monkeypatch.setattr("tests.run.test_self_timing.SPEEDS", speeds)
    monkeypatch.setattr(base, "NVIDIA_DRIVER", tmp_path)
    monkeypatch.setattr(_ranking, "choose_by_rank", lambda *_: (engine, "by rank"))
    runtime = foreign(FakeSample(None), settings(tmp_path, "somebody.onnx")).config.runtime
    assert runtime.precision == ("fp16" if engine == "ort" else "fp32")


def test_network_whose_loss_in_int8_is_unknown_is_not_timed(street, ticks, tmp_path):
    assert choose.find_timing(replace(street, sha256="ab" * 32), settings(tmp_path)) is None
    assert choose.find_timing(replace(street, random_seed=0), settings(tmp_path)) is None
    assert choose.find_timing(street, settings(tmp_path, model="street.cfg")) is None
    assert not list(tmp_path.iterdir())


def test_timing_applies_to_all_canvases(street, ticks, tmp_path, monkeypatch):
    """Time the model's own canvas, even if the first video has another shape."""
    classic = open_network(ModelRequest("street-1", size=(288, 384)))
    shapes = []
    real = self_timing._open_engine

    def opened(network, *arguments):
        shapes.append((network.input.height, network.input.width))
        return real(network, *arguments)

    monkeypatch.setattr(self_timing, "_open_engine", opened)
    first = choose.find_timing(classic, settings(tmp_path))
    own = (street.input.height, street.input.width)
    assert first.measurement.model_input == own
    assert set(shapes) == {own}
    assert choose_engine(classic, settings(tmp_path)).config.runtime.precision == "int8"
    shapes.clear()
    for network in (street, classic, open_network(ModelRequest("street-1", size=(320, 320)))):
        assert choose.find_timing(network, settings(tmp_path)) == Timing(first.measurement)
    assert not shapes


def test_environment_variable_switches_timing_off(street, ticks, tmp_path, monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    assert choose.find_timing(street, settings(tmp_path)) is None


def test_engine_of_a_gpu_is_not_timed_on_the_cpu(street, ticks, tmp_path, monkeypatch):
    monkeypatch.setattr(_ranking, "choose_by_rank", lambda *_: ("trt", "engine trt: by rank"))
    assert choose.find_timing(street, settings(tmp_path)) is None


def test_named_engine_or_precision_is_kept(street, ticks, tmp_path):
    for runtime, expected in (
        ({"engine": "ort"}, ("ort", "int8")),
        ({"engine": "openvino"}, ("openvino", "int8")),
        ({"precision": "fp32"}, ("ort", "fp32")),  # OpenVINO is only 1.05 times as fast
    ):
        config = settings(tmp_path, **runtime)
        chosen = choose_engine(street, config).config.runtime
        assert (chosen.engine, chosen.precision) == expected


@pytest.mark.parametrize(("times", "precision"), [(1.19, "fp32"), (1.21, "int8")])
def test_small_speedup_does_not_change_the_precision(
    street, ticks, tmp_path, monkeypatch, times, precision
):
    monkeypatch.setattr(
        "tests.run.test_self_timing.SPEEDS",
        {("ort", "fp32"): 0.012, ("ort", "int8"): 0.012 / times},
    )
    assert choose_engine(street, settings(tmp_path)).config.runtime.precision == precision


@pytest.mark.parametrize(
    ("slow", "rounds", "precision"),
    [
        ((), ROUNDS, "int8"),
        ((2,), ROUNDS, "int8"),
        ((2, 3), ROUNDS + 1, "int8"),  # 2 slow rounds of 7 are too many, 2 of 8 are not
        (range(MAX_ROUNDS), ROUNDS, "fp32"),  # always slower, so nothing is unclear
        (range(0, MAX_ROUNDS, 3), MAX_ROUNDS, "fp32"),  # slow in a third of all rounds
    ],
)
def test_noisy_timing_runs_more_rounds(
    street, ticks, tmp_path, monkeypatch, slow, rounds, precision
):
    counts = {"fp32": 0, "int8": 0}

    def run_round(engine, clock) -> float:
        done = counts[engine.precision]
        counts[engine.precision] += 1
        return 150.0 if engine.precision == "int8" and done not in slow else 100.0

    monkeypatch.setattr(
        "tests.run.test_self_timing.SPEEDS", {("ort", "fp32"): 0.01, ("ort", "int8"): 0.01}
    )
    monkeypatch.setattr(self_timing, "_run_round", run_round)
    timing = choose.find_timing(street, settings(tmp_path))
    assert set(counts.values()) == {rounds} == {timing.measurement.rounds}
    assert choose_engine(street, settings(tmp_path)).config.runtime.precision == precision


def test_higher_agreement_budget_keeps_fp32(street, ticks, tmp_path):
    config = replace(settings(tmp_path), calibration=CalibrationConfig(budget=0.999))
    choice = choose_engine(street, config)
    assert choice.config.runtime.precision == "fp32"
    assert choice.notes[1:] == (
        "kept ort fp32: nothing else was 1.2x as fast with enough agreement",
    )


@pytest.mark.parametrize(
    ("flags", "precisions"),
    [
        (["sse2", "avx512_bf16"], {"fp32", "bf16", "int8"}),
        (["sse2", "avx512_vnni"], {"fp32", "int8"}),
        ([], {"fp32"}),  # Linux lists no flags for some CPUs
    ],
)
def test_precision_without_cpu_support_is_not_timed(
    street, ticks, tmp_path, monkeypatch, flags, precisions
):
    """OpenVINO would accept bf16 and silently run fp32."""
    set_flags(monkeypatch, *flags)
    timing = choose.find_timing(street, settings(tmp_path))
    assert {row.precision for row in timing.measurement.rows} == precisions


@pytest.mark.parametrize(("flag", "kind"), [("avx2", NARROW), ("avx512_vnni", "int8-u8")])
def test_agreement_of_int8_depends_on_the_cpu(street, ticks, tmp_path, monkeypatch, flag, kind):
    set_flags(monkeypatch, "sse2", flag)
    timing = choose.find_timing(street, settings(tmp_path))
    known = packaged(street, "street-1").result[kind].agreement
    agreements = {row.agreement for row in timing.measurement.rows if row.precision == "int8"}
    assert agreements == {known}


@pytest.mark.parametrize(
    ("flags", "kind"), [(["avx512_vnni"], FRONT), (["avx512_vnni", "avx512_bf16"], FLOAT_IN_BF16)]
)
def test_agreement_of_openvino_int8_includes_its_float_layers(
    ticks, tmp_path, monkeypatch, flags, kind
):
    """ONNX Runtime computes float layers in fp32 on every CPU, so its agreement stays the same."""
    set_flags(monkeypatch, "sse2", *flags)
    network = open_network(ModelRequest("street"))
    known = packaged(network, "street").result
    rows = choose.find_timing(network, settings(tmp_path, "street")).measurement.rows
    agreements = {row.engine: row.agreement for row in rows if row.precision == "int8"}
    assert agreements == {"openvino": known[kind].agreement, "ort": known["int8-u8"].agreement}


def test_comparison_takes_precedence_over_timing(street, ticks, tmp_path):
    rows = [
        saving.row("ort", precision, {"batch": 1}, 1.0, inference=Interval(speed, speed, speed))
        for precision, speed in (("fp32", 9), ("int8", 8))
    ]
    compared = saving.make(
        settings(tmp_path),
        "compare",
        rows,
        model="street-1",
        model_sha256=street.sha256,
        model_input=(street.input.height, street.input.width),
        rounds=5,
    )
    saving.keep(compared, settings(tmp_path))
    choice = choose_engine(street, settings(tmp_path))
    assert choice.config.runtime.precision == "fp32"
    assert "(compare, " in choice.reason
    assert (choice.notes, ticks.now) == ((), 0)


def test_doctor_lists_the_timing(street, ticks, tmp_path):
    choose.find_timing(street, settings(tmp_path))
    (row,) = in_force.list_in_force(settings(tmp_path))
    assert row["model"] == "street-1"
    assert "openvino, int8" in row["reason"]
    assert "--no-self-timing" in row["reason"]
    assert row["undo"] == f"cached in {tmp_path / 'measured.json'}"


def test_engines_that_open_slowly_are_skipped(street, ticks, tmp_path, monkeypatch):
    open_engine = self_timing._open_engine

    def open_slowly(*arguments):
        ticks.now += OPENING * LIMIT_S
        return open_engine(*arguments)

    monkeypatch.setattr(self_timing, "_open_engine", open_slowly)
    timing = choose.find_timing(street, settings(tmp_path))
    assert [(row.engine, row.precision) for row in timing.measurement.rows] == [("ort", "fp32")]
    assert choose_engine(street, settings(tmp_path)).reason == "engine ort: by rank"


def test_timing_ends_on_a_slow_machine(street, ticks, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tests.run.test_self_timing.SPEEDS", {("ort", "fp32"): 1.0, ("ort", "int8"): 0.5}
    )
    choose.find_timing(street, settings(tmp_path))
    rounds = measurements.ENOUGH_ROUNDS
    assert ticks.now == pytest.approx(0.4 + rounds * 3 * 1.5)
    assert ticks.now > LIMIT_S
    assert rounds < ROUNDS


def test_timing_can_be_stopped(ticks, tmp_path):
    with pytest.raises(EngineError, match="--no-self-timing"):
        load_model(settings(tmp_path), timed=True, progress=lambda *_: False)
    assert not list(tmp_path.iterdir())


def test_timing_is_repeated_if_its_folder_is_not_writable(street, ticks, tmp_path):
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    for _ in range(2):
        choice = choose_engine(street, settings(blocked / "engines"))
        assert "could not cache" in choice.notes[0]
        assert choice.config.runtime.precision == "int8"


def test_package_has_calibrations_of_its_own_weights(street):
    results = packaged(street, "street-1").result
    assert {"int8-u8", "int8-s8", "bf16", NARROW} == set(results)
    assert all(
        result.agreement >= (0.975 if kind == NARROW else 0.985) for kind, result in results.items()
    )
    assert packaged(street, "yolov5n") is None
    assert packaged(street, "a/file.cfg") is None


@pytest.mark.slow
def test_command_and_detector_with_auto_use_the_timing(tmp_path, monkeypatch):
    """Time real engines. The machine decides which engine is the fastest."""
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(base, "NVIDIA_DRIVER", Path("/no/driver"))
    monkeypatch.chdir(tmp_path)
    config = settings(tmp_path / "engines")
    config = replace(
        config, output=replace(config.output, no_video=True), input=replace(config.input, frames=2)
    )
    notes = []
    for _ in range(2):
        result = detect([STREET], config, hooks=Hooks(timed=True))
        assert result.exit_code == 0
        notes.append([note for note in result.summary.notes if "benchmarked the engines" in note])
    assert [len(run_notes) for run_notes in notes] == [1, 0]
    (entry,) = json.loads((tmp_path / "engines/measured.json").read_text())["measurements"]
    assert (entry["rows"][0]["engine"], entry["rows"][0]["precision"]) == ("ort", "fp32")
    assert all(row["fps"]["inference"]["low"] > 0 for row in entry["rows"])
    assert detect([STREET], config).exit_code == 0  # without ``timed``, as in eval
    with Detector(engines_dir=str(tmp_path / "engines")) as detector:
        assert detector.engine == "ort"
    with Detector(engine="auto", engines_dir=str(tmp_path / "engines")) as detector:
        assert detector.engine == result.summary.engine


@pytest.mark.slow
def test_detector_uses_an_earlier_timing_of_a_custom_model(shared, tmp_path, monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(base, "NVIDIA_DRIVER", Path("/no/driver"))
    monkeypatch.setattr(losses, "LIMIT_S", 100.0)  # allow for a busy machine and a short clip
    monkeypatch.setattr(losses, "SHARE", 100.0)
    monkeypatch.setattr(measurements, "MIN_SPEEDUP", 0.0)
    model, clip = (
        str(shared / "data/weights/yolox_nano.onnx"),
        str(shared / "data/videos/people.mp4"),
    )
    config = settings(tmp_path / "engines", model, size="224")
    for is_first in (True, False):
        loaded = PlanDraft.of(config).load(specs=[clip], timed=True).loaded
        loaded.engine.close()
        assert any("benchmarked" in note for note in loaded.notes) == is_first
    (stored,) = measurements.read(config)
    assert all(row.agreement >= 0.9 for row in stored.rows), stored.rows
    assert all(row.agreement == 1 for row in stored.rows if row.precision == "fp32")
    with Detector(model, engine="auto", size=224, engines_dir=str(tmp_path / "engines")) as same:
        assert same.engine == loaded.engine.name
