"""Slow frames whose cause the test plants, in runs on paper with an exact clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detector.lab.analysis.loop.activities import OffCpu
from detector.lab.analysis.loop.why import Explanation, RunEvidence
from detector.lab.session.passes import Collection, MomentsFacts, ThreadMoments
from tests.lab.analysis.pipelines import MS, load, run_of, shape

FRAMES = 40
USUAL = {"read": 4.0, "preprocess": 1.0, "infer": 10.0, "head": 0.5, "nms": 0.5, "annotate": 1.0}
USUAL["write"] = 3.0


def run(stage: str = "", frame: int = 0, extra_ms: float = 0.0, also=(0, 0.0), **loop):
    made = shape(**loop)
    seconds = {name: [ms / 1e3] * FRAMES for name, ms in USUAL.items()}
    seconds["read"].append(0.0)
    seconds["infer"] = seconds["infer"][: -(-FRAMES // made.batch)]
    if stage:
        seconds[stage][frame] += extra_ms / 1e3
        seconds[stage][also[0]] += also[1] / 1e3
    return run_of(load(FRAMES, made, **seconds)), made


def moments(calls, ready=(), blocked=(), collections=(), mhz=()):
    """What the system tells of these calls: all of a call is computed, but for ``ready`` and
    ``blocked``, (stage, number, ms) each."""
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
    calls, made = run("nms", frame, 60.0, **loop)
    slow = call(calls, "nms", frame)
    pause = Collection(slow.start_ns + MS // 5, slow.start_ns + 60 * MS, 2)
    return calls, made, RunEvidence(moments(calls, collections=[pause]))


def plant_core(frame, **loop):
    calls, made = run("preprocess", frame, 70.0, **loop)
    return calls, made, RunEvidence(moments(calls, ready=[("preprocess", frame, 70.0)]))


def plant_disk(frame, **loop):
    calls, made = run("write", frame, 90.0, **loop)
    return calls, made, RunEvidence(moments(calls, blocked=[("write", frame, 90.0)]))


def plant_boxes(frame, **loop):
    calls, made = run("annotate", frame, 50.0, **loop)
    return (
        calls,
        made,
        RunEvidence(moments(calls), {**dict.fromkeys(range(FRAMES), 12), frame: 300}),
    )


def plant_key(frame, **loop):
    """Another frame was slow, too, so a key frame without cost explains nothing."""
    calls, made = run("read", frame, 60.0, also=(3, 50.0), **loop)
    return calls, made, RunEvidence(moments(calls), dict.fromkeys(range(FRAMES), 12), {3, frame})


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
def test_a_planted_cause_is_named(name, loop):
    for frame in (12, 21):
        calls, made, known = PLANTS[name](frame, **loop)
        found = Explanation(calls, made, known)
        [slowest] = found.slowest(1)
        told = found.explain(slowest)
        assert told.cause.name == name
        assert told.cause.frame == frame
        assert told.cause.explains_ms >= told.cause.excess_ms / 2
        assert found.explain(frame).cause.name == name


@pytest.mark.parametrize("name", ["gc", "core", "disk"])
def test_what_was_not_recorded_is_not_guessed(name):
    calls, made, known = PLANTS[name](12)
    told = Explanation(calls, made, replace(known, moments=None)).explain(12)
    assert told.cause.name == "unknown"
    crowded = Explanation(calls, made, replace(known, moments=None, others=0.73)).explain(12)
    assert crowded.cause.name == "others"
    assert "73%" in crowded.cause.text
    assert told.cause.excess_ms == pytest.approx({"gc": 60, "core": 70, "disk": 90}[name])
    assert {part.cpu_ms for part in told.parts} == {None}
    assert (told.boxes, told.key, told.faults) == (None, None, None)


def test_unrecorded_thread_has_unknown_cause():
    calls, made, known = plant_disk(12)
    known = replace(known, moments=replace(known.moments, threads={}))
    told = Explanation(calls, made, known).explain(12)
    assert told.cause.name == "unknown"
    assert {part.blocked_ms for part in told.parts} == {None}


def ledger(calls, ready=(), blocked=(), library=()):
    """Return the same calls as the ledger of each thread has them: (stage, number, ms) each.
    ``library``: ms that the engine's threads computed meanwhile; 1 ms for inferences not in it."""
    waited, slept, other = ({(s, n): ms for s, n, ms in each} for each in (ready, blocked, library))
    told = []
    for one in calls:
        key = one.stage, one.number
        wait = round(waited.get(key, 0.0) * MS)
        spent = OffCpu(wait + round(slept.get(key, 0.0) * MS), wait)
        if one.stage == "infer":
            spent = spent._replace(library_ns=round(other.get(key, 1.0) * MS))
        told.append(one._replace(spent=spent))
    return told


