"""``--tiles``, from the value of the option to the rows."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector.core import sources
from detector.core.api import Detector
from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.run import sampling
from detector.core.run.detect import detect
from detector.core.run.plan import PlanDraft, resolve
from detector.core.run.tiling import Tiling
from tests.conftest import CHECKOUT
from tests.sources.clips import write_video

STREET = CHECKOUT / "videos" / "street.mp4"


@pytest.mark.parametrize(
    ("text", "inputs"), [(None, 1), ("none", 1), ("2x2", 5), ("3X2", 7), ("1x2", 3), ("8x8", 65)]
)
def test_grid_decides_the_number_of_inputs(text, inputs):
    assert Tiling.parse(text).inputs == inputs


@pytest.mark.parametrize("text", ["0x3", "1x1", "9x8", "2", "x2", "2x", "-1x2", "", "auto"])
def test_invalid_grid_is_refused(text):
    with pytest.raises(UsageError):
        PlanDraft.of(Config().with_options({"tiles": text}))


def options(folder: Path, **more) -> Config:
    settings = {"engine": "null", "output": f"{folder}/", "save": ("jsonl",)}
    return Config().with_options({**settings, "run_dir": str(folder / "run"), **more})


@pytest.mark.parametrize("size", [None, "608x352"])  # None: the video's shape decides
def test_tiles_smaller_than_the_input_are_refused_before_the_engine_opens(
    tmp_path, monkeypatch, size
):
    clip = write_video(tmp_path / "clip.mp4", 4)
    monkeypatch.delattr("detector.core.engines.open")
    with pytest.raises(UsageError, match="8x8"):
        detect([str(clip)], options(tmp_path / "out", tiles="8x8", size=size))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{}, {"sync": True}, {"batch": 5}, {"batch": 3}, {"batch": 11, "sync": True}, {"stride": 2}],
    ids=str,
)
def test_every_loop_and_batch_finds_nearly_as_many_objects_as_detector(more, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = {"engine": "ort", "precision": "fp32", "tiles": "2x2", "frames": 6, "size": "448x256"}
    summary = detect([str(STREET)], options(tmp_path, **usual, **more)).summary
    assert summary.tiles == 5
    assert summary.frames.written == 6
    stride = more.get("stride", 1)
    rows = [json.loads(line) for line in Path(summary.outputs["jsonl"]).read_text().splitlines()]
    with Detector(engine="ort", precision="fp32", tiles="2x2", size="448x256") as detector:
        capture, at = cv2.VideoCapture(str(STREET)), 0
        for row in rows:
            while at <= row["frame"]:
                image, at = capture.read()[1], at + 1
            assert row["frame"] % stride == 0
            # The run reads YUV and the Detector BGR, so boxes near the threshold may differ.
            assert abs(len(row["detections"]) - len(detector(image))) <= 2


@pytest.mark.slow
def test_small_objects_are_detected_only_with_tiles():
    image = cv2.VideoCapture(str(STREET)).read()[1]
    large = np.full((image.shape[0] * 2, image.shape[1] * 2, 3), 114, np.uint8)
    small = cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    large[20 : 20 + small.shape[0], 30 : 30 + small.shape[1]] = small
    counts = {}
    for tiles in ("none", "3x3"):
        with Detector(engine="ort", tiles=tiles) as detector:
            detections = detector(large)
            counts[tiles] = len(detections)
            inside = detections.boxes[:, [0, 2]] <= 30 + small.shape[1] + 5
            assert inside.all()
    assert counts["3x3"] > counts["none"]


def test_sample_spans_a_video_and_takes_the_first_pictures_of_a_folder(tmp_path):
    clip = write_video(tmp_path / "clip.mp4", 100)
    shots = tmp_path / "shots"
    shots.mkdir()
    for i in range(3):
        cv2.imwrite(str(shots / f"{i}.png"), np.full((48, 64, 3), 40 * i, np.uint8))
    plan = resolve(Config().with_options({"engine": "null"}))
    sample = sampling.sample(plan.reading, [str(clip)])
    with sources.open(str(clip)) as source:
        images = [frame.image.copy() for frame in iter(source.read, None)]
    numbers = [
        next(i for i, image in enumerate(images) if np.array_equal(image, picture))
        for picture in sample.pictures
    ]
    assert sample.info.kind == "video"
    assert len(numbers) == sampling.FRAMES
    assert max(numbers) - min(numbers) > 50
    sample = sampling.sample(plan.reading, ["-", "absent", str(shots)])
    assert [frame[0, 0, 0] for frame in sample.pictures] == [0, 40, 80]
    assert sampling.Ahead(plan.reading, ["absent", str(clip)]).count_frames() == 200
    assert sampling.Ahead(plan.reading, ["http://x/a.mp4"]).count_frames() == 0, "no request"
