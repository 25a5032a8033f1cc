"""Few source files read the options of a run, and they do so before its loop starts."""

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

# Limits for a run on a video, and for a run on a camera (``_LIVE``). ``FILES``: how many source
# files may read options. ``RETURNS``: how often a file may read options again after another file
# has. Most returns happen while the engine is chosen and the options that are ``auto`` are set.
FILES, RETURNS = 15, 9
FILES_LIVE, RETURNS_LIVE = 20, 13
# Record each read as (source file, whether the loop had begun). Reads in core/config/, which copies
# and documents all options, do not count.
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
def write_reads():
    with open(os.environ["READS_FILE"], "w") as out:
        json.dump(reads, out)
atexit.register(write_reads)
from detector.__main__ import main
main()
"""


class Reads(NamedTuple):
    """Files that read options: before the loop (``turns``, in order), and during it (``late``)."""

    turns: list[str]
    late: set[str]

    @property
    def files(self) -> set[str]:
        return set(self.turns)

    @property
    def returns(self) -> int:
        return len(self.turns) - len(self.files)


def reads_of(folder: Path, *words: str) -> Reads:
    output = folder / "reads.json"
    env = {**os.environ, "CHECKOUT": str(CHECKOUT), "PYTHONPATH": str(CHECKOUT)}
    env["READS_FILE"] = str(output)
    command = [sys.executable, "-c", READS, *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reads = json.loads(output.read_text())
    early = [file for file, begun in reads if not begun]
    return Reads([file for file, _ in itertools.groupby(early)], {f for f, begun in reads if begun})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "files", "returns"),
    [((), FILES, RETURNS), (("--loop", "--frames", "8"), FILES_LIVE, RETURNS_LIVE)],
    ids=["file", "camera"],
)
def test_few_files_read_options_and_only_before_the_loop(
    tmp_path: Path, words: tuple[str, ...], files: int, returns: int
) -> None:
    write_video(tmp_path / "in.mp4", 12)
    reads = reads_of(tmp_path, "in.mp4", "--engine", "ort", *words)
    assert reads.late == set(), "options were read during the loop"
    assert len(reads.files) <= files, sorted(reads.files)
    assert reads.returns <= returns, reads.turns
    assert "core/run/reading.py" in reads.files, "no reads were recorded"
