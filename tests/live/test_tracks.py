"""Test --save tracks for cameras: folders per day, restarts and unwritable folders."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.run.plan import PlanDraft
from detector.live.options import LiveOptions
from detector.live.tracks import CameraTracks
from tests.live.streams import START_S, camera, frame_at, one_detection
from tests.waiting import PATIENCE_S

DAY_S = 86_400


@pytest.fixture(autouse=True)
def time_to_write(monkeypatch):
    monkeypatch.setattr("detector.live.tracks.CLOSE_S", PATIENCE_S)


def tracked(track: int):
    return replace(one_detection(), track_ids=np.array([track]))


def read_rows(folder: Path) -> dict[str, list[str]]:
    files = {}
    for rows in sorted(folder.glob("yard/tracks/*/tracks.jsonl")):
        lines = [json.loads(line) for line in rows.read_text().splitlines()]
        assert {line["file"] for line in lines} <= {path.name for path in rows.parent.iterdir()}
        files[rows.parent.name] = [line["file"] for line in lines]
    return files


def test_each_day_has_a_folder_and_restarts_add_to_it(tmp_path, notices):
    for _ in range(2):
        tracks = CameraTracks(tmp_path, camera(), notices.append)
        tracks.write(frame_at(1, 0.0), tracked(1))
        tracks.write(frame_at(2, 0.1), tracked(1))
        tracks.write(frame_at(3, DAY_S), tracked(1))  # ids start again on the next day
        tracks.close()
        assert dict(tracks.counts()) == {"written": 2, "lost": 0}
    both = ["000001-person.jpg", "000001-person-2.jpg"]
    assert read_rows(tmp_path) == {"2026-01-31": both, "2026-02-01": both}
    assert notices == []


def test_unwritable_tracks_are_counted_and_reported_once(tmp_path, notices):
    tracks = CameraTracks(tmp_path, camera(), notices.append)
    (tmp_path / "yard").mkdir()
    (tmp_path / "yard/tracks").write_text("in the way")
    tracks.write(frame_at(1, 0.0), tracked(1))
    tracks.write(frame_at(2, 10.0), tracked(2))
    tracks.close()
    assert dict(tracks.counts()) == {"written": 0, "lost": 2}
    assert len(notices) == 1


def test_clock_jump_ends_no_track(tmp_path):
    tracks = CameraTracks(tmp_path, camera(), print)
    for at, ahead_s in ((0.0, 0.0), (0.5, 3600.0), (1.0, 3600.0)):
        tracks.write(frame_at(1, at, utc_s=START_S + at + ahead_s), tracked(1))
    tracks.close()
    (row,) = (tmp_path / "yard/tracks/2026-01-31/tracks.jsonl").read_text().splitlines()
    times = [json.loads(row)[f"{which}_utc"] for which in ("first", "last")]
    assert times == ["2026-01-31T13:00:00.000Z", "2026-01-31T13:00:01.000Z"]


@pytest.mark.parametrize(
    ("save", "expected"),
    [(("tracks",), True), (("tracks", "csv"), None), (None, False), ((), False)],
)
def test_cameras_accept_no_save_format_except_tracks(save, expected):
    draft = PlanDraft.of(Config().with_options({"save": save}))
    if expected is None:
        with pytest.raises(UsageError):
            LiveOptions.of(["rtsp://x"], draft)
    else:
        assert LiveOptions.of(["rtsp://x"], draft).tracks is expected
