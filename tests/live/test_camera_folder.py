"""Test the folders of cameras: a run locks each of them, and no output follows a link."""

from datetime import UTC, datetime, timedelta

import pytest

from detector.core.errors import OutputError
from detector.core.errors.writing import take_lock
from detector.core.types import Detections
from detector.live import camera_folder, rows
from detector.live.base import Event
from detector.live.events.days import EventDays
from detector.live.recording.names import finish_leftovers
from detector.live.recording.recorder import CameraRecorder
from detector.live.rows import CameraRows
from detector.live.zone_rows import _DayCsv
from detector.tracks.counting import ZoneCount
from tests.live.record_settings import RecordSettings
from tests.live.streams import START_S, camera, frame_at

ROWS = f"detections-{datetime.now(UTC).date()}.jsonl"
LATE_ROWS = f"detections-{datetime.now(UTC).date() + timedelta(1)}.jsonl"
COUNT = ZoneCount(0.0, 1.0, "yard", "cat", {"in": 1}, None, None)
OPENERS = {
    "rows": lambda out, say: CameraRows(out, camera(), say),
    "recorder": lambda out, say: CameraRecorder(out, camera(), RecordSettings(), say),
    "counts": lambda out, say: _DayCsv("counts", out, camera(), say),
    "events": lambda out, say: EventDays(out, notice=say),
}
WRITERS = {
    "rows": lambda rows: rows.write(frame_at(0, 0), Detections.empty()),
    "counts": lambda rows: rows.add(COUNT, str, START_S),
    "events": lambda days: days.send(Event("appears", "yard", START_S, START_S)),
}


@pytest.mark.parametrize(
    ("kind", "link", "to"),
    [
        ("rows", "yard/detections-2026-01-31.jsonl", "mine/notes"),
        ("rows", f"yard/{ROWS} yard/{LATE_ROWS}", "mine/notes"),  # the test may run over midnight
        ("rows", "yard", "mine"),
        ("counts", "yard/zone-counts-2026-01-31.csv", "mine/notes"),
        ("events", "yard/events-2026-01-31.jsonl", "mine/notes"),
        ("recorder", "yard/video", "mine"),
        ("recorder", "yard", "mine"),
    ],
    ids=["rows", "rows of today", "folder", "counts", "events", "video", "folder with video"],
)
def test_no_output_follows_a_link(tmp_path, kind, link, to, notices):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("one\ntwo")
    for name in link.split():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).symlink_to(tmp_path / to)
    try:
        opened = OPENERS[kind](tmp_path / "out", notices.append)
        WRITERS[kind](opened)
        opened.close()
    except OutputError as error:
        notices.append(str(error))
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["one\ntwo"]
    assert "is a link" in notices[0]


@pytest.mark.parametrize("kind", ["rows", "recorder"])
def test_folder_is_locked_even_if_another_run_removed_it_first(kind, tmp_path, monkeypatch):
    taken = []

    def remove_folder_first(file):
        if not taken:
            folder = tmp_path / "yard" / ("video" if kind == "recorder" else "")
            taken.append(folder.rmdir())
        return take_lock(file)

    monkeypatch.setattr(camera_folder, "take_lock", remove_folder_first)
    first = OPENERS[kind](tmp_path, print)
    with pytest.raises(OutputError, match="another run"):
        OPENERS[kind](tmp_path, print)
    first.close()
    OPENERS[kind](tmp_path, print).close()


def test_runs_write_separate_rows_if_the_folder_moves_between_their_starts(tmp_path, monkeypatch):
    runs = [OPENERS["rows"](tmp_path, print)]

    def move_once(path, file):
        if len(runs) == 1:
            path.rename(tmp_path / "moved")
            runs.append(OPENERS["rows"](tmp_path, print))
        return True

    monkeypatch.setattr(rows, "is_same_file", move_once)
    for run in runs:
        WRITERS["rows"](run)
        run.close()
    assert [len(path.read_text().splitlines()) for path in tmp_path.glob("*/det*")] == [1, 1]


def test_recording_in_progress_is_not_finished_by_another_run(tmp_path):
    open_recording = tmp_path / "20260131T120000Z.partial.mp4"
    with open_recording.open("wb") as file:
        assert take_lock(file.fileno())
        assert finish_leftovers(tmp_path) == []
        assert open_recording.exists()
    assert len(finish_leftovers(tmp_path)) == 1
