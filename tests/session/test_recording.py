"""Recordings of several sources are added up and converted to the units of the document."""

from array import array
from dataclasses import astuple, replace

import pytest

from detector.core.session.recording import (
    SplitSum,
    StageSum,
    ThreadSum,
    TimelineSums,
    library_threads,
    merge_recordings,
)
from detector.core.timeline.native import Burnt, StageThreads
from detector.core.timeline.spans import STAGES


def thread_sum(times: int) -> ThreadSum:
    return ThreadSum(
        busy_ns=3 * times,
        wait_input_ns=11 * times,
        wait_output_ns=13 * times,
        other_ns=17 * times,
        wall_ns=44 * times,
        cpu_ns=19 * times,
        ready_ns=23 * times,
        waits={"queue": 24 * times},
        splits={
            "work": SplitSum(1 * times, 2 * times, 0),
            "wait_input": SplitSum(0, 4 * times, 7 * times),
            "wait_output": SplitSum(3 * times, 2 * times, 8 * times),
            "other": SplitSum(5 * times, 6 * times, 6 * times),
        },
    )


def source_sums(times: int) -> TimelineSums:
    stage = StageSum(["main"], 5 * times, 7 * times, 6 * times)
    stage.split, stage.has_split = SplitSum(4 * times, 2 * times, 1 * times), True
    stage.durations.add_many(array("q", [times] * 5))
    return TimelineSums(
        {"read": stage},
        {"main": thread_sum(times)},
        infer_ns=29 * times,
        burnt=Burnt(
            wall_ns=31 * times,
            process_ns=37 * times,
            unknown_ns=41 * times,
            others_ns=43 * times,
            stages={
                "infer": StageThreads(2 * times, 3 * times, 47 * times, 53 * times, 59 * times)
            },
        ),
    )


def test_merged_recording_adds_up_two_sources() -> None:
    total = merge_recordings([source_sums(1), source_sums(10)])
    assert list(total.stages) == [*STAGES]
    read = total.stages["read"]
    assert (read.threads, read.calls, read.busy_ns, read.cpu_ns) == (["main"], 55, 77, 66)
    assert read.split == SplitSum(44, 22, 11)
    assert (read.durations.count, read.durations.maximum) == (10, 10)
    assert total.threads == {"main": thread_sum(11)}
    assert total.infer_ns == 29 * 11
    assert total.burnt is not None
    assert total.burnt.stages == {"infer": StageThreads(22, 30, 47 * 11, 53 * 11, 59 * 11)}
    assert astuple(total.burnt)[:4] == (31 * 11, 37 * 11, 41 * 11, 43 * 11)
    total.self_check()


def test_sources_with_missing_figures_can_be_merged() -> None:
    incomplete = replace(source_sums(1), burnt=Burnt(others_ns=None))
    incomplete.threads["main"].ready_ns = None
    total = merge_recordings([incomplete, source_sums(10)])
    assert total.burnt is not None
    assert total.burnt.others_ns is None
    assert total.threads["main"].ready_ns == 230
    assert merge_recordings([incomplete]).threads["main"].ready_ns is None
    without = replace(source_sums(1), burnt=None)
    assert merge_recordings([without, source_sums(10)]).burnt == source_sums(10).burnt
    assert merge_recordings([without]).burnt is None


def test_document_figures_are_in_seconds() -> None:
    source = source_sums(10**9)
    stage = source.stages["read"].figures()
    assert (stage.thread, stage.calls, stage.busy_s, stage.cpu_s) == ("main", 5 * 10**9, 7, 6)
    assert stage.p50_ms == stage.max_ms == 1000
    assert (stage.p90_ms, stage.p99_ms) == (None, None)  # too few samples
    assert StageSum().figures().max_ms is None
    thread = source.threads["main"].figures()
    waited = (thread.wait_input_s, thread.wait_output_s, thread.other_s)
    assert (thread.busy_s, *waited, thread.wall_s, thread.cpu_s) == (3, 11, 13, 17, 44, 19)
    assert (thread.ready_s, thread.waits) == (23, {"queue": 24})
    splits = (thread.busy_split, thread.wait_split, thread.other_split)
    assert [astuple(split) for split in splits if split] == [(1, 2, 0), (3, 6, 15), (5, 6, 6)]
    assert thread.unplaced_s == (19 - 9) + (23 - 14)
    assert ThreadSum().figures().ready_s is None
    threads = library_threads(source.burnt)
    assert threads is not None
    burnt = [threads.wall_s, threads.process_s, threads.unknown_s, threads.others_s]
    assert burnt == [31, 37, 41, 43]
    stage_of = threads.stages["infer"]
    assert (stage_of.cpu_s, stage_of.busiest_s, stage_of.ready_s) == (47, 53, 59)
    assert (stage_of.calls, stage_of.threads) == (2 * 10**9, 3 * 10**9)
    assert library_threads(None) is None


def test_library_cpu_time_is_scaled_from_the_steady_state_to_all_calls() -> None:
    """Library threads used 47 s in the 3 calls of the steady state. There were 5 calls in all."""
    source = source_sums(10**9)
    assert source.burnt is not None
    source.burnt.stages["infer"].calls = 3 * 10**9
    stage = source.stages["read"]
    infer = stage.figures(source.burnt, "infer")
    assert infer.library_cpu_s == pytest.approx(47 * 5 / 3)
    assert infer.library_ready_s == pytest.approx(59 * 5 / 3)
    assert (stage.figures(source.burnt, "nms").library_cpu_s, infer.split) == (
        0,
        stage.figures().split,
    )
    assert stage.figures().library_cpu_s is None  # library threads were not measured
    assert StageSum(calls=5).figures().split is None


def test_foreign_share_is_the_cpu_share_of_other_processes() -> None:
    """In 31 s, other processes used 43 s of CPU time and ours used 37 s. The share leaves out the
    thread's own CPU time, which is 19 s in 44 s."""
    source = source_sums(10**9)
    share = 43 / (43 + 37 - 19 * 31 / 44)
    assert source.threads["main"].figures(source.burnt).foreign_share == pytest.approx(share, 1e-3)
    assert source.threads["main"].figures().foreign_share is None
    assert (
        replace(source.threads["main"], ready_ns=None).figures(source.burnt).foreign_share is None
    )


@pytest.mark.parametrize("part", ["busy_ns", "wait_input_ns", "wait_output_ns", "other_ns"])
def test_ledger_that_does_not_add_up_is_an_error(part: str) -> None:
    source = source_sums(1)
    source.self_check()
    thread = source.threads["main"]
    setattr(thread, part, getattr(thread, part) + 1)
    with pytest.raises(AssertionError):
        source.self_check()
