"""The core runs without wings (packages like detector/lab), and each wing without the others."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detector.core import wings
from detector.core.cli.exits import end
from tests.conftest import CHECKOUT
from tests.test_house import PACKAGE, WINGS

RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from detector.__main__ import main; main()"
NULL = ("--engine", "null", "--frames", "3")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "at/detector", ignore=leave_out)
    shutil.copytree(CHECKOUT / "cfg", tmp_path / "at/cfg")
    return tmp_path


def run(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the copied detect-video. ``-P``: Python does not import from the current folder."""
    command = [sys.executable, "-P", "-c", RUN, str(copy / "at"), *words]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True)


def test_additions_are_those_that_the_wings_declare() -> None:
    imported = [importlib.import_module(f"detector.{name}.wing").ADDS for name in sorted(WINGS)]
    assert list(wings.additions()) == imported


def test_missing_class_is_reported_in_one_line_with_its_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(wings.MissingPartError) as caught:
        wings.load("detector.core.sinks.csv:CSVSink")
    assert end(caught.value) == 1
    message = capsys.readouterr().err
    assert re.fullmatch(r"detect-video: \S+/sinks/csv\.py: has no CSVSink; .+\n", message)


@pytest.mark.slow
def test_core_runs_without_wings(copy: Path) -> None:
    for wing in WINGS:
        shutil.rmtree(copy / "at/detector" / wing)
    street = str(CHECKOUT / "videos/street.mp4")
    done = run(copy, street, *NULL, "--json", "-o", "out/")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["frames"]["written"] == 3
    assert len(list((copy / "out").iterdir())) == 2
    assert "\n  compare " not in run(copy, "--help").stdout
    for words, error in (("--track", "No such option"), ("--save=tracks", "is not installed")):
        refused = run(copy, street, "--engine", "null", words)
        assert (refused.returncode, error in refused.stderr) == (2, True), refused.stderr
    camera = run(copy, "rtsp://127.0.0.1/x", "--engine", "null")
    assert camera.returncode == 3
    assert "cannot read cameras" in camera.stderr


@pytest.mark.slow
@pytest.mark.parametrize("wing", WINGS)
def test_each_wing_runs_without_the_others(copy: Path, wing: str) -> None:
    for other in set(WINGS) - {wing}:
        shutil.rmtree(copy / "at/detector" / other)
    listed = run(copy, "--help")
    assert listed.returncode == 0, listed.stderr
    commands = {file.stem for file in (PACKAGE / wing).glob("commands/[!_]*.py")}
    for name in commands:
        assert name in listed.stdout
        assert run(copy, name, "--help").returncode == 0
    street = str(CHECKOUT / "videos/street.mp4")
    if wing == "lab":
        command = ("profile", street, *NULL, "--only", "critical_path")
    elif wing == "batch":
        (copy / "in").mkdir()
        shutil.copy(street, copy / "in")
        command = ("batch", "in", "-o", "out", *NULL, "--workers", "1")
    elif wing == "tracks":
        command = (street, "--track", *NULL, "-o", "out/")
    else:
        command = (street, "--loop", *NULL, "-o", "out/")
    done = run(copy, *command)
    assert done.returncode == 0, done.stderr
