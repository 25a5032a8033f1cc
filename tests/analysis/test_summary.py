"""The figures of a run's summary, and its exit code."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from detector.core.analysis.ledger import stage_cpu_s, thread_rows, unbooked_cpu_s
from detector.core.analysis.summary import _percent, summarize
from detector.core.errors import OutputError, SourceError
from detector.core.session.document import CpuTime, StageFigures, ThreadFigures, ThreadTime
from detector.core.session.outcome import RunSettings, SourceRun, exit_of
from detector.core.timeline.timeline import OffTimeline
from detector.core.types import ReadCounts, SourceInfo
from tests.session.documents import document

SETTINGS = RunSettings(
    model="m",
    family="f",
    engine="trt",
    engine_reason=None,
    precision="fp16",
    batch=2,
    model_input=(64, 64),
    class_names=("a",),
    random_weights=None,
    threads=1,
    concurrency=1,
    cores=2,
    sync=False,
    notes=[],
)


def source(written, device_ms):
    return SourceRun(
        "in.mp4", OffTimeline(), read=written, written=written, run_s=1.0, device_ms=device_ms
    )


@pytest.mark.parametrize(
    ("runs", "total", "each"),
    [
        ([(100, None)], None, None),  # a CPU reports no device time
        ([(100, 500.0)], 200.0, None),
        ([(100, 500.0), (50, 500.0)], 150.0, [200.0, 100.0]),
        ([(100, 500.0), (0, None)], 200.0, [200.0, None]),  # the second source could not be opened
        ([(0, None)], None, None),
    ],
)
def test_device_fps_is_frames_per_second_of_device_time(runs, total, each):
    summary = summarize(SETTINGS, [source(*run) for run in runs], {}, None)
    assert summary.fps.device == total
    if each is not None:
        assert [one.fps.device for one in summary.each] == each


VIDEO = SourceInfo("in.mp4", "video", 64, 64, Fraction(25), Fraction(1, 25))
PICTURES = replace(VIDEO, kind="pictures")
BAD, ENDED_EARLY = ReadCounts(bad=2), ReadCounts(bad=2, ended_early=True)
FAILED, UNWRITTEN = SourceError("no such file"), OutputError("the disk is full")


@pytest.mark.parametrize(
    ("runs", "stop_code", "unwritten", "code", "reason"),
    [
        ([{}], None, [], 0, "done"),
        ([{}, {"counts": ReadCounts(bad=1)}], None, [], 7, "1 bad packet was skipped"),
        ([{"counts": ReadCounts(bad=1), "info": PICTURES}], None, [], 7, "1 bad picture was"),
        ([{"counts": ReadCounts(bad=1), "info": VIDEO}], None, [], 7, "1 bad packet was"),
        ([{"counts": ENDED_EARLY}], None, [], 7, "2 bad packets .* and .* ended early"),
        # a failure outranks damage
        ([{"counts": BAD}, {"error": FAILED}], None, [], 3, "no such file"),
        ([{"counts": BAD}], None, [UNWRITTEN], 6, "disk is full"),
        ([{"error": FAILED}], None, [UNWRITTEN], 3, "no such file"),
        ([{"error": FAILED}], 130, [UNWRITTEN], 130, "interrupted"),  # an interruption outranks all
    ],
)
def test_worst_outcome_decides_exit_code_and_reason(runs, stop_code, unwritten, code, reason):
    outcome = exit_of(
        [SourceRun("in.mp4", OffTimeline(), **run) for run in runs], stop_code, unwritten
    )
    assert outcome.code == code
    assert re.search(reason, outcome.reason)


def test_thread_row_splits_a_threads_time_per_frame():
    """There are 10 frames. Other programs caused 75% of the thread's waits for a core."""
    split = [ThreadTime(on_cpu_s=a, ready_s=b, blocked_s=c) for a, b, c in SPLITS]
    thread = ThreadFigures(
        busy_s=0.06,
        wait_input_s=0.15,
        wait_output_s=0,
        other_s=0.24,
        wall_s=0.4500001,  # more than the sum: the clocks are read one after another
        cpu_s=0.12,
        ready_s=0.15,
        busy_split=split[0],
        wait_split=split[1],
        other_split=split[2],
        unplaced_s=0.009,
        foreign_share=0.75,
    )
    threads = {"a": thread, "b": replace(thread, **dict.fromkeys(OPTIONAL))}
    known, unknown = thread_rows(replace(document(), threads=threads), 10)
    assert (known.ready_ms, known.foreign_ms, known.lock_ms) == pytest.approx((15, 11.25, 9))
    assert (known.preempted_ms, known.other_ms) == pytest.approx((8, 16))  # of 24 ms between stages
    assert known.rest == pytest.approx(0.02)
    assert (unknown.preempted_ms, unknown.other_ms) == (0, 24)
    assert (unknown.ready_ms, unknown.foreign_ms, unknown.lock_ms, unknown.rest) == (None,) * 4


SPLITS = ((0.01, 0.02, 0.03), (0.04, 0.05, 0.06), (0.07, 0.08, 0.09))
OPTIONAL = ("busy_split", "wait_split", "other_split", "unplaced_s", "foreign_share")


@pytest.mark.parametrize(("sync", "stage_s", "rest_s"), [(False, 0.5, 0.3), (True, 0.2, 0.3)])
def test_library_cpu_time_is_counted_once(sync, stage_s, rest_s):
    stage = StageFigures(thread="a", calls=10, busy_s=1, cpu_s=0.2, library_cpu_s=0.3)
    cpu = CpuTime(
        cores=2,
        process_s=1,
        our_threads_s=0.4,
        library_threads_s=0.6,
        stages_include_libraries=sync,
    )
    summary = replace(document(), stages={"write": stage}, cpu=cpu)
    assert stage_cpu_s(summary, "write") == pytest.approx(stage_s)
    assert unbooked_cpu_s(summary) == pytest.approx(rest_s)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.994, "99%"), (0.995, "99.5%"), (0.9999, "99.9%"), (1.0, "100%"), (0.0, "0%")],
)
def test_share_is_100_percent_only_if_nothing_is_missing(share, text):
    assert _percent(share) == text


def test_detections_of_all_sources_are_counted_by_class_name():
    """Class 7 has no name, so it is counted under its number."""
    first, second = source(1, None), source(1, None)
    first.by_class.update({0: 3, 7: 1})
    second.by_class.update({0: 2})
    counts = summarize(SETTINGS, [first, second], {}, None).detections
    assert counts.by_class == {"a": 5, "7": 1}
