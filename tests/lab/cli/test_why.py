"""``why`` on real sessions: with moments, and with what every run leaves."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from detector.lab.session.read import read_session
from detector.lab.why import explain, gather
from tests.cli.command import assert_one_line_error, detect_video, run_ok
from tests.conftest import CHECKOUT
from tests.lab.report.sessions import FRAMES, ran

STREET = CHECKOUT / "videos/street.mp4"


@pytest.mark.slow
def test_the_slowest_frames_of_any_run(tmp_path):
    session = ran(tmp_path)
    done = run_ok("why", session, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["recorded"] == FRAMES
    assert len(told["frames"]) == 10
    assert [one["ms"] for one in told["frames"]] == sorted(
        (one["ms"] for one in told["frames"]), reverse=True
    )
    for one in told["frames"]:
        assert sum(part["ms"] for part in one["parts"]) == pytest.approx(one["ms"])
        # The ledger's split of each call, where the kernel tells one.
        told_cpu = [part["cpu_ms"] for part in one["parts"] if part["cpu_ms"] is not None]
        assert all(ms >= 0 for ms in told_cpu)
        assert bool(told_cpu) == ("time on a core" not in told["absent"])
        assert one["boxes"] == 0
    assert {"garbage collections", "page faults"} <= {*told["absent"]}
    assert [one["frame"] for one in told["frames"] if one["key"]] in ([], [0])
    # Refused in a line.
    for more in (["--frame", FRAMES], ["--frame", 1, "--slowest", 2]):
        refused = detect_video("why", session, *more, cwd=tmp_path)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
    one = run_ok("why", session, "--frame", 3, cwd=tmp_path)
    assert "frame 3" in one.stdout


@pytest.mark.slow
def test_without_a_run_it_is_the_last_one(tmp_path):
    for command in ("why", "diff"):
        assert_one_line_error(detect_video(command, cwd=tmp_path), 2, "saved runs found")
    (tmp_path / "runs").mkdir()
    made = [ran(tmp_path / str(at)).rename(tmp_path / "runs" / f"r{at}") for at in range(3)]
    for at, run in enumerate(made):
        os.utime(run / "session.json", (at, at))
    assert json.loads(detect_video("why", "--json", cwd=tmp_path).stdout)["run"] == "runs/r2"
    said = detect_video("diff", cwd=tmp_path).stderr
    assert said.index("runs/r1") < said.index("runs/r2")


@pytest.mark.slow
def test_moments_of_a_profile(tmp_path):
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
    known, absent = gather(read_session(tmp_path / "run"))
    assert known.moments is not None
    assert {*absent} <= {"clock"}
    told = json.loads(detect_video("why", "run", "--json", cwd=tmp_path).stdout)
    assert all(part["waits"] or part["cpu_ms"] >= 0 for part in told["frames"][0]["parts"])
    assert "why-part" in (tmp_path / "run/report.html").read_text()


@pytest.mark.slow
def test_another_file_of_that_name_is_not_asked_for_key_frames(tmp_path):
    session = read_session(ran(tmp_path))
    [path] = session.document.clip_sha256
    known, absent = gather(session)
    assert known.keys == {0}
    changed = replace(session.document, clip_sha256={path: "0" * 64})
    known, absent = gather(replace(session, document=changed))
    assert known.keys is None
    assert "key frames" in absent


@pytest.mark.slow
def test_frames_that_nothing_inferred_have_no_inference(tmp_path):
    """With --infer-every an inference belongs to the frames of its batch that have a head."""
    told = explain(read_session(ran(tmp_path, infer_every="2")), None, 100)
    assert told.frames
    for one in told.frames:
        stages = {part.stage for part in one.parts if not part.waits}
        assert ("infer" in stages) == ("head" in stages), one.frame
