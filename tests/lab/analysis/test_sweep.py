"""The knee of a curve, by hand."""

from __future__ import annotations

import pytest

from detector.lab.analysis.compare import Variant, compare_variants, sweep_curves
from detector.lab.session.comparison import About, Round


def sweep(*points):
    """Points: precision, batch, and frames a second; None where the variant failed."""
    variants = []
    for precision, batch, rate in points:
        rounds = [Round({"inference": rate, "end_to_end": None}, {}, 24)]
        error = "it crashed" if rate is None else None
        variants.append(Variant("ort", precision, batch, rounds=rounds, error=error))
    about = About(source="in.mp4", rounds=1, budget=0.95)
    return sweep_curves(compare_variants(variants, about).rows)


@pytest.mark.parametrize(
    ("rates", "knee"),
    [
        ({1: 100.0, 2: 150.0, 4: 196.0, 8: 200.0}, 4),
        ({1: 100.0, 2: 98.0}, 1),  # more batch does not help
        ({1: 50.0, 2: None, 4: 200.0}, 4),  # one that failed is on no curve
        ({1: None}, None),
    ],
)
def test_knee(rates, knee):
    curves = sweep(*(("fp32", batch, rate) for batch, rate in rates.items()))
    assert curves["knees"].get("fp32") == knee


def test_each_precision_has_its_own_and_a_batch_takes_its_frames_together():
    curves = sweep(("fp32", 1, 100.0), ("bf16", 1, 100.0), ("bf16", 4, 400.0))
    assert curves["knees"] == {"fp32": 1, "bf16": 4}
    assert [row["batch_ms"] for row in curves["rows"]] == [10.0, 10.0, 10.0]
