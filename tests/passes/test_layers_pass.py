"""The passes layers and roofline from outside: what they find must add up, on every engine."""

from __future__ import annotations

import csv

import pytest

from detector import engines
from tests.cli.command import detect_video, summary_of
from tests.conftest import CHECKOUT

STREET = CHECKOUT / "videos/street.mp4"


def profiled(place, engine, *more, source=STREET):
    if reason := engines.usable()[engine]:
        pytest.skip(f"machine: engine {engine}: {reason}")
    done = detect_video(
        "profile", source, "--frames", 4, "--engine", engine, "--run-dir", "run", "--only", "layers,roofline",
        "--json", *more, cwd=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = summary_of(done)
    assert document["not_available"] == {}
    return document


def check(document):
    layers, roofline = document["layers"], document["roofline"]
    rows = layers["rows"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["ms"] for row in rows) == pytest.approx(layers["sum_ms"])
    assert sum(one["ms"] for one in layers["by_type"]) == pytest.approx(layers["sum_ms"])
    assert sum(row["macs"] for row in rows) == layers["macs"] == roofline["macs"]
    assert roofline["flops"] == 2 * roofline["macs"]
    placed = [row for row in rows if row["utilisation"] is not None]
    mean = sum(row["utilisation"] * row["ms"] for row in placed) / sum(row["ms"] for row in placed)
    assert max(row["utilisation"] for row in placed) >= mean
    assert all(row["flag"] == "peak under-measured" for row in placed if row["utilisation"] > 1)
    assert (layers["flag"] is None) == (abs(layers["sum_ms"] / layers["forward_ms"] - 1) <= 0.1)
    assert roofline["peaks"]["fp32"] == roofline["peaks"]["gflops_s"]["fp32"] > 0
    assert roofline["bound"] in ("compute", "memory", "launch overhead")


@pytest.mark.parametrize("engine", ["ort", "torch", "openvino"])
def test_every_engine(tmp_path, engine):
    document = profiled(tmp_path, engine)
    check(document)
    assert document["layers"]["engine"] == engine
    table = detect_video("report", "run", "--format", "table", cwd=tmp_path).stdout
    assert f"layers of {engine}" in table
    assert "GFLOPs a picture" in table
    detect_video("report", "run", "--format", "csv", "-o", "tables", cwd=tmp_path)
    with open(tmp_path / "tables/layer_timer.csv", encoding="utf-8") as file:
        sums = sum(float(row["ms"]) for row in csv.DictReader(file))
    assert sums == pytest.approx(document["layers"]["sum_ms"], rel=1e-3)


def test_an_engine_without_layers_says_so(tmp_path):
    done = detect_video(
        "profile", STREET, "--frames", 4, "--engine", "null", "--run-dir", "run", "--only", "layers,roofline", "--json",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reasons = summary_of(done)["not_available"]
    assert reasons["layers"] == "engine null: no layer times: it computes nothing"
    assert reasons["layers"] in reasons["roofline"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "torch", "openvino"])
def test_published_figures(shared, tmp_path, engine):
    weights = shared / "data/weights"
    document = profiled(tmp_path, engine, "--model", weights / "yolov5n.pt")
    check(document)
    assert document["roofline"]["flops"] / 1e9 == pytest.approx(4.5, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "torch", "openvino"])
def test_darknet(shared, tmp_path, engine):
    check(profiled(tmp_path, engine, "--model", shared / "data/weights/yolo-fastest-1.1-xl.cfg"))
