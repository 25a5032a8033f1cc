"""One profile of everything on each engine: what can run here runs, and its figures agree.

By day test_pinned.py runs every pass, and each pass has tests of its own.
"""

from __future__ import annotations

import csv
import json

import pytest

from detector.lab.profile import choose_passes
from tests.cli.command import detect_video, run_ok, summary_of
from tests.conftest import CHECKOUT
from tests.lab.profile.budgets import with_short_budgets
from tests.lab.profile.test_layers_pass import check
from tests.networks import need_engine, open_network

STREET = CHECKOUT / "videos/street.mp4"
ENGINES = ["ort", "torch", "openvino"]
PATIENCE_S = 560  # a dozen runs; a machine that is shared takes several times longer
pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(PATIENCE_S + 40)]
# What a machine may lack: a GPU, counters of energy, counters of the processor.
MACHINES = {"device", "energy", "counters"}


def profiled(place, engine, frames, *more):
    """On one thread: two that wait for each other take many times longer where others are at work
    too.
    """
    need_engine(engine)
    done = run_ok(
        "profile",
        STREET,
        "--frames",
        frames,
        "--engine",
        engine,
        *"--device cpu --threads 1 --run-dir run --what-if-seconds 1 --json".split(),
        *more,
        cwd=place,
        env=with_short_budgets(place),
        timeout=PATIENCE_S,
        imports_torch=True,  # the peaks are measured with it too
    )
    return summary_of(done)


def check_run(session):
    for name, thread in session["threads"].items():
        parts = sum(thread[key] for key in ("busy_s", "wait_input_s", "wait_output_s", "other_s"))
        assert parts == pytest.approx(thread["wall_s"]), name


def check_passes(document, engine):
    lacking = set(document["not_available"])
    assert lacking <= MACHINES | ({"torch"} if engine != "torch" else set()), document[
        "not_available"
    ]
    assert all(document["not_available"].values())
    ran = set(choose_passes(None)) - lacking
    told = {name: document["overhead"].get(name, document["undisturbed"].get(name)) for name in ran}
    assert all(told.values()), told
    assert not set(document["overhead"]) & set(document["undisturbed"])
    assert all(ratio > 0 for ratio in document["overhead"].values())
    return ran


def check_facts(document, ran, place):
    path = document["critical_path"]
    assert sum(stage["share"] for stage in path["stages"]) == pytest.approx(1)
    assert sum(stage["self_s"] + stage["wait_s"] for stage in path["stages"]) == pytest.approx(
        path["wall_s"]
    )
    for row in document["what_if"]["changes"]:
        for ratio in (row["fps_ratio"], row["frame_ratio"]):
            assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
    for row in document["slowest_frames"]["rows"]:
        assert 0 < row["stage_ms"] <= row["ms"] * (1 + 1e-9)
        assert (place / "run" / row["file"]).is_file()
    memory = document["memory"]
    highest = max(sample["rss_mb"] for sample in memory["samples"])
    assert memory["peak_mb"] >= highest >= memory["start_mb"] > 0
    assert {"model", "decoder", "drawing and encoder", "rest"} < {*memory["parts_mb"]}
    assert min(mb for name, mb in memory["parts_mb"].items() if name != "rest") > 0
    python = document["python"]
    assert sum(python["folded"].values()) >= sum(row["self_s"] for row in python["functions"]) > 0
    if "torch" in ran:
        rows = document["torch"]["rows"]
        assert sum(row["share"] for row in rows) <= 1 + 1e-9
        assert sum(row["self_ms"] for row in rows) <= document["torch"]["self_ms"] * (1 + 1e-9)


def check_everything(place, document, engine):
    check_run(json.loads((place / "run/session.json").read_text()))
    check_facts(document, check_passes(document, engine), place)
    check(document)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_default_model(tmp_path, engine):
    own = () if engine == "ort" else ("--size", "416x256")  # half of the work for the other two
    document = profiled(tmp_path, engine, 12, *own)
    check_everything(tmp_path, document, engine)
    assert document["layers"]["engine"] == engine
    assert document["frames"]["written"] == 12
    table = detect_video("report", "run", "--format", "table", cwd=tmp_path).stdout
    assert all(
        word in table
        for word in (f"layers of {engine}", "GFLOPs per picture", "Python: self time", "memory: ")
    )
    detect_video("report", "run", "--format", "csv", "-o", "tables", cwd=tmp_path)
    with open(tmp_path / "tables/layer_timer.csv", encoding="utf-8") as file:
        sums = sum(float(row["ms"]) for row in csv.DictReader(file))
    assert sums == pytest.approx(document["layers"]["sum_ms"], rel=1e-3)
    if engine == "torch":
        calls = {row["name"]: row["calls"] for row in document["torch"]["rows"]}
        assert calls["aten::conv2d"] == sum(
            n.op_type == "Conv" for n in open_network("street").graph.graph.node
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_published_figures(shared, tmp_path, engine):
    model = shared / "data/weights/yolov5n.pt"
    side = 640 if engine == "ort" else 320
    size = ("--size", f"{side}x{side}")
    document = profiled(tmp_path, engine, 5, "--model", model, *size)
    check_everything(tmp_path, document, engine)
    published = 4.5 * (side / 640) ** 2  # GFLOPs
    assert document["roofline"]["flops"] / 1e9 == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("engine", ENGINES)
def test_darknet(shared, tmp_path, engine):
    model = shared / "data/weights/yolo-fastest-1.1-xl.cfg"
    document = profiled(tmp_path, engine, 8, "--model", model)
    check_everything(tmp_path, document, engine)
