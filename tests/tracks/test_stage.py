"""Test the stage ``track``, alone and in whole runs: ids in every output, cuts, cameras, trails."""

import csv
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from detector import Detector
from detector.core.config.levels import resolve_config
from detector.core.errors import UsageError
from detector.core.run.plan import PlanDraft, resolve
from detector.core.stages import between
from detector.core.stages.annotate import PALETTE, lay_out
from detector.core.stages.annotate import Style as Look
from detector.core.types import Arrival, Detections, Frame, SourceInfo
from detector.tracks.cuts import Cuts
from detector.tracks.stages.track import TrackStage
from detector.tracks.trails import Trails
from tests.cli.command import detect_video
from tests.conftest import CHECKOUT

STREET = str(CHECKOUT / "videos/street.mp4")
INFO = SourceInfo("in.mp4", "video", 640, 360, Fraction(25), Fraction(1, 25))
NAMES = ("person", "vehicle")


def stage(**options: Any) -> TrackStage:
    config = resolve_config(None, {"track": "bytetrack", **options})
    settings = TrackStage.settings(config.as_dict())
    assert settings is not None
    return TrackStage(settings, INFO, NAMES, config.selection.conf)


def frame(index: int, shade: int = 90, camera: str | None = None) -> Frame:
    picture = np.full((360, 640, 3), shade, np.uint8)
    arrival = None if camera is None else Arrival(camera, 1, index, 0.0)
    return Frame(index, index, index / 25, picture, arrival=arrival)


