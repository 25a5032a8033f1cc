"""Profile with all passes on each engine. Only passes that need special hardware or another engine
may be unavailable. The figures must agree. These tests run nightly. In other runs, test_pinned.py
runs every pass."""

import csv
import json

import pytest

from detector.lab.profile import choose_passes
from tests.cli.command import detect_video, run_ok, summary_of
from tests.conftest import CHECKOUT
from tests.lab.profile.budgets import with_short_budgets
from tests.lab.profile.test_layers_pass import check_layers
from tests.networks import need_engine, open_network

STREET = CHECKOUT / "videos/street.mp4"
ENGINES = ["ort", "torch", "openvino"]
PATIENCE_S = 560  # for about twelve runs on a busy machine, which is several times slower
pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(PATIENCE_S + 40)]
# Passes that may be unavailable: they need a GPU, or counters of energy or of the processor.
MACHINES = {"device", "energy", "counters"}


def profiled(folder, engine, frames, *more):
    """Profile on one thread: on a busy machine, two threads that wait for each other are slow."""
    need_engine(engine)
    done = run_ok(
        *("profile", STREET, "--frames", frames, "--engine", engine),
        *"--device cpu --threads 1 --run-dir run --what-if-seconds 1 --json".split(),
        *more,
        cwd=folder,
        env=with_short_budgets(folder),
        timeout=PATIENCE_S,
        imports_torch=True,  # peaks are also measured with torch
    )
    return summary_of(done)


def check_run(session):
    for name, thread in session["threads"].items():
        parts = sum(thread[key] for key in ("busy_s", "wait_input_s", "wait_output_s", "other_s"))
        assert parts == pytest.approx(thread["wall_s"]), name


def check_passes(document, engine):
    missing = set(document["not_available"])
    assert missing <= MACHINES | ({"torch"} if engine != "torch" else set()), document[
        "not_available"
    ]
    assert all(document["not_available"].values())
    ran = set(choose_passes(None)) - missing
    disturbances = {
        name: document["overhead"].get(name, document["undisturbed"].get(name)) for name in ran
    }
    assert all(disturbances.values()), disturbances
    assert not set(document["overhead"]) & set(document["undisturbed"])
    assert all(ratio > 0 for ratio in document["overhead"].values())
    return ran


def check_facts(document, ran, folder):
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
        assert (folder / "run" / row["file"]).is_file()
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


@pytest.mark.parametrize("engine", ENGINES)
def test_all_passes_of_the_default_model_agree(tmp_path, engine):
    # Engines other than ort get an input of half the size.
    size_options = () if engine == "ort" else ("--size", "416x256")
    document = profiled(tmp_path, engine, 12, *size_options)
    check_run(json.loads((tmp_path / "run/session.json").read_text()))
    check_facts(document, check_passes(document, engine), tmp_path)
    check_layers(document)
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
