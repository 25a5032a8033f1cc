"""The options of a run are read at its door: by few files, each at its turn, and never later."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import CHECKOUT
from tests.sources.clips import write_video

# The most files that may read options, for a run of one video and for one of cameras, and how often
# a file may read options again after another file did. The rest is the choice of the engine, which
# rewrites options that say ``auto``.
FILES, RETURNS = 18, 12
FILES_LIVE, RETURNS_LIVE = 21, 13
# Notes each read as (file, whether the loop had begun). Copying or documenting all options with
# dataclasses does not count.
READS = """
import atexit, dataclasses, json, os, sys
from detector.core.config import schema
from detector.core.run.looping import Loop

reads, package = [], os.path.join(os.environ["CHECKOUT"], "detector", "")
begun = False

def read(self, name, plain=object.__getattribute__):
    if name in type(self).__dataclass_fields__:
        file = sys._getframe(1).f_code.co_filename
        if file.startswith(package) and not file.startswith(package + "core/config/"):
            reads.append((file.removeprefix(package), begun))
    return plain(self, name)

for group in dataclasses.fields(schema.Config):
    type(group.default).__getattribute__ = read

def frames(self, *given, plain=Loop.frames):
    global begun
    begun = True
    return plain(self, *given)

Loop.frames = frames
def tell():
    with open(os.environ["TOLD"], "w") as out:
        json.dump(reads, out)
atexit.register(tell)
from detector.__main__ import main
main()
"""


class Reads(NamedTuple):
    """``turns``: the files that read options, each as often as it came to read some."""

    turns: list[str]
    late: set[str]

    @property
    def files(self) -> set[str]:
        return set(self.turns)

    @property
    def returns(self) -> int:
        return len(self.turns) - len(self.files)


def reads_of(folder: Path, *words: str) -> Reads:
    told = folder / "told.json"
    env = {**os.environ, "CHECKOUT": str(CHECKOUT), "TOLD": str(told), "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-c", READS, *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reads = json.loads(told.read_text())
    early = [file for file, begun in reads if not begun]
    return Reads([file for file, _ in itertools.groupby(early)], {f for f, begun in reads if begun})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "files", "returns"),
    [((), FILES, RETURNS), (("--loop", "--frames", "8"), FILES_LIVE, RETURNS_LIVE)],
    ids=["file", "camera"],
)
def test_a_run_asks_its_options_once(
    tmp_path: Path, words: tuple[str, ...], files: int, returns: int
) -> None:
    write_video(tmp_path / "in.mp4", 12)
    reads = reads_of(tmp_path, "in.mp4", "--engine", "ort", *words)
    assert reads.late == set(), "no option is read once the loop runs"
    assert len(reads.files) <= files, sorted(reads.files)
    assert reads.returns <= returns, reads.turns
    assert "core/run/reading.py" in reads.files, "the telling works"
