"""The verdict's arithmetic, on figures that a person can check."""

import pytest

from detector.analysis.verdict import gain, load_of, verdict


def stages(**ms):
    names = ("read", "preprocess", "infer", "head", "nms", "annotate", "write")
    return {name: {"busy_s": ms.get(name, 0) / 1e3 * 100, "cpu_s": ms.get(name, 0) / 1e3 * 100} for name in names}


def load(period_ms, sync=False, cores=8, infer_s=None, process_cpu_s=1.0, **ms):
    """100 frames."""
    infer_s = ms.get("infer", 0) / 10 if infer_s is None else infer_s
    return load_of(stages(**ms), infer_s, period_ms / 10, process_cpu_s, 100, cores, sync)


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


def test_two_requests_at_once_count_as_the_time_in_which_one_ran():
    found = load(5, infer=10, infer_s=0.5, read=1)
    assert found.stages["infer"] == pytest.approx(5e-3)


def test_a_full_cpu_is_said():
    assert "2.0 of 2 cores" in verdict(load(10, cores=2, process_cpu_s=2.0, infer=10))["sentence"]


def test_nothing_to_judge():
    assert verdict(load_of(stages(), 0, 0, 0, 0, 2, False))["bottleneck"] is None
    assert verdict(load(10))["bottleneck"] is None
