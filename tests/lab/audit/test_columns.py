"""Recognising columns by title, unit and cells."""

import pytest

from detector.lab.audit import columns as kinds
from detector.lab.audit.columns import recognise
from detector.lab.audit.tables import make_table


@pytest.mark.parametrize(
    ("title", "cells", "quantity", "scale"),
    [
        ("latency (ms)", ["1"], kinds.TIME, 1e-3),
        ("Latency [ms/img]", ["1"], kinds.TIME, 1e-3),
        ("latency_ms", ["1"], kinds.TIME, 1e-3),
        ("Execution time (sec)", ["1"], kinds.TIME, 1),
        ("Inference Time", ["1.2 ms", "3 ms"], kinds.TIME, 1e-3),
        ("**FPS**", ["1"], kinds.RATE, 1),
        ("Throughput (FPS)", ["1"], kinds.RATE, 1),
        ("throughput (images/s)", ["1"], kinds.RATE, 1),
        ("size (MB)", ["1"], kinds.BYTES, 1e6),
        ("size (MiB)", ["1"], kinds.BYTES, 2**20),
        ("Peak VRAM", ["78.69 MB"], kinds.BYTES, 1e6),
        ("params (M)", ["1"], kinds.PARAMS, 1e6),
        ("#Params", ["2.3M", "7.2M"], kinds.PARAMS, 1e6),
        ("FLOPs", ["6.7G"], kinds.WORK, 1e9),
        ("FLOPs<br><sup>@640 (B)", ["4.5"], kinds.WORK, 1e9),
        ("GMACs", ["2.2"], kinds.WORK, 1e9),
        ("GFLOP/s", ["2.2"], kinds.WORK_RATE, 1e9),
        ("utilization (%)", ["2.2"], kinds.SHARE, 0.01),
        ("mAP<sup>val</sup> 50-95", ["45.7"], kinds.ACCURACY, 1),
        ("mAP (%)", ["45.7"], kinds.ACCURACY, 0.01),
        ("AP50", ["45.7"], kinds.ACCURACY, 1),
        ("batch size", ["32"], kinds.BATCH, 1),
        ("Precision", ["fp16", "`int8`"], kinds.PRECISION, 1),
        ("Framework", ["PyTorch"], kinds.ENGINE, 1),
        ("model type", ["PyTorch", "TensorRT"], kinds.ENGINE, 1),
        ("Test Size", ["640x640"], kinds.SIZE, 1),
        ("size (pixels)", ["640"], kinds.SIZE, 1),
        ("Test Size", ["640", "1280"], kinds.SIZE, 1),
        ("FPS<sub>GPU</sub>", ["400"], kinds.RATE, 1),
        ("threads", ["4"], kinds.THREADS, 1),
        ("Device", ["CPU"], kinds.DEVICE, 1),
        ("Speed-up (vs. PyTorch)", ["1.82"], kinds.RATIO, 1),
        ("speedup", ["1.8x"], kinds.RATIO, 1),
        ("package (uJ)", ["7"], kinds.ENERGY, 1e-6),
        ("power (W)", ["7"], kinds.POWER, 1),
        ("Model", ["yolov5n", "yolov5s"], kinds.MODEL, 1),
    ],
)
def test_column_is_recognised(title, cells, quantity, scale) -> None:
    column = recognise(title, cells)
    assert (column.quantity, column.scale, column.why) == (quantity, pytest.approx(scale), "")


@pytest.mark.parametrize(
    ("title", "cells"),
    [
        ("latency", ["12", "13"]),
        ("size", ["640", "1280"]),
        ("GFLOPS", ["4.5"]),
        ("throughput", ["40"]),
        ("score", ["1", "2"]),
        ("ops (G)", ["1"]),
        ("memory", ["512"]),
    ],
)
def test_ambiguous_column_is_reported_and_not_read(title, cells) -> None:
    column = recognise(title, cells)
    assert column.why
    table = make_table("t", ["model", title], [[f"m{n}", cell] for n, cell in enumerate(cells)])
    assert len(table.unread) == 1
    assert table.columns[1].known == []


def test_unit_in_a_cell_overrides_the_title() -> None:
    table = make_table("t", ["model", "latency (ms)"], [["a", "2 s"], ["b", "5"]])
    assert [one.value for one in table.columns[1].known] == pytest.approx([2, 0.005])


def test_number_with_ambiguous_separator_is_not_read() -> None:
    table = make_table("t", ["model", "latency (ms)"], [["a", "1,234"]])
    assert table.unread
    assert table.columns[1].known == []


@pytest.mark.parametrize(
    ("title", "unit"), [("Latency", "latency (ms)"), ("GPU memory", "memory (MB)"), ("a", "title")]
)
def test_usual_unit_is_suggested(title, unit):
    assert unit in recognise(title, ["10", "20"]).why
