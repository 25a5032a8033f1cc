"""The index of tracks: which picture of a track is kept, when it is written, and its file name."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from probing import make_frame, open_sink

from detector.core.config.levels import resolve_config
from detector.core.run.detect import detect
from detector.core.sinks import tracks
from detector.core.sinks._best import ENDED_S, LONGEST, BestPictures
from detector.core.types import Detections
from tests.conftest import CHECKOUT

CLIP = CHECKOUT / "videos" / "street.mp4"
SIZE = (200, 300)
NAMES = ("person", "../a/b", "nul", "Person")


def detections_of(*rows, names=NAMES):
    return Detections(
        np.array([row[3:] for row in rows], np.float32).reshape(-1, 4),
        np.array([row[2] for row in rows], np.float32),
        np.array([row[1] for row in rows], np.int64),
        names,
        track_ids=np.array([row[0] for row in rows], np.int64),
    )


def textured(index, level=255, size=SIZE):
    frame = make_frame(index, size=size)
    noise = np.random.default_rng(index).integers(0, 256, size, np.uint8)
    grey = (noise.astype(np.uint16) * level // 255).astype(np.uint8)
    frame.image = np.dstack([grey] * 3)
    return frame


def save(folder, *pairs):
    sink = open_sink("tracks", folder)
    for frame, detections in pairs:
        sink.see(frame.image, detections)
        sink.write(frame, detections)
    sink.close()
    rows = [json.loads(line) for line in (folder / "tracks.jsonl").read_text().splitlines()]
    return sink, rows


BOX = (50, 50, 90, 110)
BEST = [
    ("larger", [(0.9, *BOX), (0.9, 50, 50, 130, 170)], 1),
    ("higher score", [(0.5, *BOX), (0.9, *BOX)], 1),
    ("first of two similar pictures", [(0.9, *BOX), (0.92, *BOX)], 0),
    ("small whole object after a large one that the border cuts",
     [(0.9, 0, 50, 100, 180), (0.4, *BOX)], 1),
    ("small whole object before a large one that the border cuts",
     [(0.4, *BOX), (0.9, 180, 50, 300, 180)], 0),
]  # fmt: skip


@pytest.mark.parametrize(("why", "boxes", "best"), BEST, ids=[row[0] for row in BEST])
def test_best_picture_of_two_is_kept(why, boxes, best, tmp_path):
    pairs = [(textured(i), detections_of((7, 0, *row))) for i, row in enumerate(boxes)]
    _, (row,) = save(tmp_path / "out", *pairs)
    assert row["best_frame"] == best
    assert (row["track"], row["frames"], row["first_frame"], row["last_frame"]) == (7, 2, 0, 1)
    assert row["box"] == list(boxes[best][1:])


def test_sharper_picture_is_kept_if_both_or_neither_are_cut_by_the_border(tmp_path):
    pairs = [(textured(0, level=2), detections_of((1, 0, 0.9, *BOX))),
             (textured(1), detections_of((1, 0, 0.9, *BOX)))]  # fmt: skip
    assert save(tmp_path / "out", *pairs)[1][0]["best_frame"] == 1
    at_border = (0, 50, 40, 110)
    pairs = [(textured(0), detections_of((1, 0, 0.9, *at_border))),
             (textured(1, level=2), detections_of((1, 0, 0.99, *at_border)))]  # fmt: skip
    assert save(tmp_path / "cut", *pairs)[1][0]["best_frame"] == 0


def test_picture_is_cut_out_with_a_margin_before_boxes_are_drawn(tmp_path):
    frame, detections = textured(3), detections_of((12, 0, 0.9, *BOX))
    plain = frame.image.copy()
    sink = open_sink("tracks", tmp_path / "out")
    sink.see(frame.image, detections)
    frame.image[:] = 0
    sink.write(frame, detections)
    sink.close()
    picture = cv2.imread(str(tmp_path / "out/000012-person.jpg"))
    expected = plain[44:116, 46:94]
    assert picture.shape == expected.shape
    assert np.abs(picture.astype(int) - expected).mean() < 30  # JPEG changes noise a lot


def test_file_names_are_safe_and_unique(tmp_path):
    rows = [(1, 0, 0.9, *BOX), (2, 1, 0.9, *BOX), (3, 9, 0.9, *BOX), (-1, 0, 0.9, *BOX)]
    later = detections_of((1, 0, 0.9, *BOX))  # a camera's ids restart at midnight
    _, written = save(tmp_path / "out", (textured(0), detections_of(*rows)), (textured(100), later))
    files = [row["file"] for row in written]
    assert files == ["000001-person.jpg", "000002-_a_b.jpg", "000003-9.jpg", "000001-person-2.jpg"]
    assert sorted(files) == sorted(path.name for path in (tmp_path / "out").glob("*.jpg"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_finished_track_is_returned_and_dropped():
    best, finished, frame = BestPictures(), [], textured(0)
    for index in range(400):  # each track lasts one frame
        finished += best.add(frame, index / 25, detections_of((index + 1, 0, 0.9, *BOX)))
        assert len(best) <= ENDED_S * 25 + 1
    assert len(finished) + len(best.end()) == 400
    assert len(best) == 0


@pytest.mark.parametrize(("time_s", "kind"), [(3.0, 0), (100.1, 1)])
def test_clock_set_back_or_another_class_ends_the_track(time_s, kind):
    best = BestPictures()
    best.add(textured(0), 100.0, detections_of((1, 0, 0.9, *BOX)))
    (finished,) = best.add(textured(1), time_s, detections_of((1, kind, 0.9, *BOX)))
    assert (finished.id, finished.name, finished.frames, len(best)) == (1, "person", 1, 1)


def test_picture_of_a_large_object_is_reduced():
    best = BestPictures()
    best.add(textured(0, size=(1500, 2000)), 0.0, detections_of((1, 0, 0.9, 10, 10, 1990, 1490)))
    (finished,) = best.end()
    assert max(finished.picture.shape) == LONGEST


def test_session_keeps_small_pictures_of_the_longest_tracks(tmp_path, monkeypatch):
    monkeypatch.setattr(tracks, "MOST_SHOWN", 3)
    many = [(track, 0, 0.9, *BOX) for track in (2, 3, 4, 5)]
    pairs = [(textured(0), detections_of((1, 0, 0.9, *BOX)))]
    pairs += [(textured(i), detections_of(*many[: 5 - i])) for i in (1, 2)]
    sink, rows = save(tmp_path / "out", *pairs)
    shown = [json.loads(line) for line in sink.for_session.splitlines()]
    assert len(rows) == 5
    assert [row["track"] for row in shown] == [2, 3, 4]
    small = np.frombuffer(base64.b64decode(shown[0]["jpeg"]), np.uint8)
    assert cv2.imdecode(small, cv2.IMREAD_COLOR) is not None


def test_index_without_tracks_is_empty(tmp_path):
    nothing = replace(detections_of((1, 0, 0.9, *BOX)), track_ids=None)
    sink, rows = save(tmp_path / "out", (textured(0), nothing))
    assert rows == []
    assert sink.for_session == b""


def test_option_save_tracks_turns_tracking_on():
    assert resolve_config(None, {"save": "tracks,csv"}).tracking.track == "bytetrack"
    assert resolve_config(None, {"save": "tracks", "track": "sort"}).tracking.track == "sort"
    assert resolve_config(None, {"save": "csv"}).tracking.track is None


@pytest.mark.slow
def test_index_matches_the_rows_and_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"save": "tracks,jsonl", "output": "out/", "frames": 30, "engine": "ort"}
    result = detect([str(CLIP)], resolve_config(None, settings))
    folder = Path(result.summary.outputs["tracks"])
    rows = [json.loads(line) for line in (folder / "tracks.jsonl").read_text().splitlines()]
    frames = Path(result.summary.outputs["jsonl"]).read_text().splitlines()
    boxes = [box for frame in map(json.loads, frames) for box in frame["detections"]]
    ids = {box["track"] for box in boxes} - {None}
    assert {row["track"] for row in rows} == ids
    assert sum(row["frames"] for row in rows) == sum(box["track"] is not None for box in boxes)
    assert {row["file"] for row in rows} == {path.name for path in folder.glob("*.jpg")}
    stored = (result.session / "tracks/0.jsonl").read_text().splitlines()
    assert {json.loads(line)["track"] for line in stored} == ids
