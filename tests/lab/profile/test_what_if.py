"""The pass what_if: the order of its runs, stand-ins with recorded results, and the whole pass."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from detector.core import sources
from detector.core.config.levels import resolve_config
from detector.core.config.schema import Config
from detector.core.errors import EngineError
from detector.core.errors.machine import usable_cores
from detector.core.loop.parts import Parts, Progress
from detector.core.run.plan import resolve
from detector.core.session.document import LibraryStage, LibraryThreads
from detector.core.session.store import Session
from detector.core.timeline.spans import STAGES
from detector.core.timeline.timeline import OffTimeline
from detector.lab.analysis.loop.what_if import Turns, compare_turns, list_doubts, stage_share
from detector.lab.profile import stand_ins, what_if
from detector.lab.profile.base import Occasion
from detector.lab.session.read import read_session
from tests.cli.command import detect_video, run_ok, summary_of
from tests.conftest import CHECKOUT
from tests.lab.report.sessions import ran
from tests.session.documents import document

STREET = CHECKOUT / "videos/street.mp4"
UNKNOWN = 0.05  # at most this share of CPU time is in threads of no known stage


# ----------------------------------------------------------------------
# The order of runs


def test_each_change_runs_between_two_unchanged_runs():
    """The machine gets slower with each run, but the gains within a round stay constant."""
    runs: list[str] = []

    def run(name: str, seconds: float):
        def once() -> float:
            runs.append(name)
            return seconds * (1 + 0.1 * len(runs))

        return once

    changes = {"infer free": run("infer", 0.5), "read free": run("read", 1.0)}
    turns = what_if.take_turns(run("", 1.0), changes, budget_s=0.0)
    assert runs == ["", "", *["infer", "", "read", ""] * what_if.ROUNDS]
    rows = compare_turns(turns, {"infer free": ("infer", "a"), "read free": ("read", "b")})
    infer, read = rows
    assert (infer.change, infer.stage, infer.how) == ("infer free", "infer", "a")
    assert (infer.fps_ratio.low, infer.fps_ratio.high) == pytest.approx((2, 2))
    assert (infer.frame_ratio.low, infer.frame_ratio.high) == pytest.approx((0.5, 0.5))
    assert (read.fps_ratio.low, read.fps_ratio.high) == pytest.approx((1, 1))
    assert infer.helps
    # The median unchanged run is the 8th run. The change doubles its FPS.
    assert infer.fps.median == pytest.approx(2 / 1.8)
    assert infer.frame_ms.median == pytest.approx(0.5e3 * 1.8)


@pytest.mark.parametrize(("budget_s", "rounds"), [(0.0, 3), (8.1, 3), (10.1, 4), (99.0, 10)])
def test_rounds_continue_until_the_budget_is_used(budget_s, rounds):
    """A run takes a second. Two runs come first, and then rounds of two runs each: as many rounds
    as fit into the budget, but at least three and at most ten."""
    now = 0.0

    def once() -> float:
        nonlocal now
        now += 1.0
        return 1.0

    turns = what_if.take_turns(once, {"a": once}, budget_s, lambda: now)
    assert len(turns.changed["a"]) == rounds
    assert now == 2 + 2 * rounds


def test_failed_change_does_not_affect_the_others():
    calls = iter([1.0])  # the change runs once, then fails

    def fails_on_the_second_call() -> float:
        if (found := next(calls, None)) is None:
            raise EngineError("no memory\nfor it")
        return found

    turns = what_if.take_turns(
        lambda: 1.0, {"batch 4": fails_on_the_second_call, "a": lambda: 0.5}, 0.0
    )
    assert turns.failed == {"batch 4": "no memory for it"}
    assert list(turns.changed) == list(turns.around) == ["a"]
    assert len(turns.changed["a"]) == what_if.ROUNDS


@pytest.mark.parametrize(
    ("ratios", "helps"), [((1.1, 1.2, 1.3), True), ((0.99, 1.4, 1.5), False), ((1.0, 2, 2), False)]
)
def test_change_helps_only_if_it_is_faster_in_every_round(ratios, helps):
    turns = Turns(plain=[1.0])
    for ratio in ratios:
        turns.add("a", 1.0, 1 / ratio, 1.0)
    [row] = compare_turns(turns, {"a": (None, "")})
    assert row.helps is helps


def test_few_frames_and_varying_runs_give_warnings():
    assert list_doubts(60, [1.0, 1.1]) == []
    assert "--what-if-seconds" in list_doubts(60, [1.0, 1.1], spent=7.4)[0]
    few, differing = list_doubts(24, [1.0, 1.5])
    assert few.startswith("24 frames")
    assert "50%" in differing


@pytest.mark.parametrize(
    ("seconds", "frames", "period_s", "chosen"),
    [
        (60, 500, 0.01, 115),  # 52 runs: 2, then 5 rounds of 10
        (60, 80, 0.01, 80),  # no more frames than the run had
        (60, 500, 0.05, 37),  # 3 rounds
        (60, 500, 5.0, 24),  # the minimum number of frames
    ],
)
def test_number_of_frames_per_run_fits_the_time_budget(seconds, frames, period_s, chosen):
    run = document()
    written, rates = replace(run.frames, written=frames), replace(run.fps, end_to_end=1 / period_s)
    plain = SimpleNamespace(document=replace(run, frames=written, fps=rates))
    occasion = Occasion("", Config(), Session("run"), plain, seconds)
    assert what_if._choose_frames(occasion, 5) == chosen


def test_share_of_a_stage_includes_library_threads():
    run = document()  # 10 frames at 12.5 FPS
    assert stage_share(run, "read") == pytest.approx(0.2 / 0.8)
    threads = LibraryStage(threads=2, calls=10, cpu_s=0.3, busiest_s=0.2, ready_s=0.0)
    libraries = LibraryThreads(
        wall_s=0.8, process_s=1.0, unknown_s=0.0, others_s=None, stages={"read": threads}
    )
    run = replace(run, cpu=replace(run.cpu, libraries=libraries))
    assert stage_share(run, "read") == pytest.approx((0.1 + 0.3) / 0.8)


# ----------------------------------------------------------------------
# Stand-ins

STAGES_OF_A_PICTURE = ("read", "preprocess", "infer", "head", "nms")


@contextmanager
def parts_of_run(frames: int = 12, batch: int = 1, sinks=()):
    given = {"engine": "ort", "frames": frames, "batch": batch, "threads": 1, "size": "320x192"}
    config = resolve_config(None, given)
    spec = str(STREET)
    plan = resolve(config, specs=[spec])
    with plan.loaded.engine:
        with plan.reading.open(spec) as source:
            recorded = stand_ins.record_stages(plan.parts(source, sinks), source)
        with plan.reading.open(spec) as source:
            yield plan.loop, plan.parts(source, sinks), recorded


def detections_of(loop, parts):
    return [
        (detections.boxes.tolist(), detections.class_ids.tolist())
        for _, detections in loop.frames(parts, OffTimeline(), Progress())
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES_OF_A_PICTURE)
@pytest.mark.parametrize("batch", [1, 5])
def test_stand_in_repeats_the_results_of_its_stage(stage, batch):
    """Frames and detections stay the same, so later stages do the same work."""
    with parts_of_run(batch=batch) as (loop, parts, recorded):
        replaced = stand_ins.replace_stage(parts, stage, recorded, 12)
        in_turn = replace(loop, sync=True)  # the loop without overlap keeps batches in order
        detections = detections_of(in_turn, replaced)
        assert len(detections) == 12
        recorded = [
            fit.to_source(one)
            for one, (_, fit) in zip(recorded.detections, recorded.rows, strict=True)
        ]
        expected = [(one.boxes.tolist(), one.class_ids.tolist()) for one in recorded]
        last = 12 - 12 % batch if stage == "infer" else 12  # only full batches were recorded
        assert detections[:last] == expected[:last]
        assert any(boxes for boxes, _ in detections)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES_OF_A_PICTURE)
def test_stand_in_does_not_call_its_stage(stage):
    def refuse(*_):
        raise AssertionError(f"{stage} was called")

    with parts_of_run(frames=4) as (loop, parts, recorded):
        info = parts.source.info
        requests = [
            SimpleNamespace(slot=one.slot, device_ms=None, infer=refuse) for one in parts.requests
        ]
        refused = {
            "read": {"source": SimpleNamespace(info=info, read=refuse)},
            "infer": {"requests": requests},
        }.get(stage, {stage: refuse})

        def with_failing_stage():
            source = stand_ins.CachedSource(info, recorded.frames, 4)
            return replace(parts, **{"source": source, **refused})

        with pytest.raises(AssertionError, match="was called"):
            detections_of(loop, with_failing_stage())
        replaced = stand_ins.replace_stage(with_failing_stage(), stage, recorded, 4)
        assert len(detections_of(loop, replaced)) == 4


def test_stand_ins_of_annotate_and_write_do_nothing():
    parts = Parts(None, [], 1, None, None, None, annotate=print, sinks=(print,))
    empty = stand_ins.RecordedRows()
    assert stand_ins.replace_stage(parts, "write", empty, 1).sinks == ()
    assert stand_ins.replace_stage(parts, "annotate", empty, 1).annotate(None, None) is None
    assert stand_ins.replace_stage(parts, None, empty, 1) is parts
    assert set(stand_ins.HOW) == set(STAGES)


def test_pictures_have_no_stand_in_for_read_and_preprocess():
    parts = SimpleNamespace(source=SimpleNamespace(info=SimpleNamespace(kind="pictures")))
    assert {stage for stage in STAGES if stand_ins.why_irreplaceable(parts, stage)} == {
        "read",
        "preprocess",
    }
    parts.source.info.kind = "video"
    assert not any(stand_ins.why_irreplaceable(parts, stage) for stage in STAGES)


@pytest.mark.slow
def test_cached_source_repeats_copies_of_its_frames():
    with sources.open(str(STREET), frames=5) as source:
        recorded = [frame for _ in range(5) if (frame := source.read()) is not None]
        cached = stand_ins.CachedSource(source.info, recorded, 12)
    frames, times = [], []
    buffer = np.zeros((540, 960, 3), np.uint8)
    while (frame := cached.read(buffer)) is not None:
        frames.append(frame.index)
        times.append((frame.pts, frame.time_s))
        assert frame.image is buffer
        buffer[:] = 0  # drawing on a frame must not change later frames
    assert frames == list(range(12))
    assert times[:5] == [(one.pts, pytest.approx(one.time_s)) for one in recorded]
    assert len({after[0] - before[0] for before, after in pairwise(times)}) == 1, "constant rate"
    assert all(one.image.any() for one in recorded)


# ----------------------------------------------------------------------
# The pass


@pytest.mark.slow
def test_every_change_is_measured_or_has_a_reason(tmp_path, monkeypatch):
    flags = {"frames": 40, "engine": "ort", "save": ("jsonl",), "size": "160x96", "no_video": True}
    session = ran(tmp_path, **flags)
    plain = read_session(session)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(what_if, "ROUNDS", 1)
    config = resolve_config(None, flags)
    occasion = Occasion(str(STREET), config, Session(session), plain, 1.0)
    facts = what_if.measure_changes(occasion)
    measured = {row.change for row in facts.changes}
    stages = {f"{stage} free" for stage in STAGES if stage in plain.document.stages}
    assert measured | {*facts.not_measured} >= {*stages, "overlap off"}
    assert measured.isdisjoint(facts.not_measured)
    assert {"infer free", "overlap off", "batch 4"} <= measured
    assert (facts.frames, facts.rounds) == (24, 1)
    assert "24 frames" in facts.doubts[0]
    assert {row.stage for row in facts.changes} - {None} <= {*STAGES}
    assert sorted(tmp_path.rglob("*")) == before  # the pass removed its outputs
    assert {one.sync for one in occasion.executions} == {None, True}
    assert {one.batch for one in occasion.executions} == {1, 4}


@pytest.mark.slow
def test_library_threads_of_a_real_run_are_attributed_to_stages(tmp_path):
    """In this run ONNX Runtime has a second thread. FFmpeg's decoder and x264 have threads, too."""
    if usable_cores() < 2:
        pytest.skip("machine: one core; libraries start no threads of their own")
    flags = {
        "engine": "ort",
        "device": "cpu",
        "threads": 2,
        "concurrency": 1,
        "save": "video",
        "no_video": False,
    }
    libraries = read_session(ran(tmp_path, **flags)).document.cpu.libraries
    assert {"infer", "read", "write"} <= libraries.stages.keys()
    for stage in libraries.stages.values():
        assert stage.threads >= 1
        assert 0 < stage.busiest_s <= stage.cpu_s <= libraries.process_s
    assert libraries.unknown_s < UNKNOWN * libraries.process_s


@pytest.mark.slow
def test_changes_that_a_short_run_cannot_measure_have_reasons(tmp_path):
    done = run_ok(
        *("profile", STREET, "--engine", "null", "--frames", 12, "--no-video", "--run-dir", "run"),
        *("--only", "what_if", "--what-if-seconds", 1, "--json"),
        cwd=tmp_path,
    )
    facts = summary_of(done)["what_if"]
    assert facts["not_measured"]["batch 4"] == "too few frames"
    assert facts["not_measured"]["annotate free"] == "this stage did not run"
    assert facts["frames"] == 12
    assert facts["rounds"] >= 3
    assert facts["ran"]["text"].startswith("null, like the run, ")
    shown = detect_video("report", "run", "--format", "table", cwd=tmp_path).stdout
    assert "not measured: batch 4: " in shown
    assert "12 frames" in shown
