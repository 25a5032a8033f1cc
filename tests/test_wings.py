"""The core runs without the wings, and each wing without the others."""

from __future__ import annotations

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

RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from detector.__main__ import main
main()
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "at/detector", ignore=leave_out)
    shutil.copytree(CHECKOUT / "cfg", tmp_path / "at/cfg")
    return tmp_path


def run(copied: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run an interpreter that finds no detect-video (-P) other than the copy."""
    command = [sys.executable, "-P", "-c", RUN, str(copied / "at"), *words]
    return subprocess.run(command, cwd=copied, capture_output=True, text=True)


def test_what_wings_add_is_read_without_importing_them() -> None:
    imported = [importlib.import_module(f"detector.{name}.wing").ADDS for name in sorted(WINGS)]
    assert list(wings.additions()) == imported


def test_a_file_without_the_class_of_its_recipe_is_named_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(wings.MissingPartError) as caught:
        wings.load("detector.core.sinks.csv:CSVSink")
    assert end(caught.value) == 1
    said = capsys.readouterr().err
    assert re.fullmatch(r"detect-video: \S+/sinks/csv\.py: has no CSVSink; .+\n", said)


@pytest.mark.slow
def test_the_core_runs_alone(copied: Path) -> None:
    for wing in WINGS:
        shutil.rmtree(copied / "at/detector" / wing)
    street = str(CHECKOUT / "videos/street.mp4")
    done = run(copied, street, "--engine", "null", "--frames", "3", "--json", "-o", "out/")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["frames"]["written"] == 3
    assert len(list((copied / "out").iterdir())) == 2
    assert "\n  compare " not in run(copied, "--help").stdout
    tracked = run(copied, street, "--engine", "null", "--track")
    assert tracked.returncode == 2
    assert "no tracker here" in tracked.stderr
    camera = run(copied, "rtsp://127.0.0.1/x", "--engine", "null")
    assert camera.returncode == 3
    assert "cannot read cameras" in camera.stderr


@pytest.mark.slow
@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_needs_no_other(copied: Path, wing: str) -> None:
    for other in set(WINGS) - {wing}:
        shutil.rmtree(copied / "at/detector" / other)
    listed = run(copied, "--help")
    assert listed.returncode == 0, listed.stderr
    commands = {file.stem for file in (PACKAGE / wing).glob("commands/[!_]*.py")}
    for name in commands:
        assert name in listed.stdout
        assert run(copied, name, "--help").returncode == 0
    street = str(CHECKOUT / "videos/street.mp4")
    if wing == "lab":
        given = ("profile", street, "--engine", "null", "--frames", "3", "--only", "critical_path")
    elif wing == "batch":
        (copied / "in").mkdir()
        shutil.copy(street, copied / "in")
        given = ("batch", "in", "-o", "out", "--engine", "null", "--frames", "3", "--workers", "1")
    elif wing == "tracks":
        given = (street, "--track", "--engine", "null", "--frames", "3", "-o", "out/")
    else:
        given = (street, "--loop", "--engine", "null", "--frames", "3", "-o", "out/")
    done = run(copied, *given)
    assert done.returncode == 0, done.stderr
