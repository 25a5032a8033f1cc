"""``profile --target`` with real runs, on an engine that computes nothing."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import detect_video
from tests.conftest import CHECKOUT

STREET = CHECKOUT / "videos/street.mp4"


def profile(place, target, *more):
    run = ("--engine", "null", "--frames", 16, "--no-video", "--run-dir", "run")
    only = ("--only", "critical_path", "--target", target)
    return detect_video("profile", STREET, *only, *run, *more, cwd=place, timeout=280)


@pytest.mark.slow
@pytest.mark.nightly
def test_what_runs_as_fast_already_needs_no_change(tmp_path):
    done = profile(tmp_path, "1fps", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["target"]
    assert (told["reached"], told["settings"], told["rounds"]) == (True, {}, 6)
    assert told["fps"]["low"] >= 1
    assert told == json.loads((tmp_path / "run/passes/target.json").read_text())
    assert "target-part" in (tmp_path / "run/report.html").read_text()
    audit = detect_video("audit", "run", "--json", cwd=tmp_path)
    assert not [one for one in json.loads(audit.stdout)["findings"] if "pass-" in one["rule"]]


@pytest.mark.slow
def test_what_nothing_reaches_is_a_failed_gate(tmp_path):
    done = profile(tmp_path, 900000, "--target-seconds", 4)
    assert done.returncode == 8, done.stderr
    told = json.loads((tmp_path / "run/passes/target.json").read_text())
    assert not told["reached"]
    assert told["fps"]["median"] > 0
    touched = {name for one in told["tried"] for name in one["settings"]}
    assert not touched & {"no_video", "quality", "preset", "save"}
    left = [path.name for path in tmp_path.iterdir()]
    assert set(left) <= {"run", "engines"}, "outputs of the runs that were tried"


def test_a_recording_runs_nothing(tmp_path):
    done = detect_video("profile", "--nsys", "x.sqlite", "--target", 60, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
