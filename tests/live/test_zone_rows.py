"""Events and counts of a camera's lines and zones, in files of the day."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from detector.core.types import Detections, Scene, ZoneCount, ZoneEvent
from detector.live.zone_rows import ZoneRows
from tests.live.streams import camera, frame_at


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


def test_a_run_goes_on_in_the_file_of_the_day(tmp_path: Path) -> None:
    for number in range(2):
        rows = ZoneRows(tmp_path, camera(), lambda line: None)
        frame = frame_at(number, float(number))
        rows.write(frame, seen("gate", Book("gate"), frame.time_s))
        rows.close()
    (path,) = (tmp_path / "yard").glob("zone-events*")
    assert len(read(path)) == 4
    assert read(path)[0]["class"] != "=person", "no formula of a spreadsheet"
    assert path.read_text().count("time_utc") == 1
    assert sum(rows.counts()[what] for what in ("written", "lost")) == 3
    with path.open("a") as file:
        file.write("cut by a ki")
    rows = ZoneRows(tmp_path, camera(), lambda line: None)
    frame = frame_at(3, 3.0)
    rows.write(frame, seen("gate", Book("gate"), frame.time_s))
    rows.close()
    assert "cut by" not in path.read_text()
