"""The verdict's arithmetic, on figures that a person can check."""

import pytest

from detector.analysis.summary import gain, load_of, verdict

STAGES = ("read", "preprocess", "infer", "head", "nms", "annotate", "write")


def stages(workers=1, **ms):
    """100 frames."""
    threads = {"infer": ",".join(f"worker-{at}" for at in range(workers))}
    return {
        name: {
            "thread": threads.get(name, "other"),
            "busy_s": ms.get(name, 0) / 10,
            "cpu_s": ms.get(name, 0) / 10,
        }
        for name in STAGES
    }


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
    cpu = {
        "cores": cores,
        "process_s": process_cpu_s,
        "libraries": {"wall_s": loop_s, "others_s": others_s},
    }
    threads = {"writer": {"wall_s": loop_s}, "reader": {"wall_s": loop_s / 2}}
    return load_of(stages(workers, **ms), threads, cpu, infer_s, period_ms / 10, 100, sync)


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
    facts = verdict(found)
    assert facts["bottleneck"] == bottleneck
    assert facts["sentence"].startswith(f"{bottleneck}-bound: ")
    assert gain(found, bottleneck) == pytest.approx(gain_itself)
    assert gain(found, "infer") == pytest.approx(gain_infer)


def test_in_turn_what_is_left_adds_up():
    found = load(16, sync=True, read=2, infer=10, write=4)
    assert verdict(found)["bottleneck"] == "infer"
    assert gain(found, "infer") == pytest.approx(16 / 6 - 1)


def test_cpu_of_the_other_stages_is_a_limit():
    """One core: infer free leaves 9 ms of CPU a frame, though no thread is busy longer than 5."""
    found = load(14, cores=1, read=4, infer=5, write=5)
    assert gain(found, "infer") == pytest.approx(14 / 9 - 1)


def test_two_requests_at_once():
    """One of them runs all the time, and still each waits for a third of it: the writer is the slow one."""
    found = load(9.2, infer=12, infer_s=0.9, workers=2, write=9)
    assert found.stages["infer"] == pytest.approx(9e-3)  # what inference FPS are taken over
    assert verdict(found)["bottleneck"] == "write"
    assert gain(found, "write") == pytest.approx(9.2 / 6 - 1)
    assert verdict(load(6.2, infer=12, infer_s=0.6, workers=2, write=5))["bottleneck"] == "infer"


def test_opening_and_closing_files_stays():
    """One short clip: 100 ms a frame, 90 of them before and after the loop. No stage can be worth 900%."""
    found = load(100, loop_ms=10, read=1, infer=8, write=7)
    assert gain(found, "infer") == pytest.approx(100 / 97 - 1)


def test_no_more_than_the_time_in_which_it_ran():
    """Of 10 ms a frame, 2 are no stage's: inference of 1 ms is worth 11% at most, not the 43% that 7 ms leave."""
    assert gain(load(10, infer=1, write=7), "infer") == pytest.approx(10 / 9 - 1)


def test_the_null_engine_gains_nothing():
    for sync, cores in ((True, 8), (False, 8), (False, 1)):  # the last one: full
        sentence = verdict(load(12, sync=sync, loop_ms=10, cores=cores, read=3, write=7))[
            "sentence"
        ]
        assert "inference could be free and you would gain nothing" in sentence


def test_a_full_cpu_is_said():
    assert "2.0 of 2 cores" in verdict(load(10, cores=2, process_cpu_s=2.0, infer=10))["sentence"]


def test_a_cpu_that_others_fill_is_full():
    """Stages that had to wait for a core are no bound: "at most" would be wrong."""
    sentence = verdict(load(10, cores=2, process_cpu_s=1.3, others_s=0.6, infer=9, write=5))[
        "sentence"
    ]
    assert "or more (the CPU is full: 1.3 of 2 cores busy, other processes take 0.6)" in sentence
    assert "at most" in verdict(load(10, cores=2, process_cpu_s=1.3, infer=9, write=5))["sentence"]


def test_nothing_to_judge():
    assert verdict(load_of(stages(), {}, {}, 0, 0, 0, False))["bottleneck"] is None
    assert verdict(load(10))["bottleneck"] is None
