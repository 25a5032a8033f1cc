"""Rows of layers: what adds up, and what is said where something is not known."""

from __future__ import annotations

import pytest

from detector.lab.analysis.layers import TimedLayer, explain_sum, layer_rows, sum_by_type
from detector.lab.session.passes import Peaks

PEAKS = Peaks(gflops_s={"fp32": 100.0}, bandwidth_gbytes_s=10.0)  # ridge at 10 FLOPs a byte
LAYERS = [
    TimedLayer(
        "0.conv", "Conv", "fp32", 2.0, macs=50_000_000, elements=250_000, nodes=("0.conv", "0.act")
    ),
    TimedLayer("reorder", "Reorder", "fp32", 0.5),
    TimedLayer("1.pool", "MaxPool", "fp32", 1.0, elements=2_000_000),
    TimedLayer("2.conv", "Conv", "bf16", 0.5, macs=1_000_000, elements=1000),
]


def test_a_row_by_hand():
    rows = {row.name: row for row in layer_rows(LAYERS, PEAKS)}
    conv = rows["0.conv"]
    assert (conv.flops, conv.bytes, conv.share) == (100_000_000, 1_000_000, 0.5)
    assert (conv.gflops_s, conv.gbytes_s, conv.intensity) == pytest.approx((50.0, 0.5, 100.0))
    assert (conv.utilisation, conv.bound) == (pytest.approx(0.5), "compute")
    assert rows["1.pool"].utilisation == pytest.approx(0.8)  # 8 MB at 10 GB/s are 0.8 ms
    assert rows["2.conv"].bytes == 2000
    assert rows["2.conv"].utilisation is None  # no peak of that type
    assert (rows["reorder"].bound, rows["reorder"].flag) == (None, "bytes unknown")


def test_sums():
    rows = layer_rows(LAYERS, PEAKS)
    assert sum(row.share for row in rows) == pytest.approx(1)
    types = sum_by_type(rows)
    assert [(one.type, one.layers, one.ms) for one in types] == [
        ("Conv", 2, 2.5),
        ("MaxPool", 1, 1.0),
        ("Reorder", 1, 0.5),
    ]
    assert sum(one.ms for one in types) == sum(row.ms for row in rows)
    assert sum(one.macs for one in types) == 51_000_000


def test_without_peaks_there_are_rates_and_no_bound():
    conv = layer_rows(LAYERS, None)[0]
    assert (conv.gflops_s, conv.utilisation, conv.bound, conv.flag) == (
        pytest.approx(50.0),
        None,
        None,
        "peaks unknown",
    )


@pytest.mark.parametrize(
    ("sum_ms", "run_sum_ms", "profiled_ms", "outside_ms", "why"),
    [
        (9.5, 9.8, 10.5, 0.7, None),
        (10.9, 11.0, 11.5, 0.5, None),
        (7.0, 9.8, 10.5, 0.7, "within each run they agree"),
        (3.0, 8.7, 10.5, 0.7, "something else took the cores"),
        (11.2, 10.9, 11.5, 0.5, "the profiler costs time inside the layers"),
        (7.0, 7.5, 11.0, 3.5, "3.500 ms of a pass under the profiler are in no layer"),
        (7.0, 7.5, 8.0, 0.5, "busier during the passes without it"),
        (
            13.0,
            13.0,
            14.0,
            1.0,
            "the profiler costs time inside the layers (a pass under it takes +40.0%)",
        ),
    ],
)
def test_a_sum_that_is_off_is_told_with_its_cause(sum_ms, run_sum_ms, profiled_ms, outside_ms, why):
    off, said = explain_sum(sum_ms, run_sum_ms, 10.0, profiled_ms, outside_ms)
    assert off == pytest.approx(sum_ms / 10 - 1)
    assert (said is None) if why is None else (why in said)


def test_on_a_gpu_a_forward_pass_holds_the_copies_too():
    assert "copies to and from the GPU" in explain_sum(7.0, 7.5, 10.0, 10.5, 3.0, on_gpu=True)[1]
    assert "copies" not in explain_sum(7.0, 7.5, 10.0, 10.5, 3.0)[1]
