"""The verdict's arithmetic, on figures that a person can check."""

import re

import pytest

from detector.analysis.verdict import NAMES, Choices, frame_times, gain_without, judge
from detector.cli.detect import command as detect
from detector.session.document import CpuTime, LibraryThreads, StageFigures, ThreadFigures

STAGES = ("read", "preprocess", "infer", "head", "nms", "annotate", "write")


def stages(workers=1, **ms):
    """100 frames."""
    threads = {"infer": ",".join(f"worker-{at}" for at in range(workers))}
    return {
        name: StageFigures(
            thread=threads.get(name, "other"),
            calls=100,
            busy_s=ms.get(name, 0) / 10,
            cpu_s=ms.get(name, 0) / 10,
        )
        for name in STAGES
    }


def thread(wall_s):
    return ThreadFigures(
        busy_s=wall_s, wait_input_s=0, wait_output_s=0, other_s=0, wall_s=wall_s, cpu_s=0
    )


def cpu_time(cores=8, process_s=1.0, libraries=None):
    return CpuTime(
        cores=cores,
        process_s=process_s,
        our_threads_s=process_s,
        library_threads_s=0,
        stages_include_libraries=False,
        libraries=libraries,
    )


def load(
    period_ms,
    sync=False,
    cores=8,
    infer_s=None,
    process_cpu_s=1.0,
    loop_ms=None,
    others_s=None,
    workers=1,
    **ms,
):
    """100 frames; ``loop_ms``: of the period, what lies within the loop's threads."""
    infer_s = ms.get("infer", 0) / 10 if infer_s is None else infer_s
    loop_s = (period_ms if loop_ms is None else loop_ms) / 10
    threads = {"writer": thread(loop_s), "reader": thread(loop_s / 2)}
    cpu = cpu_time(
        cores,
        process_cpu_s,
        LibraryThreads(wall_s=loop_s, process_s=0, unknown_s=0, others_s=others_s, stages={}),
    )
    return frame_times(stages(workers, **ms), threads, cpu, infer_s, period_ms / 10, 100, sync)


TABLE = [
    # period, stages in ms, bottleneck, gain if it were free, gain if inference were free
    (10, {"read": 2, "infer": 10, "write": 4}, "infer", 1.5, 1.5),  # then write: 10 / 4
    (10, {"read": 2, "infer": 4, "write": 10}, "write", 1.5, 0.0),  # then infer: 10 / 4
    (10, {"read": 10, "infer": 4, "write": 5}, "read", 1.0, 0.0),
    (
        10,
        {"read": 1, "infer": 5, "head": 2, "annotate": 3, "write": 5},
        "write",
        1.0,
        0.0,
    ),  # 10 together
]


@pytest.mark.parametrize(("period", "ms", "bottleneck", "gain_itself", "gain_infer"), TABLE)
def test_overlapped(period, ms, bottleneck, gain_itself, gain_infer):
    found = load(period, **ms)
    facts = judge(found)
    assert facts.bottleneck == bottleneck
    assert facts.sentence.startswith(f"{NAMES[bottleneck]} limits this run")
    assert gain_without(found, bottleneck) == pytest.approx(gain_itself)
    assert gain_without(found, "infer") == pytest.approx(gain_infer)


def test_in_turn_what_is_left_adds_up():
    found = load(16, sync=True, read=2, infer=10, write=4)
    assert judge(found).bottleneck == "infer"
    assert gain_without(found, "infer") == pytest.approx(16 / 6 - 1)


def test_cpu_of_the_other_stages_is_a_limit():
    """One core: infer free leaves 9 ms of CPU a frame, though no thread is busy longer than 5."""
    found = load(14, cores=1, read=4, infer=5, write=5)
    assert gain_without(found, "infer") == pytest.approx(14 / 9 - 1)


def test_two_requests_at_once():
    """One of them runs all the time, and still each waits for a third of it: the writer is the slow one."""
    found = load(9.2, infer=12, infer_s=0.9, workers=2, write=9)
    assert found.stages["infer"] == pytest.approx(9e-3)  # what inference FPS are taken over
    assert judge(found).bottleneck == "write"
    assert gain_without(found, "write") == pytest.approx(9.2 / 6 - 1)
    assert judge(load(6.2, infer=12, infer_s=0.6, workers=2, write=5)).bottleneck == "infer"


def test_opening_and_closing_files_stays():
    """One short clip: 100 ms a frame, 90 of them before and after the loop. No stage can be worth 900%."""
    found = load(100, loop_ms=10, read=1, infer=8, write=7)
    assert gain_without(found, "infer") == pytest.approx(100 / 97 - 1)


def test_no_more_than_the_time_in_which_it_ran():
    """Of 10 ms a frame, 2 are no stage's: inference of 1 ms is worth 11% at most, not the 43% that 7 ms leave."""
    assert gain_without(load(10, infer=1, write=7), "infer") == pytest.approx(10 / 9 - 1)


def test_the_null_engine_gains_nothing():
    for sync, cores in ((True, 8), (False, 8), (False, 1)):  # the last one: full
        found = load(12, sync=sync, loop_ms=10, cores=cores, read=3, write=7)
        assert "Without inference you would get no more FPS" in judge(found).sentence


def test_a_full_cpu_is_said():
    assert "2.0 of 2 cores" in judge(load(10, cores=2, process_cpu_s=2.0, infer=10)).sentence


def test_a_cpu_that_others_fill_is_full():
    """Stages that had to wait for a core are no bound: "at most" would be wrong."""
    full = judge(load(10, cores=2, process_cpu_s=1.3, others_s=0.6, infer=9, write=5)).sentence
    assert "at least" in full
    assert "at most" not in full
    assert "1.3 of 2 cores busy, and other processes 0.6" in full
    free = judge(load(10, cores=2, process_cpu_s=1.3, infer=9, write=5)).sentence
    assert "at most" in free
    assert "at least" not in free


ADVICE = [
    # the slow stage, outputs, preset, options that the sentence names
    ("write", ("video", "jsonl"), "superfast", {"--preset", "--no-video"}),
    ("write", ("video", "jsonl"), "ultrafast", {"--no-video"}),  # there is no faster preset
    ("write", ("pictures",), "superfast", {"--no-video"}),
    ("write", ("jsonl",), "superfast", set()),  # nothing is left out by an option
    ("annotate", ("video",), "superfast", {"--no-video"}),
    ("nms", ("video",), "superfast", {"--conf"}),
    ("read", ("video",), "superfast", set()),
]


@pytest.mark.parametrize(("stage", "outputs", "preset", "options"), ADVICE)
def test_the_sentence_names_options_that_exist_and_help(stage, outputs, preset, options):
    choices = Choices(outputs=outputs, preset=preset)
    sentence = judge(load(10, **{"infer": 2, stage: 8}), choices).sentence
    named = set(re.findall(r"--[a-z-]+", sentence))
    assert named == options
    assert named <= {name for option in detect.params for name in option.opts}


def test_nothing_to_judge():
    assert judge(frame_times(stages(), {}, cpu_time(), 0, 0, 0, False)).bottleneck is None
    assert judge(load(10)).bottleneck is None
