"""Comparisons of rounds with invented numbers, whose results are known exactly."""

import re

import pytest

from detector.core.analysis.agreement import Agreement
from detector.core.session.codec import from_json, to_json
from detector.core.session.measured import Interval
from detector.lab.analysis.compare import RoundsLook, Variant, compare_variants, is_decided, label
from detector.lab.session.comparison import About, Comparison, Round, VariantFacts

CPU = {"read": 1.0, "annotate": 0.5, "write": 2.0}


def make_rounds(*fps: float, cpu=None, idle=0.0, frames=60, end_to_end=None):
    end_to_end = end_to_end or [value / 2 for value in fps]
    return [
        Round({"inference": rate, "end_to_end": whole_rate}, {**CPU, **(cpu or {})}, frames, idle)
        for rate, whole_rate in zip(fps, end_to_end, strict=True)
    ]


def variant(name="a", *fps: float, digest="d", **more):
    return Variant(name, "fp32", 1, name, rounds=make_rounds(*fps, **more), frames_digest=digest)


def document(*variants, rounds=3, **look):
    return compare_variants(variants, About(source="in.mp4", rounds=rounds, budget=0.95), **look)


def test_ratio_is_the_median_of_the_ratios_of_the_rounds():
    """In round 3 the machine has half its speed. This changes both rows, but not their ratio."""
    comparison = document(variant("a", 10, 12, 5), variant("b", 20, 36, 10))
    first, second = comparison.rows
    assert first.fps["inference"] == Interval(median=10, low=5, high=12)
    assert second.fps["end_to_end"] == Interval(median=10, low=5, high=18)
    assert (first.ratio["inference"], second.ratio["inference"]) == (1, 2)
    assert second.ratio_interval["inference"] == (2, 3)
    assert comparison.baseline == "a"
    assert from_json(to_json(comparison), Comparison, "x") == comparison


def test_failed_row_keeps_its_error_and_the_next_row_is_the_baseline():
    failed = Variant(
        "a", "int8", 1, "a int8", error="its process ended by signal 11", rounds=make_rounds(9.0)
    )
    comparison = document(failed, variant("b", 10, 10, 10))
    assert comparison.baseline == "b"
    assert "signal 11" in str(comparison.rows[0].error)
    assert comparison.rows[0].fps == {"inference": None, "end_to_end": None}, (
        "one round of three gives no figure"
    )
    assert comparison.rows[1].ratio == {"inference": 1, "end_to_end": 1}
    assert document(failed).baseline is None
    assert document(failed).comparable is None


@pytest.mark.parametrize(
    ("ratios", "winner", "outcome"),
    [
        ((1.1, 1.2, 1.3, 1.1, 1.2, 1.3), "b", "faster"),  # 6 rounds agree by chance in 1 of 32
        ((1.1, 1.2, 1.3, 1.1, 1.2), None, "open"),  # 5 rounds agree by chance in 1 of 16
        ((1.1, 1.2, 1.3, 1.1, 1.2, 0.98), None, "open"),
        # these rows differ by at most 1%, as two equal processes may
        ((1.005, 1.006, 1.007, 1.008, 1.009, 1.01), None, "same"),
        ((0.9, 0.8, 0.7, 0.9, 0.8, 0.7), "a", "slower"),
    ],
)
def test_winner_must_be_faster_by_more_than_the_noise(ratios, winner, outcome):
    base = (10, 11, 30, 12, 9, 10)[: len(ratios)]
    rates = [one * ratio for one, ratio in zip(base, ratios, strict=True)]
    comparison = document(variant("a", *base), variant("b", *rates))
    assert comparison.fastest["inference"] == winner
    verdict = comparison.rows[1].verdict["inference"]
    assert verdict.outcome == outcome
    assert is_decided(comparison) is (outcome != "open")
    if outcome != "open":
        assert verdict.low <= verdict.ratio <= verdict.high


def test_contenders_within_noise_are_listed_without_a_winner():
    base = [10, 11, 12, 10, 11, 12]
    comparison = document(
        variant("a", *base),
        variant("b", *(1.1 * one for one in base[:5]), 11),
        variant("c", *(0.1 * one for one in base)),
    )
    assert comparison.contenders["inference"] == ("b", "a")
    assert comparison.fastest["inference"] is None


def test_p_values_are_corrected_for_several_rows():
    """Six rounds are enough to decide one comparison, but not two at once."""
    base, faster = [10.0] * 6, [12.0, 12.1, 12.2, 12.3, 12.4, 12.5]
    one = document(variant("a", *base), variant("b", *faster))
    two = document(variant("a", *base), variant("b", *faster), variant("c", *base))
    assert [each.rows[1].verdict["inference"].p for each in (one, two)] == [2 / 64, 4 / 64]


