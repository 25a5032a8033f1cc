"""Times per picture: -v prints a line for each picture, and --save-times adds fields to rows."""

import csv
import json
import re
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
from rich.cells import cell_len

from detector.core import sinks
from detector.core.config.levels import resolve_config
from detector.core.config.schema import OutputConfig
from detector.core.errors import UsageError
from detector.core.run.detect import detect
from detector.core.run.outputs import OutputPlan
from detector.core.run.plan import PlanDraft
from detector.core.terminal.pictures import PictureLines, picture_line
from detector.core.types import Detections, Frame, FrameTimes, SourceInfo
from tests.cli.command import detect_video
from tests.covering import covering

NAMES = ("person", "bus", "a class with a name that is much longer than most names are")


def picture_frame(
    name: str, counts: list[int], times: FrameTimes | None
) -> tuple[Frame, Detections]:
    ids = np.repeat(np.arange(len(counts)), counts)
    boxes, scores = np.zeros((len(ids), 4), np.float32), np.ones(len(ids), np.float32)
    frame = Frame(0, 0, 0.0, np.zeros((1080, 810, 3), np.uint8), f"/p/{name}", name=name)
    frame.times = times
    return frame, Detections(boxes, scores, ids, NAMES)


def times(batch: int = 1) -> FrameTimes:
    return FrameTimes((640, 480), batch, {"preprocess": 1.24, "infer": 24.91, "nms": 0.5})


def test_line_has_the_sizes_the_objects_and_the_times() -> None:
    line = picture_line(*picture_frame("bus.jpg", [4, 1], times()))
    for part in ("bus.jpg ", " 810x1080 ", " 480x640", "4 persons, 1 bus", "1.2", "24.9", "0.5"):
        assert part in line
    shared = picture_line(*picture_frame("bus.jpg", [4, 1], times(4)))
    assert "1/4 of 99.6" in shared
    unmeasured = picture_line(*picture_frame("bus.jpg", [4, 1], None))
    assert "480x640" not in unmeasured
    assert "4 persons, 1 bus" in unmeasured


def test_pictures_have_lines_and_frames_of_a_video_have_none() -> None:
    printed: list[str] = []
    lines = PictureLines(None, printed.append)
    for name in ("a.jpg", "b.jpg"):
        lines(*picture_frame(name, [1], times()))
        frame, found = picture_frame("c.jpg", [1], times())
        frame.path = None  # as for a frame of a video
        lines(frame, found)
    assert [line.split(" ")[0] for line in printed] == ["picture,", "a.jpg", "b.jpg"]


@pytest.mark.parametrize(
    ("name", "counts", "batch"),
    covering(
        ["b.jpg", "long" * 30, "视频" * 30, "a\x1b[2Jb.jpg"],
        [[0, 0, 0], [1, 0, 0], [4, 1, 0], [4, 1, 12], [0, 0, 300]],
        [1, 16],
    ),
)
def test_line_fits_80_columns(name: str, counts: list[int], batch: int) -> None:
    line = picture_line(*picture_frame(name, counts, times(batch)))
    assert cell_len(line) <= 80
    assert "\x1b" not in line


# ----------------------------------------------------------------------
# Runs.


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    (tmp_path / "shots").mkdir()
    for at, size in enumerate([(64, 48), (48, 64), (90, 30), (64, 48), (20, 20)]):
        cv2.imwrite(str(tmp_path / f"shots/{at}.png"), np.full((*size, 3), 90, np.uint8))
    return tmp_path / "shots"


@pytest.mark.slow
def test_verbose_prints_a_line_per_picture_to_stderr(shots: Path, tmp_path: Path) -> None:
    common = [shots, "--engine", "null", "--no-video", "--save", "jsonl,csv"]
    verbose = detect_video(*common, "-v", "-o", "a/", cwd=tmp_path)
    quiet = detect_video(*common, "-v", "-q", "-o", "b/", cwd=tmp_path)
    assert (verbose.returncode, quiet.returncode, quiet.stderr) == (0, 0, "")
    lines = verbose.stderr.splitlines()
    assert [line.split()[0] for line in lines[-5:]] == [f"{at}.png" for at in range(5)]
    spent = re.compile(r"; [0-9.]+ \+ [0-9.]+ \+ [0-9.]+ ms$")
    assert all(map(spent.search, lines[-5:])), lines
    assert len(lines) == 6
    for name in ("shots-null-detected.jsonl", "shots-null-detected.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert b"_ms" not in (tmp_path / "a" / name).read_bytes()


@pytest.mark.parametrize("sync", [False, True])
def test_rows_have_the_times_of_their_pictures(shots: Path, tmp_path: Path, sync: bool) -> None:
    flags = {"engine": "null", "batch": 2, "sync": sync, "no_video": True, "save_times": True}
    where = {"save": ["jsonl", "csv"], "output": f"{tmp_path}/o/", "run_dir": f"{tmp_path}/run"}
    result = detect([str(shots)], resolve_config(None, {**flags, **where}))
    assert result.exit_code == 0
    text = Path(result.summary.each[0].outputs["jsonl"]).read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row.get("batch") for row in rows] == [2, 2, 2, 2, None]
    for row in rows:
        assert list(row["times_ms"]) == ["read", "preprocess", "infer", "head", "nms"]
    infer = [row["times_ms"]["infer"] for row in rows]
    assert (infer[0], infer[2]) == (infer[1], infer[3])
    # The times add up to the stage's time in the summary, except for rounding to microseconds.
    assert sum(infer) == pytest.approx(1e3 * result.summary.stages["infer"].busy_s, abs=0.005)
    with open(result.summary.each[0].outputs["csv"], newline="") as file:
        head = next(csv.reader(file))
    assert head[-7:] == [*(f"{stage}_ms" for stage in (*rows[0]["times_ms"], "annotate")), "batch"]


def test_csv_times_are_in_the_right_columns(tmp_path: Path) -> None:
    frame, found = picture_frame("a.jpg", [2], times(4))
    sink = sinks.open("csv", tmp_path / "x.csv", save_times=True, tracks=True)
    sink.open(SourceInfo("p", "pictures", 8, 8, Fraction(1), Fraction(1)))
    sink.write(frame, found)
    sink.close()
    with open(tmp_path / "x.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row in rows:
        assert (row["preprocess_ms"], row["infer_ms"], row["nms_ms"]) == ("1.24", "24.91", "0.5")
        assert (row["read_ms"], row["annotate_ms"], row["track"], row["batch"]) == ("", "", "", "4")


@pytest.mark.parametrize(
    "options", [{"save": ("pictures",)}, {"output": "x.mp4", "save": ("video",)}]
)
def test_save_times_requires_an_output_with_rows(options: dict) -> None:
    OutputPlan(OutputConfig(save_times=True), ["in.mp4"])
    OutputPlan(OutputConfig(save_times=True, output="x.csv"), ["in.mp4"])
    OutputPlan(OutputConfig(save_times=True, save=("pictures", "csv")), ["a.jpg"])
    with pytest.raises(UsageError, match="--save-times"):
        OutputPlan(OutputConfig(save_times=True, **options), ["in.mp4"])


def test_save_times_requires_instruments() -> None:
    with pytest.raises(UsageError, match="--save-times"):
        PlanDraft.of(resolve_config(None, {"save_times": True, "instruments": False}))
