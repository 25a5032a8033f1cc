"""``why`` on real sessions, with and without results of profile's pass ``moments``."""

import json
import os
from dataclasses import replace

import pytest

from detector.lab.session.read import read_session
from detector.lab.why import explain, gather
from tests.cli.command import assert_one_line_error, detect_video, run_ok
from tests.conftest import CHECKOUT
from tests.lab.report.sessions import FRAMES, ran

pytestmark = pytest.mark.slow
STREET = CHECKOUT / "videos/street.mp4"


def test_slowest_frames_of_a_run_are_explained(tmp_path):
    session = ran(tmp_path)
    done = run_ok("why", session, "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert document["recorded"] == FRAMES
    assert len(document["frames"]) == 10
    assert [frame["ms"] for frame in document["frames"]] == sorted(
        (frame["ms"] for frame in document["frames"]), reverse=True
    )
    for frame in document["frames"]:
        assert sum(part["ms"] for part in frame["parts"]) == pytest.approx(frame["ms"])
        # Some part has a CPU time, unless ``absent`` says that CPU times are missing.
        cpu_times = [part["cpu_ms"] for part in frame["parts"] if part["cpu_ms"] is not None]
        assert all(ms >= 0 for ms in cpu_times)
        assert bool(cpu_times) == ("time on a core" not in document["absent"])
        assert frame["boxes"] == 0
    assert {"garbage collections", "page faults"} <= {*document["absent"]}
    assert [frame["frame"] for frame in document["frames"] if frame["key"]] in ([], [0])
    rendered = json.loads(
        run_ok("report", session, "--format", "json", "-o", "-", cwd=tmp_path).stdout
    )
    assert rendered["latency_ms"]["p50"] == pytest.approx(document["median_ms"])
    saved = json.loads((session / "session.json").read_text())
    assert all(rendered[part] == saved[part] for part in ("stages", "threads"))
    # Wrong options are refused in one line.
    for more in (["--frame", FRAMES], ["--frame", 1, "--slowest", 2]):
        refused = detect_video("why", session, *more, cwd=tmp_path)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
    frame = run_ok("why", session, "--frame", 3, cwd=tmp_path)
    assert "frame 3" in frame.stdout


def test_last_run_is_explained_by_default(tmp_path):
    for command in ("why", "diff"):
        assert_one_line_error(detect_video(command, cwd=tmp_path), 2, "saved runs found")
    (tmp_path / "runs").mkdir()
    sessions = [ran(tmp_path / str(at)).rename(tmp_path / "runs" / f"r{at}") for at in range(3)]
    for at, run in enumerate(sessions):
        os.utime(run / "session.json", (at, at))
    assert json.loads(detect_video("why", "--json", cwd=tmp_path).stdout)["run"] == "runs/r2"
    stderr = detect_video("diff", cwd=tmp_path).stderr
    assert stderr.index("runs/r1") < stderr.index("runs/r2")


def test_why_uses_the_moments_of_a_profile(tmp_path):
    run = ("--engine", "null", "--frames", 30, "--no-video", "--run-dir", "run")
    run_ok("profile", STREET, "--only", "moments", *run, cwd=tmp_path)
    facts = json.loads((tmp_path / "run/passes/moments.json").read_text())
    assert facts["available"], facts["reason"]
    assert facts["frames"] == list(range(30))
    assert {"reader", "writer", "worker-0"} <= {*facts["threads"]}
    assert facts["keys"][0] == 0
    assert sum(facts["threads"]["writer"]["cpu_ms"]) > 0
    assert facts["slowdown"] > 1
    assert facts["ran"]["differs_in"] == []
    evidence, absent = gather(read_session(tmp_path / "run"))
    assert evidence.moments is not None
    assert {*absent} <= {"clock"}
    document = json.loads(detect_video("why", "run", "--json", cwd=tmp_path).stdout)
    assert all(part["waits"] or part["cpu_ms"] >= 0 for part in document["frames"][0]["parts"])
    assert "why-part" in (tmp_path / "run/report.html").read_text()


def test_key_frames_are_not_read_from_a_changed_file(tmp_path):
    session = read_session(ran(tmp_path))
    [path] = session.document.clip_sha256
    evidence, absent = gather(session)
    assert evidence.keys == {0}
    changed = replace(session.document, clip_sha256={path: "0" * 64})
    evidence, absent = gather(replace(session, document=changed))
    assert evidence.keys is None
    assert "key frames" in absent


def test_frames_without_inference_have_no_infer_part(tmp_path):
    """With ``--infer-every``, an inference belongs only to frames for which ``head`` was called."""
    document = explain(read_session(ran(tmp_path, infer_every=2)), None, 100)
    assert document.frames
    for one in document.frames:
        stages = {part.stage for part in one.parts if not part.waits}
        assert ("infer" in stages) == ("head" in stages), one.frame
