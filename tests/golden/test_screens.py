"""The shape of ten commands' output at 80 columns, with all measured values masked.

``python -m tests.golden.test_screens [NAME...]`` rewrites the recordings.
"""

import re
import sys
import tempfile
from pathlib import Path

import pytest

from detector.core.engines import names
from tests.cli.command import detect_video
from tests.golden.inputs import put

WIDTH = 80
SCREENS = Path(__file__).with_name("screens")
DOTS = ("--model", "dots.onnx", "--engine", "ort", "--engines-dir", "engines")
RUN = ("clip.mkv", *DOTS, "--frames", "6")
# Name of a screen -> commands to run in a folder with clip.mkv, videos/clip.mkv and dots.onnx.
COMMANDS = {
    "run": [RUN],
    "output": [(*RUN, "-o", "out.mp4"), (*RUN, "-o", "out.mp4")],
    "save": [(*RUN, "--save", "csv,coco", "--no-video")],
    "live": [("clip.mkv", *DOTS, "--loop", "--duration", "1")],
    "batch": [("batch", "videos", *DOTS, "--frames", "6", "-o", "out", "--no-video")],
    "compare": [("compare", *RUN[:3], "--engine", "ort,null", *RUN[5:], "--rounds", "1", "-q")],
    "profile": [("profile", *RUN, "--only", "loop", "--no-video")],
    "report": [RUN, ("report",)],
    "tune": [("tune", "clip.mkv", *DOTS, "--seconds", "5", "-q")],
    "doctor": [("doctor", "--quick", "--engines-dir", "engines")],
}
# For these commands we compare only the words, since the width of measured numbers decides which
# columns a table has and where it wraps. The words also depend on timing and load, so a new word
# passes if it occurs in the program's source. The halves of a word broken at a line end do not.
TABLES = ("live", "batch", "compare", "profile", "tune")
LETTERS = re.compile(r"[A-Za-z]+")
# A line break in the list of stages: a slow stage makes the list longer, so that it wraps.
FOLD = re.compile(r"(?<=\.\d) *\n +(?=[a-z]+ \d)")
PACKAGE = Path(__file__).parents[2] / "detector"
MISSING_SHARE = 0.4  # share of words that may be missing: columns and notes on noise may be absent
OPTIONAL_STARTS = ("warning", "Other programs")  # beginnings of optional lines
MASKS = [
    (r"[█░]+", "BAR"),
    (r"─+", "-"),
    (r"[+-]?\d[\d,]*(\.\d+)?", "0"),
    (r"0(:0)+", "0"),
    (r"   <- \w+ limits this run", ""),
    (r"[ \t]+", " "),
    (r"^ ?worker\S* BAR", "0 workers BAR"),  # one worker may have processed all of the few frames
]


def run(name: str, folder: Path) -> str:
    (folder / "videos").mkdir()
    for one in ("clip.mkv", "dots.onnx"):
        put(one, folder)
    (folder / "videos/clip.mkv").write_bytes((folder / "clip.mkv").read_bytes())
    environment = {"COLUMNS": str(WIDTH), "XDG_CACHE_HOME": str(folder / "cache")}
    for argv in COMMANDS[name]:
        done = detect_video(*argv, cwd=folder, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shape_of(text: str, name: str) -> list[str]:
    if name == "doctor":
        return sorted({line.split()[0] for line in text.splitlines() if line.split()} & {*names()})
    lines = []
    for line in FOLD.sub(" ", text).splitlines():
        for pattern, mask in MASKS:
            line = re.sub(pattern, mask, line)
        if line.strip() and not line.startswith(OPTIONAL_STARTS):
            lines.append(line.strip())
    return sorted({word for line in lines for word in line.split()}) if name in TABLES else lines


def words_of_the_program() -> set[str]:
    texts = (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    return {word for text in texts for word in LETTERS.findall(text)}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_screen_equals_the_recording(name: str, tmp_path: Path) -> None:
    text = run(name, tmp_path)
    assert max(map(len, text.splitlines())) <= WIDTH
    recorded = (SCREENS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    now = shape_of(text, name)
    if name not in TABLES:
        assert now == recorded
        return
    assert len({*recorded} - {*now}) <= MISSING_SHARE * len(recorded)
    new = {part for word in {*now} - {*recorded} for part in LETTERS.findall(word)}
    assert new <= words_of_the_program()


def main(chosen: list[str]) -> None:
    SCREENS.mkdir(exist_ok=True)
    for name in chosen or COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            text = run(name, Path(folder))
        print(f"== {name}: {max(map(len, text.splitlines()))} columns\n{text}")
        shape = "\n".join([*shape_of(text, name), ""])
        (SCREENS / f"{name}.txt").write_text(shape, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
