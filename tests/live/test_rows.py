"""Test rows of cameras: days, restarts, kills and full disks, on clocks that the test sets."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from detector.core.errors import OutputError
from detector.core.sinks.jsonl import JsonlSink
from detector.core.types import Detections, SourceInfo
from detector.live.rows import CameraRows
from tests.live.fake_feeds import Clock
from tests.live.streams import NS, START_S, camera, frame_at, one_detection


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_row_of_a_camera_has_four_additional_fields(tmp_path: Path, notices: list[str]) -> None:
    clock = Clock(0)
    rows = CameraRows(tmp_path, camera(), notices.append, clock=clock)
    info = SourceInfo("rtsp://yard.example/1", "live", 8, 8, Fraction(25), Fraction(1, 90000))
    frame = frame_at(7, 1.25, epoch=3)
    frame.source = info
    clock.now = 1_250_000_000 + 31_500_000
    rows.write(frame, one_detection())
    rows.close()
    (written,) = read(tmp_path / "yard" / "detections-2026-01-31.jsonl")
    sink = JsonlSink(tmp_path / "as_a_file.jsonl")
    sink.open(info)
    sink.write(frame, one_detection())
    (expected,) = read(sink.close())
    more = {"camera": "yard", "epoch": 3, "time_utc": "2026-01-31T12:00:01.250Z", "age_ms": 31.5}
    assert written == expected | more
    assert notices == []


def test_rows_of_wrong_clocks_get_a_valid_day(tmp_path: Path, notices: list[str]) -> None:
    rows = CameraRows(tmp_path, camera(), notices.append, clock=Clock(0))
    for number, utc_s in enumerate((START_S, -5.0, 1e18)):
        rows.write(frame_at(number, 0, utc_s=utc_s), Detections.empty())
    assert rows.counts()["written"] == 3
    rows.close()
    names = sorted(path.name[11:21] for path in (tmp_path / "yard").glob("detections-*"))
    assert names == ["1970-01-01", "2026-01-31", "9999-12-31"]


@pytest.mark.parametrize(
    ("left", "complete", "reported"),
    [
        (b'{"a":1}\n{"b":2}\n', 2, 0),
        (b'{"a":1}\n{"b":2}', 2, 0),  # only the newline is missing
        (b'{"a":1}\n{"b":', 1, 1),
        (b'{"a":1}\n' + b'{"b":"' + b"x" * 200_000, 1, 1),  # longer than one read
        (b'{"a', 0, 1),
        (b"", 0, 0),
    ],
)
def test_file_cut_by_a_kill_is_repaired(
    tmp_path: Path, notices: list[str], left: bytes, complete: int, reported: int
) -> None:
    path = tmp_path / "yard" / "detections-2026-01-31.jsonl"
    path.parent.mkdir()
    path.write_bytes(left)
    rows = CameraRows(tmp_path, camera(), notices.append, clock=Clock(0))
    rows.write(frame_at(5, 0), Detections.empty())
    rows.close()
    written = read(path)
    assert len(written) == complete + 1
    assert written[-1]["frame"] == 5
    assert len(notices) == reported


def test_every_row_is_written_immediately(tmp_path: Path, notices: list[str]) -> None:
    rows = CameraRows(tmp_path, camera(), notices.append, clock=Clock(0))
    for number in range(3):
        rows.write(frame_at(number, 0), one_detection())
        assert len(read(tmp_path / "yard" / "detections-2026-01-31.jsonl")) == number + 1


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes, as if the disk were full (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_loses_rows_until_there_is_room(tmp_path: Path, notices: list[str]) -> None:
    clock = Clock(0)
    rows = CameraRows(tmp_path, camera(), notices.append, clock=clock)
    with limit_file_size(1000):
        for number in range(20):
            rows.write(frame_at(number, 0), one_detection())
        clock.now += 2 * NS
        rows.write(frame_at(20, 0), one_detection())  # the retry fails, too
    kept = rows.counts()["written"]
    assert 0 < kept < 5
    assert rows.counts()["lost"] == 21 - kept
    assert (len(notices), rows.paused) == (1, True)
    clock.now += 2 * NS
    for number in range(21, 25):
        rows.write(frame_at(number, 0), one_detection())
    assert (len(notices), rows.paused) == (2, False)
    rows.close()
    written = read(tmp_path / "yard" / "detections-2026-01-31.jsonl")
    assert [row["frame"] for row in written] == [*range(kept), *range(21, 25)]


def test_removed_file_or_folder_is_created_again(tmp_path: Path, notices: list[str]) -> None:
    clock = Clock(0)
    rows = CameraRows(tmp_path, camera(), notices.append, clock=clock)
    path = tmp_path / "yard" / "detections-2026-01-31.jsonl"
    rows.write(frame_at(0, 0), Detections.empty())
    os.rename(path, tmp_path / "rotated")
    clock.now += 2 * NS
    rows.write(frame_at(1, 0), Detections.empty())
    path.unlink()
    path.parent.rmdir()
    clock.now += 2 * NS
    rows.write(frame_at(2, 0), Detections.empty())
    with pytest.raises(OutputError, match="another run"):
        CameraRows(tmp_path, camera(), notices.append)
    rows.close()
    assert [row["frame"] for row in read(path)] == [2]
    assert rows.counts()["lost"] == 0
