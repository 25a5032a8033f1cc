"""Rows of layers: figures, sums, and the reasons for missing or deviating figures."""

from dataclasses import replace

import pytest

from detector.core.errors import UsageError
from detector.lab.analysis.layers import (
    TimedLayer,
    explain_sum,
    far_from_roof,
    find_block,
    layer_rows,
    parse_sheet,
    place_on_sheet,
    sum_by_block,
    sum_by_type,
)
from detector.lab.session.network import Peaks

PEAKS = Peaks(gflops_s={"fp32": 100.0}, bandwidth_gbytes_s=10.0)  # ridge at 10 FLOPs a byte
LAYERS = [
    TimedLayer(
        "0.conv", "Conv", "fp32", 2.0, macs=50_000_000, elements=250_000, nodes=("0.conv", "0.act")
    ),
    TimedLayer("reorder", "Reorder", "fp32", 0.5),
    TimedLayer("1.pool", "MaxPool", "fp32", 1.0, elements=2_000_000),
    TimedLayer("2.conv", "Conv", "bf16", 0.5, macs=1_000_000, elements=1000),
]


def test_layer_row_has_the_expected_figures():
    rows = {row.name: row for row in layer_rows(LAYERS, PEAKS)}
    conv = rows["0.conv"]
    assert (conv.flops, conv.bytes, conv.share) == (100_000_000, 1_000_000, 0.5)
    assert (conv.gflops_s, conv.gbytes_s, conv.intensity) == pytest.approx((50.0, 0.5, 100.0))
    assert (conv.utilisation, conv.bound) == (pytest.approx(0.5), "compute")
    assert rows["1.pool"].utilisation == pytest.approx(0.8)  # 8 MB at 10 GB/s are 0.8 ms
    assert rows["2.conv"].bytes == 2000
    assert rows["2.conv"].utilisation is None  # the peak of that type is unknown
    assert (rows["reorder"].bound, rows["reorder"].flag) == (None, "bytes unknown")


def test_layer_that_only_makes_a_view_has_no_utilisation():
    row = layer_rows([TimedLayer("permute", "Permute", "fp32", 0.1, view=True)], PEAKS)[0]
    assert (row.bytes, row.utilisation, row.flag) == (0, None, "moves nothing")


def test_layers_are_summed_by_type():
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


def test_rows_without_peaks_have_rates_but_no_bound():
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
        (7.0, 9.8, 10.5, 0.7, "a run's sum includes that time"),
        (3.0, 8.7, 10.5, 0.7, "other work interrupted"),
        (11.2, 10.9, 11.5, 0.5, "the profiler adds time inside the layers"),
        (7.0, 7.5, 11.0, 3.5, "takes 11.000 ms, of which 3.500 ms are outside"),
        (7.0, 7.5, 8.0, 0.5, "busier in the unprofiled passes"),
        (
            13.0,
            13.0,
            14.0,
            1.0,
            "the profiler adds time inside the layers (a profiled pass takes +40.0%)",
        ),
    ],
)
def test_deviating_layer_sum_is_explained_by_its_cause(
    sum_ms, run_sum_ms, profiled_ms, outside_ms, why
):
    off, reason = explain_sum(sum_ms, run_sum_ms, 10.0, profiled_ms, outside_ms, on_gpu=False)
    assert off == pytest.approx(sum_ms / 10 - 1)
    assert (reason is None) if why is None else (why in reason)


def test_layer_sum_has_no_deviation_without_a_forward_pass():
    assert explain_sum(7.0, 7.5, 0.0, 10.5, 3.0, on_gpu=False) == (0.0, None)


def test_gpu_forward_pass_includes_copies():
    assert "copies " in explain_sum(7.0, 7.5, 10.0, 10.5, 3.0, on_gpu=True)[1]
    assert "launched and sync" in explain_sum(7.7, 7.7, 1.6, 8.7, 0.7, on_gpu=True)[1]
    assert "copies" not in explain_sum(7.0, 7.5, 10.0, 10.5, 3.0, on_gpu=False)[1]


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("/model.6/cv1/conv/Conv", "model.6"),
        ("model.6.m.0.cv2.conv_nchwc", "model.6"),
        ("model.6.m", "model.6"),  # a container inside a block belongs to the block
        ("6.conv", "6"),
        ("input.cast", "input"),
        ("Conv_0", "Conv_0"),
        ("", ""),
    ],
)
def test_layer_name_determines_the_block(name, block):
    assert find_block(name) == block


def test_blocks_contain_each_layer_once():
    rows = layer_rows(LAYERS, PEAKS)
    blocks = sum_by_block(rows)
    assert [(one.block, one.layers) for one in blocks] == [
        ("0", 1),
        ("reorder", 1),
        ("1", 1),
        ("2", 1),
    ]
    for name in ("ms", "macs", "flops", "bytes", "share"):
        assert sum(getattr(one, name) for one in blocks) == sum(getattr(one, name) for one in rows)


def test_best_and_worst_utilisation_skip_tiny_layers():
    shares = {"a": 0.9, "b": 0.5, "c": 0.1, "d": 0.7, "tiny": 0.01, "unplaced": None}
    rows = [
        replace(
            layer_rows(LAYERS, PEAKS)[0],
            name=name,
            utilisation=share,
            share=0.001 if name == "tiny" else 0.2,
        )
        for name, share in shares.items()
    ]
    best, worst = far_from_roof(rows, 3)
    assert ([row.name for row in best], [row.name for row in worst]) == (["a", "d"], ["c", "b"])
    assert far_from_roof([], 3) == ([], [])
    assert far_from_roof(rows[:1], 3) == ([rows[0]], [])


@pytest.mark.parametrize(
    ("peak", "bandwidth", "expected"),
    [
        ("8.1TFLOPS", "320GB/s", (8100.0, 320.0)),
        ("410 GFLOP/s", "0.05 TB/s", (410.0, 50.0)),
        ("130TOPS", "25.6gB/s", None),
        ("8.1", "320GB/s", None),
        ("0TFLOPS", "320GB/s", None),
        ("1.2.3TFLOPS", "320GB/s", None),
        ("8.1TFLOPS", "320GFLOPS", None),
        ("8.1TFLOPS", None, None),
        (None, "320GB/s", None),
    ],
)
def test_data_sheet_values_are_parsed(peak, bandwidth, expected):
    if expected is None:
        with pytest.raises(UsageError, match=r"--(peak|bandwidth)"):
            parse_sheet(peak, bandwidth)
    else:
        assert parse_sheet(peak, bandwidth) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("peak", "bandwidth", "forward_ms", "bound"),
    [
        (100.0, 100.0, 2.0, "compute"),  # 51% of the peak, 4.5% of the bandwidth
        (100.0, 5.0, 2.0, "memory"),
        (8100.0, 320.0, 2.0, "neither"),  # at most 1.4% of either limit
    ],
)
def test_data_sheet_decides_what_bounds_the_model(peak, bandwidth, forward_ms, bound):
    sheet = Peaks(gflops_s={"fp32": peak}, bandwidth_gbytes_s=bandwidth)
    rows = layer_rows(LAYERS, PEAKS)
    roof = place_on_sheet(rows, "fp32", sheet, forward_ms)
    assert roof is not None
    assert roof.bound == bound
    assert roof.ridge == peak / bandwidth
    assert roof.of_peak == pytest.approx(sum(row.flops for row in rows) / 2e-3 / 1e9 / peak)
    assert place_on_sheet(rows, "fp32", sheet, 0.0) is None
