"""Slow frames with planted causes, in simulated runs."""

from dataclasses import replace

import pytest

from detector.lab.analysis.loop.activities import OffCpu
from detector.lab.analysis.loop.why import Explanation, RunEvidence
from detector.lab.report.parts.why import cause_text
from detector.lab.session.passes import Collection, MomentsFacts, ThreadMoments
from detector.lab.session.why import Why, WhyCause, WhyFrame, WhyPart
from tests.lab.analysis.pipelines import MS, load, run_of, shape

FRAMES = 40
USUAL = {"read": 4.0, "preprocess": 1.0, "infer": 10.0, "head": 0.5, "nms": 0.5, "annotate": 1.0}
USUAL["write"] = 3.0


def run(stage: str = "", frame: int = 0, extra_ms: float = 0.0, also=(0, 0.0), **loop):
    loop_shape = shape(**loop)
    seconds = {name: [ms / 1e3] * FRAMES for name, ms in USUAL.items()}
    seconds["read"].append(0.0)
    seconds["infer"] = seconds["infer"][: -(-FRAMES // loop_shape.batch)]
    if stage:
        seconds[stage][frame] += extra_ms / 1e3
        seconds[stage][also[0]] += also[1] / 1e3
    return run_of(load(FRAMES, loop_shape, **seconds)), loop_shape


def moments(calls, ready=(), blocked=(), collections=(), mhz=()):
    """Return what the pass ``moments`` would record of these calls. ``ready`` and ``blocked`` list
    (stage, number, ms): how long a call waits for a core, or for something else."""
    ends = {one.number: one.end_ns for one in calls if one.stage == "write"}
    at = [ends[number] for number in sorted(ends)]
    threads = sorted({one.thread for one in calls})
    cpu = {name: [0.0] * len(at) for name in threads}
    waiting = {name: [0.0] * len(at) for name in threads}
    off = {(stage, number): ms for stage, number, ms in (*ready, *blocked)}
    for one in calls:
        left = (one.end_ns - one.start_ns) / 1e6 - off.get((one.stage, one.number), 0.0)
        row = next((row for row, end in enumerate(at) if end >= one.end_ns), len(at) - 1)
        cpu[one.thread][row] += left
        if (one.stage, one.number) in {each[:2] for each in ready}:
            waiting[one.thread][row] += off[one.stage, one.number]
    return MomentsFacts(
        began_ns=0,
        frames=sorted(ends),
        at_ns=at,
        threads={name: ThreadMoments(cpu[name], waiting[name]) for name in threads},
        faults=[3] * len(at),
        disk_faults=[0] * len(at),
        mhz=list(mhz),
        collections=list(collections),
        cost_us=50.0,
        slowdown=1.001,
    )


def call(calls, stage, number):
    return next(one for one in calls if (one.stage, one.number) == (stage, number))


def plant_gc(frame, **loop):
    calls, loop_shape = run("nms", frame, 60.0, **loop)
    slow = call(calls, "nms", frame)
    pause = Collection(slow.start_ns + MS // 5, slow.start_ns + 60 * MS, 2)
    return calls, loop_shape, RunEvidence(moments(calls, collections=[pause]))


def plant_core(frame, **loop):
    calls, loop_shape = run("preprocess", frame, 70.0, **loop)
    return calls, loop_shape, RunEvidence(moments(calls, ready=[("preprocess", frame, 70.0)]))


def plant_disk(frame, **loop):
    calls, loop_shape = run("write", frame, 90.0, **loop)
    return calls, loop_shape, RunEvidence(moments(calls, blocked=[("write", frame, 90.0)]))


def plant_boxes(frame, **loop):
    calls, loop_shape = run("annotate", frame, 50.0, **loop)
    boxes = {**dict.fromkeys(range(FRAMES), 12), frame: 300}
    return calls, loop_shape, RunEvidence(moments(calls), boxes)


def plant_key(frame, **loop):
    """Also make key frame 3 slow: a key frame is a cause only if other key frames are slow, too."""
    calls, loop_shape = run("read", frame, 60.0, also=(3, 50.0), **loop)
    return (
        calls,
        loop_shape,
        RunEvidence(moments(calls), dict.fromkeys(range(FRAMES), 12), {3, frame}),
    )


PLANTS = {
    "gc": plant_gc,
    "core": plant_core,
    "disk": plant_disk,
    "boxes": plant_boxes,
    "key frame": plant_key,
}
LOOPS = ({}, {"sync": True}, {"batch": 4, "concurrency": 2})


@pytest.mark.parametrize("loop", LOOPS, ids=["overlapped", "sync", "batches"])
@pytest.mark.parametrize("name", PLANTS)
def test_planted_cause_is_named(name, loop):
    for frame in (12, 21):
        calls, loop_shape, evidence = PLANTS[name](frame, **loop)
        explanation = Explanation(calls, loop_shape, evidence)
        [slowest] = explanation.slowest(1)
        report = explanation.explain(slowest)
        assert report.cause.name == name
        assert report.cause.frame == frame
        assert report.cause.explains_ms >= report.cause.excess_ms / 2
        assert explanation.explain(frame).cause.name == name


@pytest.mark.parametrize("name", ["gc", "core", "disk"])
def test_cause_is_unknown_if_it_was_not_recorded(name):
    calls, loop_shape, evidence = PLANTS[name](12)
    report = Explanation(calls, loop_shape, replace(evidence, moments=None)).explain(12)
    assert report.cause.name == "unknown"
    crowded = Explanation(calls, loop_shape, replace(evidence, moments=None, others=0.73)).explain(
        12
    )
    assert crowded.cause.name == "others"
    assert "73%" in crowded.cause.text
    assert report.cause.excess_ms == pytest.approx({"gc": 60, "core": 70, "disk": 90}[name])
    assert {part.cpu_ms for part in report.parts} == {None}
    assert (report.boxes, report.key, report.faults) == (None, None, None)


def test_cause_is_unknown_if_the_thread_was_not_recorded():
    calls, loop_shape, evidence = plant_disk(12)
    evidence = replace(evidence, moments=replace(evidence.moments, threads={}))
    report = Explanation(calls, loop_shape, evidence).explain(12)
    assert report.cause.name == "unknown"
    assert {part.blocked_ms for part in report.parts} == {None}


def ledger(calls, ready=(), blocked=(), library=()):
    """Return the calls with the off-CPU times that every run records. Each list holds (stage,
    number, ms). ``library``: CPU time of the engine's threads in infer; if not listed, 1 ms."""
    waited, slept, other = ({(s, n): ms for s, n, ms in each} for each in (ready, blocked, library))
    report = []
    for one in calls:
        key = one.stage, one.number
        wait = round(waited.get(key, 0.0) * MS)
        spent = OffCpu(wait + round(slept.get(key, 0.0) * MS), wait)
        if one.stage == "infer":
            spent = spent._replace(library_ns=round(other.get(key, 1.0) * MS))
        report.append(one._replace(spent=spent))
    return report


@pytest.mark.parametrize("stage", ["read", "write"])
@pytest.mark.parametrize(("held_ms", "name"), [(10.0, "disk"), (85.0, "core")])
def test_disk_is_not_blamed_if_a_codec_waits_for_a_core(stage, held_ms, name):
    """A call is blocked for 90 ms. In ``held_ms`` of them, library threads wait for a core."""
    calls, loop_shape = run(stage, 12, 90.0)
    evidence = moments(calls, blocked=[(stage, 12, 90.0)])
    ends = call(calls, stage, 12).end_ns
    row = next(row for row, at in enumerate(evidence.at_ns) if at >= ends)
    ready = [2.0 + held_ms * (number == row) for number in range(len(evidence.at_ns))]
    library = ThreadMoments([0.0] * len(ready), ready)
    evidence = replace(evidence, threads={**evidence.threads, "library": library})
    report = Explanation(calls, loop_shape, RunEvidence(evidence)).explain(12)
    assert (report.cause.name, report.cause.stage) == (name, stage)
    assert ("library" in report.cause.text) == (name == "core")


def test_wait_for_a_core_is_found_without_moments():
    calls, loop_shape = run("preprocess", 12, 70.0)
    report = Explanation(
        ledger(calls, ready=[("preprocess", 12, 70.0)]), loop_shape, RunEvidence()
    ).explain(12)
    assert (report.cause.name, report.cause.stage) == ("core", "preprocess")
    assert report.cause.explains_ms == pytest.approx(70)
    part = next(one for one in report.parts if one.stage == "preprocess" and not one.waits)
    assert (part.cpu_ms, part.ready_ms, part.blocked_ms) == pytest.approx((1, 70, 0))


def test_cause_is_work_if_threads_of_the_engine_compute():
    """The calling thread sleeps while the engine's thread pool computes."""
    calls, loop_shape = run("infer", 12, 50.0)
    slept = [("infer", number, 8.0) for number in range(FRAMES) if number != 12]
    busy = ledger(calls, blocked=[*slept, ("infer", 12, 58.0)], library=[("infer", 12, 51.0)])
    report = Explanation(busy, loop_shape, RunEvidence()).explain(12)
    assert (report.cause.name, report.cause.stage) == ("work", "infer")
    assert [
        one.library_cpu_ms for one in report.parts if one.stage == "infer" and not one.waits
    ] == [51]
    idle = ledger(calls, blocked=[*slept, ("infer", 12, 58.0)])
    assert Explanation(idle, loop_shape, RunEvidence()).explain(12).cause.name == "unknown"


@pytest.mark.parametrize("name", ["gc", "disk"])
def test_ledger_does_not_change_the_cause_found_from_moments(name):
    calls, loop_shape, evidence = PLANTS[name](12)
    blocked = [("write", 12, 90.0)] if name == "disk" else []
    report = Explanation(ledger(calls, blocked=blocked), loop_shape, evidence).explain(12)
    assert report.cause.name == name


@pytest.mark.parametrize("name", ["boxes", "key frame"])
def test_boxes_and_key_frame_are_found_as_causes_without_moments(name):
    calls, loop_shape, evidence = PLANTS[name](12)
    report = Explanation(calls, loop_shape, replace(evidence, moments=None)).explain(12)
    assert report.cause.name == name


def test_waiting_frame_names_the_call_that_it_waited_for():
    """The writer is blocked in frame 12. Frame 13 has been read, and waits for the writer."""
    calls, loop_shape, evidence = plant_disk(12)
    report = Explanation(calls, loop_shape, evidence).explain(13)
    assert (report.cause.name, report.cause.stage, report.cause.frame) == ("disk", "write", 12)
    wait = max((part for part in report.parts if part.waits), key=lambda part: part.ms)
    assert (wait.stage, wait.cause) == ("annotate", "program order")


def test_headline_names_the_wait_that_grew_most():
    part = WhyPart("nms", True, 161.0, 0.5, "free request", "nms 14")
    cause = WhyCause("work", "infer", 16, 66.7, 33.0, "computed for 100.0 ms (median 50.0 ms)")
    frame = WhyFrame(16, 240.0, None, None, None, None, None, cause, [part])
    slow = Why(run="", frames=[], median_ms=9, median_boxes=0, median_mhz=0, recorded=9, absent={})
    assert "before nms, for nms 14; its infer took 66.7 ms" in cause_text(frame, slow)
    assert "took" not in cause_text(frame, replace(slow, median_ms=240.0))


def test_many_boxes_do_not_explain_a_blocked_call():
    calls, loop_shape, evidence = plant_boxes(12)
    blocked = moments(calls, blocked=[("annotate", 12, 50.0)])
    report = Explanation(calls, loop_shape, replace(evidence, moments=blocked)).explain(12)
    assert report.cause.name == "unknown"


def test_slow_clock_is_named():
    calls, loop_shape = run("infer", 20, 10.0)
    evidence = RunEvidence(moments(calls, mhz=[3000.0] * 19 + [1200.0] * 4 + [3000.0] * 17))
    report = Explanation(calls, loop_shape, evidence).explain(20)
    assert report.cause.name == "clock"
    assert report.mhz < 3000


def test_parts_of_a_frame_add_up_to_its_time():
    calls, loop_shape, evidence = plant_core(12)
    explanation = Explanation(calls, loop_shape, evidence)
    for frame in explanation.frames:
        report = explanation.explain(frame)
        assert sum(part.ms for part in report.parts) == pytest.approx(report.ms)
    assert explanation.frames == list(range(FRAMES))
    with pytest.raises(KeyError):
        explanation.explain(FRAMES)
