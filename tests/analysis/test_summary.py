"""The rates of a summary, and the exit code of a run."""

from __future__ import annotations

import re

import pytest

from detector.core.analysis.summary import summarize
from detector.core.errors import OutputError, SourceError
from detector.core.session.outcome import RunFacts, SourceRun, exit_of
from detector.core.timeline import OffTimeline
from detector.core.types import ReadCounts

FACTS = RunFacts(
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
        ([(100, 500.0), (0, None)], 200.0, [200.0, None]),  # the second could not be opened
        ([(0, None)], None, None),
    ],
)
def test_device_fps_is_frames_over_the_devices_own_time(runs, total, each):
    summary = summarize(FACTS, [source(*run) for run in runs], {}, None)
    assert summary.fps.device == total
    if each is not None:
        assert [one.fps.device for one in summary.each] == each


FAILED, UNWRITTEN = SourceError("no such file"), OutputError("the disk is full")


@pytest.mark.parametrize(
    ("runs", "stop_code", "unwritten", "code", "reason"),
    [
        ([{}], None, [], 0, "done"),
        ([{}, {"counts": ReadCounts(bad=1)}], None, [], 7, "1 bad packet was skipped"),
        (
            [{"counts": ReadCounts(bad=2, ended_early=True)}],
            None,
            [],
            7,
            "2 bad packets .* and .* ended early",
        ),
        (
            [{"counts": ReadCounts(bad=2)}, {"error": FAILED}],
            None,
            [],
            3,
            "no such file",
        ),  # a failure over damage
        ([{"counts": ReadCounts(bad=2)}], None, [UNWRITTEN], 6, "disk is full"),
        ([{"error": FAILED}], None, [UNWRITTEN], 3, "no such file"),
        ([{"error": FAILED}], 130, [UNWRITTEN], 130, "interrupted"),  # an interruption over all
    ],
)
def test_one_function_decides_the_exit_code(runs, stop_code, unwritten, code, reason):
    told = exit_of(
        [SourceRun("in.mp4", OffTimeline(), **run) for run in runs], stop_code, unwritten
    )
    assert told.code == code
    assert re.search(reason, told.reason)