def test_difference_is_undecided_if_equal_processes_differ_as_much():
    """In each round, b is 3% faster than a, but so is a second process that runs a."""
    base = [10.0 + 0.1 * at for at in range(12)]
    fast = [1.03 * one for one in base]
    without_twin = document(variant("a", *base), variant("b", *fast))
    with_twin = document(
        variant("a", *base), variant("b", *fast), look=RoundsLook(twin=variant("a again", *fast))
    )
    outcomes = [one.rows[1].verdict["end_to_end"].outcome for one in (without_twin, with_twin)]
    assert outcomes == ["faster", "open"]
    assert with_twin.noise.floor["end_to_end"] == pytest.approx(0.03)
    assert (without_twin.noise.measured, with_twin.noise.measured) == (False, True)
    assert [row.name for row in with_twin.rows] == ["a", "b"]


@pytest.mark.parametrize(
    ("changed", "comparable"),
    [
        ({}, True),
        # CPU time grows by less than 2% of the 200 ms that a frame takes
        ({"cpu": {"write": 2.1}}, True),
        ({"cpu": {"write": 9.0}}, False),
        ({"cpu": {"infer": 90.0}}, True),  # inference may differ between engines
        ({"digest": "other"}, False),
        ({"frames": 59}, False),
        ({"idle": 0.5}, False),
    ],
)
def test_rows_are_comparable_if_only_their_inference_differs(changed, comparable):
    comparison = document(variant("a", 10, 10, 10), variant("b", 10, 10, 10, **changed))
    assert comparison.comparable is comparable
    assert bool(comparison.warnings) is not comparable
    if not comparable:
        assert comparison.fastest == {"inference": None, "end_to_end": None}


def test_tolerance_of_cpu_time_is_the_spread_of_the_rounds():
    """``write`` takes 2 to 9 ms in the rounds of a, so b may exceed the median of a by 7 ms."""
    noisy = variant("a", 100, 100, 100)
    for turn, write in zip(noisy.rounds, (2.0, 4.0, 9.0), strict=True):
        turn.cpu_ms["write"] = write
    assert document(noisy, variant("b", 100, 100, 100, cpu={"write": 11.0})).comparable is True
    [warning] = document(noisy, variant("b", 100, 100, 100, cpu={"write": 11.1})).warnings
    assert re.match("stage write: 11.10 ms .* b, .* 4.00 .* a", warning)


def test_rows_with_different_numbers_of_boxes_are_compared_with_a_warning():
    rows = [
        variant("a", 100, 100, 100, cpu={"annotate": 1.5}),
        variant("null", 100, 100, 100, cpu={"annotate": 0.02}),
    ]
    for one, boxes in zip(rows, (222, 0), strict=True):
        one.agreement = Agreement(12, 222, boxes, boxes, boxes / 222, 1.0, 0.0)
    (warning,) = document(*rows).warnings
    assert "0 and 222 boxes" in warning


def test_one_round_does_not_show_whether_rows_are_comparable():
    assert document(variant("a", 10), variant("b", 20), rounds=1).comparable is None


def test_agreement_without_boxes_is_none():
    nan = float("nan")
    empty, full = variant("a", 1, 1, 1), variant("b", 1, 1, 1)
    empty.agreement = Agreement(60, 0, 0, 0, 1.0, nan, nan)
    full.agreement = Agreement(60, 10, 10, 9, 0.9, 0.8, 0.01)
    rows = document(empty, full).rows
    assert rows[0].agreement.matched is None
    assert rows[0].agreement.mean_iou is None
    second = rows[1].agreement
    assert (second.matched, second.mean_iou, second.mean_score_diff) == (0.9, 0.8, 0.01)


def test_row_says_if_its_precision_had_no_effect():
    ran = Variant("torch", "bf16", 1, "torch bf16", rounds=make_rounds(1, 1, 1), frames_digest="d")
    shares = {"fp32": {"layers": 1.0, "macs": 1.0, "bytes": 1.0}}
    ran.facts = VariantFacts(precision_executed=shares)
    [row] = document(ran).rows
    assert row.precision_effect.startswith("bf16 ")


def test_label_of_a_row_has_engine_precision_and_batch():
    assert label("ort", "fp32", 1) == "ort fp32"
    assert label("ort", "fp32", 8) == "ort fp32 batch 8"