def boxes_with(*scores: float, x: float = 100) -> Detections:
    boxes = np.array([[x + 80 * i, 100, x + 40 + 80 * i, 200] for i in range(len(scores))])
    return Detections(
        boxes.astype(np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.zeros(len(scores), np.int64),
        NAMES,
    )


def ids(detections: Detections) -> list[int]:
    assert detections.track_ids is not None
    return list(detections.track_ids.tolist())


def test_tracking_is_off_by_default() -> None:
    plain = resolve_config(None, {})
    assert between.choose(plain.as_dict()) == ()
    assert PlanDraft.of(plain).writing["tracks"] is False
    options = resolve_config(None, {"track": "sort"}).as_dict()
    assert [stage.name for stage in between.choose(options)] == ["track"]


def test_boxes_with_low_scores_reach_only_the_tracker() -> None:
    track = stage()
    ends = [track(frame(i), boxes_with(0.9, 0.15 if 5 <= i < 10 else 0.8)) for i in range(15)]
    assert [len(end) for end in ends] == [2] * 5 + [1] * 5 + [2] * 5
    assert ids(ends[4]) == ids(ends[14]) == [1, 2]
    assert track.close() == ["in.mp4: 2 tracks"]


def test_head_keeps_boxes_down_to_the_threshold_of_the_tracker() -> None:
    """With ByteTrack, the head returns boxes that score 0.1 or more; other trackers use --conf."""
    for track, lowest in (("bytetrack", 0.1), ("sort", 1.0)):
        (choice,) = between.choose(resolve_config(None, {"track": track}).as_dict())
        assert choice.kind.lowest_conf(choice.settings) == lowest
    thresholds: list[float] = []
    plan = resolve(resolve_config(None, {"engine": "null", "conf": 0.4}))
    plan.network.head, head = lambda outputs, conf: thresholds.append(conf), plan.network.head  # type: ignore[assignment,func-returns-value]
    try:
        for lowest in (1.0, 0.1):
            plan.stages(lowest)[1]([])
    finally:
        plan.network.head = head
    assert thresholds == [0.4, 0.1]


def test_a_cut_ends_the_tracks() -> None:
    track = stage()
    for i in range(5):
        before = track(frame(i), boxes_with(0.9))
    for i in range(5, 10):
        after = track(frame(i, shade=200), boxes_with(0.9))
    assert (ids(before), ids(after)) == ([1], [2])


@pytest.mark.parametrize(("share", "cut"), [(0.2, False), (0.3, True)])
def test_change_of_a_quarter_of_the_picture_is_a_cut(share: float, cut: bool) -> None:
    cuts, after = Cuts(), frame(1)
    after.image[:, : int(share * 640)] = 255
    assert [cuts.is_cut(frame(0)), cuts.is_cut(after)] == [False, cut]


def test_slow_change_of_light_is_not_a_cut() -> None:
    track = stage()
    ids_had = {tuple(ids(track(frame(i, shade=60 + 4 * i), boxes_with(0.9)))) for i in range(30)}
    assert ids_had == {(-1,), (1,)}


def test_cameras_have_their_own_tracks() -> None:
    track = stage()
    ids_had: dict[str, list[list[int]]] = {"a": [], "b": []}
    for i in range(4):
        for camera in ids_had:
            ids_had[camera].append(ids(track(frame(i, camera=camera), boxes_with(0.9, 0.9))))
    assert ids_had["a"][-1] == ids_had["b"][-1] == [1, 2]


def test_trail_is_as_long_as_the_option_says() -> None:
    track = stage(trails="0.2s")
    for i in range(20):
        end = track(frame(i), boxes_with(0.9, x=100 + 5 * i))
    (trail,) = end.trails
    assert len(trail) == 6  # points of this frame and of the five before it, 40 ms apart
    assert trail[-1].tolist() == [100 + 5 * 19 + 20, 150]
    assert (np.diff(trail[:, 0]) == 5).all()
    assert len(end.only(np.array([False])).trails) == 0


def test_trails_of_tracks_that_ended_are_forgotten() -> None:
    trails = Trails(1.0)
    for i in range(200):
        detections = boxes_with(0.9)
        detections.track_ids = np.array([i // 5], np.int64)
        trails.draw(detections, 100 + i / 25 if i < 100 else i / 25)  # halfway, the clock goes back
    assert len(trails._points) <= 6


def test_invalid_trails_and_trails_without_tracking_are_refused() -> None:
    for trails in ("0", "-1s", "two", "61", ""):
        with pytest.raises(UsageError, match="--trails"):
            stage(trails=trails)
    with pytest.raises(UsageError, match="needs --track"):
        PlanDraft.of(resolve_config(None, {"trails": "2s"}))


def test_colours_and_labels_follow_the_track_id() -> None:
    detections = boxes_with(0.9, 0.8, 0.7)
    detections.track_ids = np.array([5, -1, 85], np.int64)
    layout = lay_out(640, 360, detections, Look())
    assert layout.shades == [5, 0, 85 % len(PALETTE)]
    texts = [label.text for label in sorted(layout.labels, key=lambda label: label.number or 0)]
    assert texts == ["person 5", "person", "person 85"]


# ----------------------------------------------------------------------
# Whole runs.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracked")
    done = detect_video(
        *(STREET, "--track", "--frames", "12", "--engine", "ort", "--precision", "fp32"),
        *("--save", "jsonl,csv,mot,coco", "-o", f"{folder}/out/", "--run-dir", f"{folder}/run"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder


def find_output(folder: Path, suffix: str) -> Path:
    (path,) = (folder / "out").glob(f"*{suffix}")
    return path


@pytest.mark.slow
def test_all_outputs_have_the_same_ids_and_the_session_has_the_stage(run: Path) -> None:
    rows = [json.loads(line) for line in find_output(run, ".jsonl").read_text().splitlines()]
    expected = [
        (row["frame"], detection["track"], detection["box"][0])
        for row in rows
        for detection in row["detections"]
    ]
    assert {track for frame, track, _ in expected if frame == 0} == {None}
    followed = [row for row in expected if row[1] is not None]
    assert len(followed) > 100
    assert min(score for row in rows for score in (d["score"] for d in row["detections"])) >= 0.25
    for frame in range(1, 12):  # no id twice in a frame
        here = [track for number, track, _ in followed if number == frame]
        assert len(set(here)) == len(here)

    with find_output(run, ".csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    ids = [int(row["track"]) if row["track"] else None for row in listed]
    assert ids == [track for _, track, _ in expected]
    mot = [line.split(",") for line in find_output(run, ".mot.txt").read_text().splitlines()]
    assert [(int(row[0]) - 1, int(row[1])) for row in mot] == [row[:2] for row in followed]
    coco = json.loads(find_output(run, ".coco.json").read_text())["annotations"]
    assert [row.get("track_id") for row in coco] == [track for _, track, _ in expected]
    session = json.loads((run / "run/session.json").read_text())
    assert "track" in session["stages"]
    assert any(note.endswith(" tracks") for note in session["notes"])


@pytest.mark.slow
def test_python_api_takes_a_tracker() -> None:
    class Numbered:
        """Give the nth object of a frame the id n."""

        def update(self, detections: Detections, frame: Frame) -> list[int]:
            assert frame.image.ndim == 3
            return list(range(len(detections)))

    for track in (True, Numbered()):
        with Detector(engine="ort", precision="fp32", frames=3, track=track) as detector:
            last = [detections for _, detections in detector.stream(STREET)][-1]
            assert last.track_ids is not None
            assert last.to_dict()[0]["track"] == last.track_ids[0]
            assert last[:2].track_ids.tolist() == last.track_ids[:2].tolist()  # type: ignore[union-attr]
            assert (last.scores >= 0.25).all()
            with pytest.raises(UsageError, match="stream"):
                detector(cv2.VideoCapture(STREET).read()[1])


@pytest.mark.parametrize(("every", "scheduled"), [(None, False), ("1", False), ("2", True)])
def test_schedule_exists_only_if_infer_every_is_above_one(every, scheduled):
    track = stage(**({} if every is None else {"infer_every": every}))
    assert (track.schedule is not None) == scheduled
