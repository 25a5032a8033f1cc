"""A new sink or source is one file: dropped in, it is offered, recognised and used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from detector.core import sinks, sources
from detector.core.cli.group import cli
from detector.core.config import reference
from detector.core.config.levels import merge_levels
from detector.core.errors import SourceError, UsageError
from tests.conftest import CHECKOUT

SINK = '''
from detector.core.sinks._rows import RowsSink


class TalliesSink(RowsSink):
    """One line per frame: its index, how many objects, and an option of the configuration."""

    name = "tallies"
    suffixes = (".tallies", ".n")
    order = -1
    options = ("crf", "remark")

    def __init__(self, path, *, crf, remark):
        super().__init__(path)
        self._crf = crf

    def rows(self, frame, detections):
        return f"{frame.index} {len(detections)} crf={self._crf}\\n"
'''

SOURCE = '''
from fractions import Fraction

import numpy as np

from detector.core.sources.base import ReadCounts, Source
from detector.core.types import Frame, SourceInfo


class GreySource(Source):
    """N grey pictures of 64x48 for the spec grey:N."""

    decoder = "none"

    @classmethod
    def claims(cls, spec):
        return spec.startswith("grey:")

    @classmethod
    def open(cls, spec, *, decoder, stride, frames):
        return cls(spec)

    def __init__(self, spec):
        self.counts, self.notes, self._next = ReadCounts(), [], 0
        self._count = int(spec.removeprefix("grey:"))
        self.info = SourceInfo(spec, "video", 64, 48, Fraction(25), Fraction(1, 25))

    def read(self, into=None):
        if self._next == self._count:
            return None
        self._next += 1
        n = self._next - 1
        return Frame(n, n, n / 25, np.full((48, 64, 3), 128, np.uint8))
'''


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "added"
    for package, name, text in ((sinks, "tallies", SINK), (sources, "grey", SOURCE)):
        place = folder / package.__name__.rpartition(".")[2]
        place.mkdir(parents=True)
        (place / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(place)])
        # Imported once, the module stays in sys.modules: each test imports its own.
        monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(cli, [*arguments, "--engine", "null", "--json"])
    assert result.exit_code == 0, result.output
    summary: dict[str, object] = json.loads(result.stdout)
    return summary


def test_both_are_listed_and_offered(added: Path) -> None:
    assert "tallies" in sinks.names()
    assert "grey" in sources.names()
    assert merge_levels(("f.yaml", {"save": "tallies"})).output.save == ("tallies",)
    with pytest.raises(UsageError, match="tallies"):
        merge_levels(("f.yaml", {"save": "nothing"}))


def test_they_change_the_generated_texts_that_contributing_names(added: Path) -> None:
    made = reference.default_yaml(), reference.options_table(), reference.python_types()
    assert ["tallies" in text for text in made] == [True, True, False]
    assert made[0].count("grey") == (CHECKOUT / "cfg/default.yaml").read_text().count("grey")


def test_a_run_from_the_new_source_into_the_new_sink(added: Path) -> None:
    summary = run("grey:3", "--save", "tallies,jsonl", "--crf", "30")
    outputs = summary["outputs"]
    assert isinstance(outputs, dict)
    assert list(outputs) == ["tallies", "jsonl"]  # in the order that the sinks declare
    lines = Path(outputs["tallies"]).read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert all(line.endswith("crf=30") for line in lines)


def test_its_suffix_is_known_to_output(added: Path) -> None:
    assert run("grey:2", "-o", "x.n")["outputs"] == {"tallies": "x.n"}
    assert (added / "x.n").read_text().count("\n") == 2


def test_a_class_that_is_not_called_as_its_file_is_named(added: Path) -> None:
    (added / "added/sinks/tallies.py").write_text(SINK.replace("TalliesSink", "TALLIESSink"))
    result = CliRunner().invoke(cli, ["grey:2", "--engine", "null", "-o", "x.n"])
    assert result.exit_code == 1
    assert re.match(r"detect-video: \S+tallies\.py: has no TalliesSink", result.output)


def test_a_source_is_claimed_before_it_is_refused(added: Path) -> None:
    assert sources.find_claiming("grey:1").__name__ == "GreySource"
    assert sources.find_claiming("rtsp://camera/?a").__name__ == "LiveSource"
    with pytest.raises(SourceError, match="no such file"):
        sources.find_claiming("gray.x")


def test_what_is_there_declares_itself() -> None:
    kinds = [sources.find(name) for name in sources.names()]
    assert all(set(kind.gives) <= {"bgr", "yuv420p"} and "bgr" in kind.gives for kind in kinds)
    known = [*("counts", "csv", "events", "jsonl", "mot", "coco", "player", "crops", "tracks")]
    known += [*("yolo", "pictures", "video", "overlay")]
    assert [sink.name for sink in sinks.find_all() if sink.name in known] == known


@pytest.mark.slow
def test_listing_and_declaring_import_no_heavy_library() -> None:
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
