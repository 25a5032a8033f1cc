"""Folders of cameras: who holds one, and links that lie in them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from detector.core.errors import OutputError
from detector.core.errors.writing import take_lock
from detector.core.types import Detections
from detector.live import camera_folder
from detector.live.base import Event
from detector.live.events.days import EventDays
from detector.live.events.snapshots import Snapshots
from detector.live.recording import CameraRecorder
from detector.live.recording.names import finish_leftovers
from detector.live.rows import CameraRows
from detector.live.zone_rows import _CountRows
from tests.live.streams import START_S, camera, frame_at
from tests.live.wishes import Wish

Said = Callable[[str], None]
EVENT = Event("appears", "yard", START_S, START_S, "person", 1)


def write_rows(out: Path, said: Said) -> None:
    rows = CameraRows(out, camera(), said)
    rows.write(frame_at(0, 0), Detections.empty())
    rows.close()


def write_counts(out: Path, said: Said) -> None:
    _CountRows(out, camera(), said).add(("yard",), START_S)


def write_event(out: Path, said: Said) -> None:
    days = EventDays(out, complain=said)
    days.tell(EVENT)
    days.close()


def write_snapshot(out: Path, said: Said) -> None:
    snapshots = Snapshots(out, said)
    snapshots.add_to(EVENT, np.zeros((8, 8, 3), np.uint8))
    snapshots.close()


def record(out: Path, said: Said) -> None:
    CameraRecorder(out, camera(), Wish(), said).close()


@pytest.mark.parametrize(
    ("write", "link", "to"),
    [
        (write_rows, "yard/detections-2026-01-31.jsonl", "mine/notes.txt"),
        (write_rows, "yard", "mine"),
        (write_counts, "yard/zone-counts-2026-01-31.csv", "mine/notes.txt"),
        (write_event, "yard/events-2026-01-31.jsonl", "mine/notes.txt"),
        (write_snapshot, "yard/snapshots", "mine"),
        (record, "yard/video", "mine"),
        (record, "yard", "mine"),
    ],
    ids=["rows", "camera", "counts", "events", "snapshots", "video", "camera of a recording"],
)
def test_no_output_follows_a_link(tmp_path, write, link, to):
    mine, said = tmp_path / "mine", []
    mine.mkdir()
    (mine / "notes.txt").write_text("one\ntwo")
    (tmp_path / "out" / link).parent.mkdir(parents=True)
    (tmp_path / "out" / link).symlink_to(tmp_path / to)
    try:
        write(tmp_path / "out", said.append)
    except OutputError as error:
        said.append(str(error))
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    assert (mine / "notes.txt").read_text() == "one\ntwo"
    assert "is a link" in said[0]


def test_rows_of_today_that_are_a_link_end_the_run_at_once(tmp_path):
    (tmp_path / "yard").mkdir()
    for days in (0, 1):  # midnight may come
        day = (datetime.now(UTC) + timedelta(days)).date()
        (tmp_path / "yard" / f"detections-{day}.jsonl").symlink_to(tmp_path / "notes.txt")
    with pytest.raises(OutputError, match="is a link"):
        CameraRows(tmp_path, camera(), print)
    assert not (tmp_path / "notes.txt").exists()


def test_a_folder_that_another_run_takes_back_before_the_lock_is_made_again(tmp_path, monkeypatch):
    taken = []

    def take_back_first(file: int) -> bool:
        if not taken:
            taken.append((tmp_path / "yard").rmdir())
        return take_lock(file)

    monkeypatch.setattr(camera_folder, "take_lock", take_back_first)
    first = CameraRows(tmp_path, camera(), print)
    with pytest.raises(OutputError, match="another run"):
        CameraRows(tmp_path, camera(), print)
    first.close()


def test_a_recording_that_is_being_written_is_not_one_that_a_killed_run_left(tmp_path):
    living = tmp_path / "20260131T120000Z.partial.mp4"
    with living.open("wb") as file:
        assert take_lock(file.fileno())
        assert finish_leftovers(tmp_path) == []
        assert living.exists()
    assert len(finish_leftovers(tmp_path)) == 1
