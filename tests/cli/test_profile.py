"""profile, report and diff from outside, on the package's own model."""

from __future__ import annotations

import gzip
import json
import sys

import av
import numpy as np
import pytest

from tests.cli.command import detect_video, summary_of
from tests.conftest import CHECKOUT
from tests.report.test_trace import problems

STREET = CHECKOUT / "videos/street.mp4"


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    place = tmp_path_factory.mktemp("profile")
    done = detect_video(
        "profile", STREET, "--frames", 30, "--run-dir", "run", "--only", "loop,critical_path,what_if,memory,python",
        "--json", cwd=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place, summary_of(done)


def test_every_pass_gives_its_facts(profiled):
    place, document = profiled
    assert document["not_available"] == {}
    path = document["critical_path"]
    assert sum(stage["share"] for stage in path["stages"]) == pytest.approx(1)
    assert sum(s["self_s"] + s["wait_s"] for s in path["stages"]) == pytest.approx(path["wall_s"])
    changes = {row["change"] for row in document["what_if"]}
    assert {"infer free", "read free", "write free", "overlap off", "one more core"} <= changes
    assert set(document["overhead"]) == {"loop", "memory", "python"}
    assert document["memory"]["peak_mb"] >= document["memory"]["start_mb"]
    assert document["python"]["folded"]["detector.stages"] > 0
    assert (place / "run/passes/critical_path.json").is_file()
    assert sorted(path.name for path in place.iterdir()) == ["run"]  # what the passes wrote is gone


def test_a_session_is_rendered_later_without_engines_or_pictures(profiled, tmp_path):
    """In an interpreter that has neither cv2 nor any engine."""
    place, document = profiled
    blocked = ("cv2", "onnxruntime", "torch", "openvino", "tensorrt", "av", "onnx")
    code = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\nfrom detector.cli import main\nmain()"
    import subprocess

    def report(*arguments):
        command = [sys.executable, "-c", code, "report", str(place / "run"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "critical path of" in report("--format", "table")
    assert json.loads(report("--format", "json", "-o", "-"))["fps"] == document["fps"]
    report("--format", "trace", "-o", "t.json.gz")
    assert problems(json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]) == []
    report("--format", "csv", "-o", "tables")
    report("-o", "report.html")
    assert "<h2>What if" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "tables/steps_timer.csv").read_text().startswith("step,total,count,avg,std,min,max,share,p50")


def test_a_run_beside_itself_passes_the_gate(profiled):
    place, _ = profiled
    done = detect_video("diff", "run", "run", "--max-regression", "5%", "--json", cwd=place)
    assert done.returncode == 0
    rows = {row["what"]: row for row in summary_of(done)["changes"]}
    assert all(row["ratio"] == 1 for row in rows.values())
    assert {"end to end, per frame", "read", "infer", "write"} <= rows.keys()


WRONG = [
    (["profile"], 2, "needs a SOURCE to run, or --nsys FILE"),
    (["profile", STREET, "--only", "layer"], 2, "no such pass; passes are"),
    (["profile", "nothing.mp4"], 3, "nothing.mp4"),
    (["profile", "--nsys", STREET], 2, "no SQLite export of nsys"),
    (["report", "."], 2, "no session.json in it"),
    (["diff", ".", "."], 2, "no session.json in it"),
    (["diff", ".", ".", "--max-regression", "lots"], 2, "not a share; write 5% or 0.05"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_a_users_mistake_is_one_line(tmp_path, arguments, code, message):
    done = detect_video(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_twenty_thousand_frames_keep_the_session_small_and_memory_flat(tmp_path):
    clip = tmp_path / "long.mp4"
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 64
        picture = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="bgr24")
        for number in range(20_000):
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    done = detect_video("profile", clip, "--engine", "null", "--no-video", "--run-dir", "run", "--only", "memory",
                        "--json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = summary_of(done)
    assert document["frames"]["written"] == 20_000
    assert sum(path.stat().st_size for path in (tmp_path / "run").rglob("*")) < 50e6
    assert document["memory"]["slope_mb_per_1000_frames"] < 1.0