@pytest.mark.parametrize("stage", ["read", "write"])
@pytest.mark.parametrize(("held_ms", "name"), [(10.0, "disk"), (85.0, "core")])
def test_a_call_whose_codec_had_no_core_did_not_wait_for_the_disk(stage, held_ms, name):
    """Its thread is blocked for 90 ms, while threads of libraries are ready for so many of them."""
    calls, made = run(stage, 12, 90.0)
    known = moments(calls, blocked=[(stage, 12, 90.0)])
    ends = call(calls, stage, 12).end_ns
    row = next(row for row, at in enumerate(known.at_ns) if at >= ends)
    ready = [2.0 + held_ms * (number == row) for number in range(len(known.at_ns))]
    library = ThreadMoments([0.0] * len(ready), ready)
    known = replace(known, threads={**known.threads, "library": library})
    told = Explanation(calls, made, RunEvidence(known)).explain(12)
    assert (told.cause.name, told.cause.stage) == (name, stage)
    assert ("library" in told.cause.text) == (name == "core")


def test_the_ledger_tells_a_wait_for_a_core_and_more_work_without_moments():
    calls, made = run("preprocess", 12, 70.0)
    told = Explanation(
        ledger(calls, ready=[("preprocess", 12, 70.0)]), made, RunEvidence()
    ).explain(12)
    assert (told.cause.name, told.cause.stage) == ("core", "preprocess")
    assert told.cause.explains_ms == pytest.approx(70)
    part = next(one for one in told.parts if one.stage == "preprocess" and not one.waits)
    assert (part.cpu_ms, part.ready_ms, part.blocked_ms) == pytest.approx((1, 70, 0))


def test_an_inference_that_its_engines_threads_computed_for_was_more_work():
    """Its own thread slept meanwhile, as it does while the engine's pool works."""
    calls, made = run("infer", 12, 50.0)
    slept = [("infer", number, 8.0) for number in range(FRAMES) if number != 12]
    busy = ledger(calls, blocked=[*slept, ("infer", 12, 58.0)], library=[("infer", 12, 51.0)])
    told = Explanation(busy, made, RunEvidence()).explain(12)
    assert (told.cause.name, told.cause.stage) == ("work", "infer")
    assert [one.library_cpu_ms for one in told.parts if one.stage == "infer" and not one.waits] == [
        51
    ]
    idle = ledger(calls, blocked=[*slept, ("infer", 12, 58.0)])
    assert Explanation(idle, made, RunEvidence()).explain(12).cause.name == "unknown"


@pytest.mark.parametrize("name", ["gc", "disk"])
def test_the_ledger_and_moments_agree(name):
    calls, made, known = PLANTS[name](12)
    blocked = [("write", 12, 90.0)] if name == "disk" else []
    told = Explanation(ledger(calls, blocked=blocked), made, known).explain(12)
    assert told.cause.name == name


def test_more_boxes_and_a_key_frame_need_no_moments():
    for name in ("boxes", "key frame"):
        calls, made, known = PLANTS[name](12)
        assert Explanation(calls, made, replace(known, moments=None)).explain(12).cause.name == name


def test_a_frame_that_waited_names_the_call_that_it_waited_for():
    """The writer stood still in frame 12; frame 13 had been read before."""
    calls, made, known = plant_disk(12)
    told = Explanation(calls, made, known).explain(13)
    assert (told.cause.name, told.cause.stage, told.cause.frame) == ("disk", "write", 12)
    wait = max((part for part in told.parts if part.waits), key=lambda part: part.ms)
    assert (wait.stage, wait.cause) == ("annotate", "program order")


def test_many_boxes_do_not_explain_a_call_that_did_not_compute():
    calls, made, known = plant_boxes(12)
    blocked = moments(calls, blocked=[("annotate", 12, 50.0)])
    assert Explanation(calls, made, replace(known, moments=blocked)).explain(12).cause.name == (
        "unknown"
    )


def test_a_slow_clock():
    calls, made = run("infer", 20, 10.0)
    known = RunEvidence(moments(calls, mhz=[3000.0] * 19 + [1200.0] * 4 + [3000.0] * 17))
    told = Explanation(calls, made, known).explain(20)
    assert told.cause.name == "clock"
    assert told.mhz < 3000


def test_the_parts_are_the_frame():
    calls, made, known = plant_core(12)
    found = Explanation(calls, made, known)
    for frame in found.frames:
        told = found.explain(frame)
        assert sum(part.ms for part in told.parts) == pytest.approx(told.ms)
    assert found.frames == list(range(FRAMES))
    with pytest.raises(KeyError):
        found.explain(FRAMES)
