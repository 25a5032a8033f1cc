"""Events and counts of a camera's lines and zones, in files of the day."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from detector.core.types import Detections, Scene, ZoneCount, ZoneEvent
from detector.live.zone_rows import ZoneRows
from tests.live.streams import camera, frame_at

MIDNIGHT_S = 12 * 3600.0  # behind the beginning of tests.live.streams


class Book:
    def __init__(self, name: str) -> None:
        self.name, self.finished = name, 0

    def finish(self) -> tuple[Sequence[ZoneEvent], Sequence[ZoneCount]]:
        self.finished += 1
        return (event(1.0, self.name),), (ZoneCount(0.0, 1.0, self.name, "person", {}, None, None),)


def event(time_s: float, zone: str) -> ZoneEvent:
    return ZoneEvent(time_s, zone, "crosses", "out", "=person", 3, 1.0, 2.0)


def seen(zone: str, book: Book, time_s: float) -> Detections:
    found = Detections.empty()
    found.scene = Scene((), (event(time_s, zone),), (), book)
    return found


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_files_of_the_day_with_their_own_header(tmp_path: Path) -> None:
    rows = ZoneRows(tmp_path, camera(), lambda line: None)
    books = Book("yesterday"), Book("today")
    for at, book in ((0.0, books[0]), (MIDNIGHT_S + 1, books[1])):
        frame = frame_at(1, at)
        rows.write(frame, seen(book.name, book, frame.time_s))
    rows.close()
    rows.close()
    assert (books[0].finished, books[1].finished) == (1, 1)
    names = sorted(path.name for path in (tmp_path / "yard").glob("zone-events*"))
    assert len(names) == 2
    first, second = (read(tmp_path / "yard" / name) for name in names)
    assert first[0]["zone"] == "yesterday"
    assert first[0]["time_utc"].endswith("Z")
    assert first[0]["class"] != "=person", "no formula of a spreadsheet"
    assert second[0]["zone"] == "today"
    counted = [
        row["zone"] for p in sorted((tmp_path / "yard").glob("zone-counts*")) for row in read(p)
    ]
    assert sorted(counted) == ["today", "yesterday"]


def test_a_run_goes_on_in_the_file_of_the_day(tmp_path: Path) -> None:
    for number in range(2):
        rows = ZoneRows(tmp_path, camera(), lambda line: None)
        frame = frame_at(number, float(number))
        rows.write(frame, seen("gate", Book("gate"), frame.time_s))
        rows.close()
    (path,) = (tmp_path / "yard").glob("zone-events*")
    assert len(read(path)) == 4
    assert path.read_text().count("time_utc") == 1
    assert sum(rows.counts()[what] for what in ("written", "lost")) == 3
    with path.open("a") as file:
        file.write("cut by a ki")
    rows = ZoneRows(tmp_path, camera(), lambda line: None)
    frame = frame_at(3, 3.0)
    rows.write(frame, seen("gate", Book("gate"), frame.time_s))
    rows.close()
    assert "cut by" not in path.read_text()
