"""JSONL and CSV: content of the lines, and which lines remain after a kill or on a full disk."""

import csv
import json
import os
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probing import NAMES, make_frame, one_person, open_sink

from detector.core.errors import OutputError
from detector.core.types import Detections


def write_rows(name: str, folder: Path, *written: Any, **info: Any) -> str:
    sink = open_sink(name, folder / "out", **info)
    for frame, detections in written:
        sink.write(frame, detections)
    return sink.close().read_bytes().decode()


def test_json_line_is_exact(tmp_path: Path) -> None:
    """Numbers are rounded: float32 cannot represent 0.91 and 1.234 exactly."""
    assert write_rows("jsonl", tmp_path, (make_frame(0), one_person())) == (
        '{"source":"in.mp4","frame":0,"pts":0,"time_base":"1/12800","time_s":0.0,"detections":'
        '[{"class":"person","class_id":0,"score":0.91,"box":[1.23,2.0,30.5,41.0]}]}\n'
    )


def test_frame_without_detections_has_a_line(tmp_path: Path) -> None:
    text = write_rows(
        "jsonl", tmp_path, (make_frame(7, 3584), Detections.empty()), time_base=Fraction(1)
    )
    assert json.loads(text) == {
        "source": "in.mp4",
        "frame": 7,
        "pts": 3584,
        "time_base": "1/1",
        "time_s": 0.28,
        "detections": [],
    }


def test_numbers_are_short_and_never_minus_zero(tmp_path: Path) -> None:
    boxes = np.array([[-0.001, 1 / 3, 2 / 3, 8191.996]], np.float32)
    detections = Detections(boxes, np.array([0.123456], np.float32), np.array([5]))
    frame = make_frame(1)
    frame.time_s = 1 / 3
    line = write_rows("jsonl", tmp_path, (frame, detections))
    assert '"time_s":0.333333,' in line
    assert '{"class":"5","class_id":5,"score":0.1235,"box":[0.0,0.33,0.67,8192.0]}' in line


def test_nan_raises_and_writes_no_line(tmp_path: Path) -> None:
    sink = open_sink("jsonl", tmp_path / "out")
    with pytest.raises(ValueError, match="JSON"):
        sink.write(make_frame(0), one_person(score=float("nan")))
    assert sink.abort() is None


@pytest.mark.parametrize("raw", ["视频 é.jpg".encode(), b"caf\xe9.jpg", b'new\nline "q", x.jpg'])
def test_any_file_name_round_trips(raw: bytes, tmp_path: Path) -> None:
    """Bytes that are not UTF-8 survive JSON as surrogate escapes."""
    path = os.fsdecode(raw)
    line = write_rows("jsonl", tmp_path, (make_frame(0, path=path), one_person()))
    assert os.fsencode(json.loads(line)["source"]) == raw
    assert line.count("\n") == 1
    (_, row) = csv.reader(
        write_rows("csv", tmp_path, (make_frame(0, path=path), one_person())).splitlines(
            keepends=True
        )
    )
    assert row[0] == path.encode("utf-8", "backslashreplace").decode()


def test_csv_is_exact(tmp_path: Path) -> None:
    two = Detections(
        np.array([[0, 0, 10, 20], [1.234, 2, 3, 4]], np.float32),
        np.array([0.9, 0.5], np.float32),
        np.array([1, 0]),
        NAMES,
    )
    text = write_rows(
        "csv",
        tmp_path,
        (make_frame(0), two),
        (make_frame(1), Detections.empty()),
        (make_frame(2), one_person()),
    )
    assert text.splitlines(keepends=True) == [
        "source,frame,pts,time_s,class,class_id,score,x1,y1,x2,y2\r\n",
        'in.mp4,0,0,0.0,"a ""quoted"", name",1,0.9,0.0,0.0,10.0,20.0\r\n',
        "in.mp4,0,0,0.0,person,0,0.5,1.23,2.0,3.0,4.0\r\n",
        "in.mp4,2,1024,0.08,person,0,0.91,1.23,2.0,30.5,41.0\r\n",
    ]
    assert [row["class"] for row in csv.DictReader(text.splitlines())] == [
        NAMES[1],
        "person",
        "person",
    ]


KILLED = """
import sys
sys.path.insert(0, {here!r})
from probing import make_frame, make_info, one_person
from detector.core import sinks
sink = sinks.open({name!r}, {path!r})
sink.open(make_info())
for i in range(10**9):
    sink.write(make_frame(i), one_person())
    if i == 200:
        print("running", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_kill_9_cuts_at_most_the_last_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"out.{name}"
    code = KILLED.format(here=str(Path(__file__).parent), name=name, path=str(path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        process.send_signal(signal.SIGKILL)
    assert not path.exists()
    lines = (tmp_path / f"out.partial.{name}").read_text().splitlines(keepends=True)
    if not lines[-1].endswith("\n"):
        lines.pop()  # a kill may cut a write between two memory pages
    assert len(lines) > 200
    if name == "jsonl":
        assert [json.loads(line)["frame"] for line in lines] == list(range(len(lines)))
    assert all(line.endswith("\n") for line in lines)
    sink = open_sink(name, path)  # the killed run's lock is gone
    sink.write(make_frame(0), one_person())
    assert len(sink.close().read_text().splitlines()) <= 2


@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_full_disk_keeps_whole_lines(name: str, small_disk: Any) -> None:
    folder = small_disk(16)
    sink = open_sink(name, folder / f"out.{name}")
    written = 0

    def fill() -> None:
        nonlocal written
        for i in range(1000):
            sink.write(make_frame(i), one_person())
            written += 1

    with pytest.raises(OutputError, match="disk full"):
        fill()
    partial = sink.abort()
    assert partial == folder / f"out.partial.{name}"
    lines = partial.read_text().splitlines(keepends=True)
    assert len(lines) == written + (name == "csv")
    assert all(line.endswith("\n") for line in lines)
