"""``profile``, ``report`` and ``diff`` as commands, on the packaged model."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from detector.lab.profile import choose_passes, list_passes
from tests.cli.command import assert_one_line_error, detect_video, run_ok, summary_of
from tests.cli.small import write_network
from tests.conftest import CHECKOUT, night
from tests.lab.profile.budgets import with_short_budgets
from tests.lab.report.sessions import with_passes
from tests.lab.report.test_trace import trace_errors

pytestmark = pytest.mark.slow
STREET = CHECKOUT / "videos/street.mp4"
STEPS_HEADER = "step,total_ms,count,avg_ms,std_ms,min_ms,max_ms,share_of_stages,p50_ms"


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    # Use one thread: two that wait for each other would use more CPU time for the same results.
    done = run_ok(
        *("profile", STREET, "--frames", 12, "--engine", "ort", "--size", "160x96", "--threads", 1),
        *("--only", "loop,critical_path,what_if,memory,python", "--what-if-seconds", 1),
        *("--run-dir", "run", "--json", "--csv"),
        cwd=folder,
        env=with_short_budgets(tmp_path_factory.mktemp("budgets")),
    )
    return folder, summary_of(done)


def test_passes_report_their_results(profiled):
    folder, document = profiled
    assert document["not_available"] == {}
    path = document["critical_path"]
    assert sum(stage["share"] for stage in path["stages"]) == pytest.approx(1)
    assert sum(s["self_s"] + s["wait_s"] for s in path["stages"]) == pytest.approx(path["wall_s"])
    assert document["schema"] == 2
    changes = {row["change"] for row in document["what_if"]["changes"]}
    small = document["what_if"]["not_measured"]
    assert "overlap off" in changes
    # If a busy machine delays a frame by a second, inference may be too small a share to measure.
    assert "infer free" in changes or small["infer free"].startswith("it takes ")
    assert changes.isdisjoint(small)
    assert set(document["overhead"]) == {"loop", "memory", "python"}
    assert document["memory"]["peak_mb"] >= document["memory"]["start_mb"]
    assert document["python"]["folded"]["detector.core.stages"] > 0
    assert (folder / "run/passes/critical_path.json").is_file()
    assert 'id="first"' in (folder / "run/report.html").read_text()
    assert (folder / "run/steps_timer.csv").read_text().startswith(STEPS_HEADER)
    # The passes' own outputs are removed.
    assert [path.name for path in folder.iterdir()] == ["run"]


END_OF_REPORT = "---- the end of a report ----"
# Block some modules, then draw several reports of the session "run" in one interpreter.
REPORTS_WITHOUT_MODULES = f"""
import json, sys
for name in json.loads(sys.argv[1]): sys.modules[name] = None
from detector.core.cli import main
for arguments in json.loads(sys.argv[2]):
    sys.argv = ["detect-video", "report", "run", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code: raise
    print({END_OF_REPORT!r}, flush=True)
"""


@pytest.mark.parametrize("passes", ["of this profile", "of every kind"])
def test_report_is_drawn_without_engines_gpu_libraries_or_cv2(profiled, tmp_path, passes):
    folder, document = profiled
    folder = Path(shutil.copytree(folder / "run", tmp_path / "run")).parent
    if passes == "of every kind":
        with_passes(folder / "run")
    blocked = "cv2 onnxruntime torch openvino tensorrt av onnx pynvml pycuda cuda".split()
    reports = [
        ["--format", "table"],
        ["--format", "json", "-o", "-"],
        ["--format", "trace", "-o", "t.json.gz"],
        ["--format", "csv", "-o", "tables"],
        ["-o", "report.html"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", REPORTS_WITHOUT_MODULES, json.dumps(blocked), json.dumps(reports)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    table, facts, *_ = done.stdout.split(END_OF_REPORT)
    assert done.stdout.count(END_OF_REPORT) == len(reports)
    assert "critical path of" in table
    assert json.loads(facts)["fps"] == document["fps"]
    assert (
        trace_errors(
            json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
        )
        == []
    )
    page = (tmp_path / "report.html").read_text()
    assert "<h2>What if" in page
    if passes == "of every kind":
        assert all(
            f'id="{table}"' in page for table in ("layers", "shapes", "host-device", "energy")
        )
        assert "without idle" in table
    assert (tmp_path / "tables/steps_timer.csv").read_text().startswith(STEPS_HEADER)


WRONG = [
    (["profile"], 2, "needs a SOURCE to run, or --nsys FILE"),
    (["profile", STREET, "--only", "layer"], 2, "no such pass; passes are"),
    (["profile", "nothing.mp4"], 3, "nothing.mp4"),
    (["profile", "--nsys", "x.sqlite", "--csv"], 2, "--csv writes into"),
    (["profile", "--nsys", STREET], 2, "not an SQLite export of nsys"),
    (["report", "."], 2, "no session.json in it"),
    (["diff", ".", "."], 2, "no session.json in it"),
    (["diff", ".", ".", "--max-regression", "lots"], 2, "not a share; write 5% or 0.05"),
    (["diff", ".", ".", "--max-regression", "5"], 2, "not a share; write 5% or 0.05"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_wrong_arguments_are_refused_in_one_line(tmp_path, arguments, code, message):
    process = detect_video(*arguments, cwd=tmp_path)
    assert process.stdout == ""
    assert_one_line_error(process, code, message)


def test_progress_shows_each_pass_and_the_pass_moments_is_optional(tmp_path):
    done = run_ok(
        *("profile", STREET, "--frames", 6, "--engine", "null", "--no-video", "--run-dir", "run"),
        *("--only", "critical_path,layers,counters"),
        cwd=tmp_path,
    )
    plain, *lines = done.stderr.splitlines()
    assert re.fullmatch(r"the plain run \.\.\. [\d.]+ s", plain)
    assert re.fullmatch(r"pass 1 of 3, critical_path: .+ [\d.]+ s", lines[0])
    assert lines[1].startswith("pass 2 of 3, layers: ")
    assert "not available: engine null" in lines[1]
    optional = ["moments"]
    assert not {*optional} & {*choose_passes(None)}
    assert (
        choose_passes(None, optional)
        == list_passes()
        == sorted(choose_passes(optional, choose_passes(None)), key=list_passes().index)
    )
    assert choose_passes(["layers"], optional) == ["moments", "layers"]


def test_forbidden_counters_are_reported_and_other_passes_run(tmp_path):
    perf = tmp_path / "bin/perf"
    perf.parent.mkdir()
    perf.write_text("#!/bin/sh\necho 'No permission to enable cycles event.' >&2\nexit 255\n")
    perf.chmod(0o755)
    path = f"{perf.parent}:{os.environ['PATH']}"
    done = run_ok(
        *("profile", STREET, "--only", "counters,critical_path"),
        *"--frames 6 --engine null --no-video --run-dir run --json".split(),
        cwd=tmp_path,
        env={"PATH": path},
    )
    document = summary_of(done)
    assert document["critical_path"]["available"]
    assert (tmp_path / "run/report.html").is_file()
    reason = (
        "perf stat failed: No permission to enable cycles event.; "
        "as root: sysctl kernel.perf_event_paranoid=1"
    )
    assert document["not_available"] == {"counters": reason}


@pytest.mark.parametrize("frames", [2_000, night(20_000)])
def test_long_run_has_a_bounded_session_size_and_memory(tmp_path, frames):
    clip = tmp_path / "long.mp4"
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 64
        picture = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="bgr24")
        for number in range(frames):
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    done = run_ok(
        "profile",
        clip,
        "--model",
        write_network(tmp_path),
        *"--engine null --no-video --run-dir run --only memory --json".split(),
        cwd=tmp_path,
    )
    document = summary_of(done)
    assert document["frames"]["written"] == frames
    assert sum(path.stat().st_size for path in (tmp_path / "run").rglob("*")) < 2500 * frames
    memory = document["memory"]
    # The frames take only a second. If the sampling thread was delayed, the slope is None.
    assert memory["slope_reason"] in (None, "the run was too short for five samples")
    assert (memory["slope_mb_per_1000_frames"] or 0.0) < 1.0
