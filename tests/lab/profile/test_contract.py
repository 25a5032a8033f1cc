"""A pass of ``profile`` is one file. Test how it is found and imported, and its stored record."""

import json
import math
import subprocess
import sys
from dataclasses import fields
from typing import cast

import pytest

from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.session.measured import Interval
from detector.core.session.store import Session
from detector.lab import profile
from detector.lab.analysis.profile import describe_cost
from detector.lab.profile.base import Occasion, Pass
from detector.lab.session.passes import FACTS, LoopFacts, read_pass
from detector.lab.session.read import SavedSession
from tests.cli.command import detect_video
from tests.conftest import CHECKOUT
from tests.one_line import one_line_error

STREET = CHECKOUT / "videos/street.mp4"
NEW_PASS = """
from dataclasses import dataclass

from detector.lab.profile.base import Pass


@dataclass(frozen=True)
class Facts:
    frames: int
    note: str


PASS = Pass(
    order=999,
    what="counting frames by hand",
    facts=Facts,
    run=lambda occasion: Facts(occasion.frames, "by hand"),
    undisturbed="it only counts",
)
"""
# Run the command with an additional folder of passes, as if its files were in the package.
WITH_FOLDER = """
import sys
import detector.lab.profile as profile
profile.__path__.append(sys.argv.pop(1))
from detector.core.cli import main
main()
"""


def command_with(folder, folder_of_run, *arguments):
    command = [sys.executable, "-c", WITH_FOLDER, str(folder), "profile", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder_of_run, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_pass_is_added_as_a_single_file(tmp_path):
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "by_hand.py").write_text(NEW_PASS)
    run = ("--frames", 3, "--engine", "null", "--no-video", "--run-dir", "run", "--json")
    shown = json.loads(command_with(folder, tmp_path, STREET, "--only", "by_hand", *run))
    record = json.loads((tmp_path / "run/passes/by_hand.json").read_text())
    expected = {"available": True, "reason": None, "frames": 3, "note": "by hand"}
    assert record.items() >= expected.items()
    assert shown["by_hand"] == record
    assert shown["undisturbed"] == {"by_hand": "it only counts"}
    assert "by_hand" in command_with(folder, tmp_path, "--help")
    assert "counting frames by hand" in command_with(folder, tmp_path, "--help")
    table = detect_video("report", "run", "--format", "table", cwd=tmp_path).stdout
    assert "no overhead: it only counts" in table


def test_every_pass_declares_its_results_and_its_slowdown():
    """A pass measures its slowdown or says why it has none. FACTS has the type of its results."""
    for name in profile.list_passes():
        profile_pass = profile.open_pass(name)
        assert FACTS[name] is profile_pass.facts
        disturbs = "slowdown" in {field.name for field in fields(profile_pass.facts)}
        assert disturbs == (profile_pass.undisturbed is None), name


@pytest.mark.slow
def test_only_chosen_passes_are_imported():
    code = "import sys; from detector.lab.profile import choose_passes as choose"
    code += "; choose(['layers']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "detector.lab.profile.layers" in imported
    others = {f"detector.lab.profile.{name}" for name in profile.list_passes() if name != "layers"}
    rooms = {"detector.lab.compare", "detector.lab.evaluate", "detector.lab.datasets"}
    assert not imported & (others | rooms | {"torch", "cv2.dnn", "cProfile", "psutil"})


LOOP = {
    "available": True,
    "reason": None,
    "off_ms": [1.0],
    "on_ms": [1.5],
    "instruments": {"median": 0.5, "low": 0.5, "high": 0.5},
    "warning": None,
    "slowdown": 1.5,
    "seconds": 2.0,
}


def test_record_of_a_pass_does_not_change_when_read_and_written(tmp_path):
    (tmp_path / "loop.json").write_text(json.dumps(LOOP))
    record = read_pass(tmp_path / "loop.json")
    assert record.as_builtins() == LOOP
    assert (record.slowdown, record.seconds) == (1.5, 2.0)
    assert record.facts.instruments.median == 0.5


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(-0.3, -0.1, "not measured"), (-0.1, 0.3, "below the noise"), (0.1, 0.2, "15.0%")],
)
def test_cost_of_instruments_is_shown_only_if_above_the_noise(low, high, words):
    assert describe_cost(Interval((low + high) / 2, low, high)).startswith(words)


def test_infinite_figure_makes_its_pass_unavailable(tmp_path, monkeypatch):
    facts = LoopFacts([1.0], [1.0], Interval(math.inf, 0.0, 0.0), None, 1.0)
    profile_pass = Pass(order=0, what="", facts=LoopFacts, run=lambda occasion: facts)
    monkeypatch.setattr(profile, "open_pass", lambda name: profile_pass)
    occasion = Occasion("", Config(), Session(tmp_path), cast("SavedSession", None))
    profile.run_passes(occasion, ["loop"], lambda text, whole: None)
    record = read_pass(tmp_path / "passes/loop.json")
    assert not record.available
    assert "instruments" in str(record.reason)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"off_ms": ["1"]}, "off_ms"),
        ({"instruments": {"median": 0.5, "low": 0.5}}, "high"),
        ({"available": "yes"}, "available"),
        ({"seconds": "2"}, "seconds"),
        ({"slowdown": None}, "slowdown"),
    ],
)
def test_error_about_a_damaged_record_has_the_file_and_the_key(tmp_path, change, key):
    path = tmp_path / "loop.json"
    path.write_text(json.dumps(LOOP | change))
    with one_line_error(UsageError, key, str(path)):
        read_pass(path)
