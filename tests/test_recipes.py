"""CONTRIBUTING.md's recipes, followed in a copy of the checkout: new parts are used and tested."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import cv2
import numpy as np
import pytest

from detector.core import sinks, sources
from detector.core.errors import SourceError
from tests.conftest import CHECKOUT

pytestmark = pytest.mark.slow

# A block begins with NEW FILE < FILE TO COPY, or a file to edit. Each other line: OLD => NEW.
EDITS = r"""
detector/core/sinks/tallies.py < detector/core/sinks/csv.py
    class CsvSink => class TalliesSink
    name = "csv" => name = "tallies"\n    order = -1
    ".csv" => ".n"
detector/core/engines/null.py
    not_timed => own_options = {"spin": "how fast", "idle": "no code reads it"}\n    not_timed
    self.concurrency = => options.own.get("spin")\n        self.concurrency =
detector/core/sources/drawer.py < detector/core/sources/pictures.py
    class PicturesSource => class DrawerSource
    has_tracks => order = -1\n    form = r".*drawer"\n    has_tracks
    str) -> bool:\n => str) -> bool:\n        if spec[-6:] != "drawer":\n            return False\n
tests/conformance/samples/drawer.py < tests/conformance/samples/pictures.py
    (folder)\n => (folder).rename(folder / "drawer")\n
    str(folder / "some"), str(folder / "empty"), *alone =>
detector/core/models/layouts/edges.py < detector/core/models/layouts/corners.py
    name = "corners" => name = "edges"
    class Corners => class Edges
    LAYOUT = Corners => LAYOUT = Edges
cfg/families/yolov4.yaml
    [corners] => [corners, edges]
detector/tracks/trackers/nearest.py < detector/tracks/trackers/sort.py
    class SortTracker => class NearestTracker
detector/live/base.py
    side: str | None = None => side: str | None = None\n    mood: str | None = None
detector/live/events/wording.py
    side: str | => mood: str | msgspec.UnsetType = msgspec.UNSET\n    side: str |
docs/usage.md
    | `csv` | => | `tallies` | `IN.n` | numbers |\n| `csv` |
"""
PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "-n", "0")
LISTS = [f"tests/test_{name}.py" for name in ("house", "architecture", "wheel")]
LISTS += ["tests/config", "tests/cli/test_docs.py", "tests/live/events/test_delivery.py"]


def run(copy: Path, *words: str, expected: int = 0) -> str:
    """Run a module, or a program of scripts/."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, *(() if "/" in words[0] else ("-m",)), *words]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == expected, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("recipes") / "copy"
    ignored = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".*_cache", "videos")
    shutil.copytree(CHECKOUT, copy, ignore=ignored)
    (copy / "videos").symlink_to(CHECKOUT / "videos")
    for part in re.split(r"\n(?=\S)", EDITS.strip()):
        head, *changes = part.splitlines()
        text = (copy / head.split(" < ")[-1]).read_text(encoding="utf-8")
        for change in changes:
            before, _, after = change.strip().replace("\\n", "\n").partition(" =>")
            assert text.count(before) == 1, change
            text = text.replace(before, after.removeprefix(" "))
        (copy / head.split(" < ")[0]).write_text(text, encoding="utf-8")
    (copy / "drawer").mkdir()
    for number in range(3):
        cv2.imwrite(f"{copy}/drawer/{number}.png", np.zeros((90, 120, 3), np.uint8))
    run(copy, "scripts/options")
    run(copy, "detector.live.page.openapi", "docs/openapi.json")
    return copy


def test_new_parts_are_listed_and_used(copy: Path) -> None:
    output = run(copy, "detector", "--help", "all")
    assert [word in output for word in ("tallies", "nearest")] == [True, True]
    arguments = ("drawer", "--engine", "null", "--track", "nearest", "--json")
    words = ("detector", *arguments, "--save", "tallies,jsonl", "--engine-options")
    outputs = json.loads(run(copy, *words, "spin=1"))["outputs"]
    assert list(outputs) == ["tallies", "jsonl"]  # in the order that the sinks declare
    assert (copy / outputs["tallies"]).read_text().startswith("source,")
    assert "no such option" in run(copy, *words, "x=1", expected=2)
    assert json.loads(run(copy, "detector", *arguments, "-o", "x.n"))["outputs"] == {
        "tallies": "x.n"
    }


def test_new_field_of_an_event_is_in_json_and_openapi(copy: Path) -> None:
    event = "Event('appears', 'door', 1.0, 1.0, mood='calm')"
    code = f"from detector.live.events.wording import Event, as_json; print(as_json({event}))"
    assert '"mood": "calm"' in run(copy, "timeit", "-n1", "-r1", code)
    assert "mood" in (copy / "docs/openapi.json").read_text()


def test_conformance_tests_include_new_parts_and_find_an_unused_option(copy: Path) -> None:
    words = "tallies or drawer or edges or nearest or options_of_an_engine_are_read"
    output = run(copy, *PYTEST, "-rA", "tests/conformance", "-k", words, expected=1)
    failed = re.findall(r"^FAILED \S+\.py::(\S+)", output, re.MULTILINE)
    assert failed == ["test_options_of_an_engine_are_read_in_its_code[null]"], output[-3000:]
    passed = "\n".join(re.findall(r"^PASSED (\S+)", output, re.MULTILINE))
    assert all(name in passed for name in ("tallies", "drawer", "edges", "nearest")), output[-3000:]


def test_other_tests_pass_unchanged(copy: Path) -> None:
    run(copy, *PYTEST, "-m", "not slow", *LISTS)


def test_address_is_read_by_the_live_source_and_unknown_file_is_refused() -> None:
    assert sources.find_claiming("rtsp://camera/?a").__name__ == "LiveSource"
    with pytest.raises(SourceError, match="no such file"):
        sources.find_claiming("gray.x")


def test_existing_sources_and_sinks_declare_formats_and_order() -> None:
    kinds = [sources.find(name) for name in sources.names()]
    assert all(set(kind.gives) <= {"bgr", "yuv420p"} and "bgr" in kind.gives for kind in kinds)
    known = [*("counts", "csv", "events", "jsonl", "mot", "coco", "player", "crops", "tracks")]
    known += [*("yolo", "pictures", "video", "overlay")]
    assert [sink.name for sink in sinks.find_all() if sink.name in known] == known


def test_listing_parts_and_their_formats_imports_no_heavy_library() -> None:
    code = """
        import sys
        from detector.core import sinks, sources
        from detector.core.config import schema
        sinks.names(), sources.names()
        print([name for name in ("numpy", "cv2", "av") if name in sys.modules])
        sinks.find_all()
        print("av" in sys.modules)
        """
    command = [sys.executable, "-c", dedent(code)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == ["[]", "False"]
