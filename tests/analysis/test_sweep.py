"""The knee of a curve, by hand."""

from __future__ import annotations

import pytest

from detector.analysis.compare import swept


def row(precision, batch, rate):
    fps = (
        None
        if rate is None
        else {"inference": {"median": rate, "low": rate, "high": rate}, "end_to_end": None}
    )
    return {"precision": precision, "batch": batch, "fps": fps}


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
    found = swept([row("fp32", batch, rate) for batch, rate in rates.items()])
    assert found["knees"].get("fp32") == knee


def test_each_precision_has_its_own_and_a_batch_takes_its_frames_together():
    found = swept([row("fp32", 1, 100.0), row("bf16", 1, 100.0), row("bf16", 4, 400.0)])
    assert found["knees"] == {"fp32": 1, "bf16": 4}
    assert [one["batch_ms"] for one in found["rows"]] == [10.0, 10.0, 10.0]
