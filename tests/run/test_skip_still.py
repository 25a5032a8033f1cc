"""``--skip-still``, with a clip of two still periods."""

import csv
import json
from pathlib import Path

import av
import cv2
import pytest

from detector.core.api import Detector
from detector.core.config.schema import Config, InputConfig, OutputConfig
from detector.core.errors import UsageError
from detector.core.run.detect import detect

STREET = Path(__file__).parents[2] / "videos/street.mp4"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    capture, target = cv2.VideoCapture(str(STREET)), tmp_path_factory.mktemp("still") / "in.mp4"
    pictures = [capture.read()[1] for _ in range(200)]
    with av.open(str(target), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "12"})
        stream.width, stream.height = 960, 540
        for number in range(12):
            picture = av.VideoFrame.from_ndarray(pictures[(number // 6) * 199], format="bgr24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return target


def run(clip, folder, monkeypatch, share: str | None, *save: str):
    monkeypatch.chdir(folder)
    config = Config(
        input=InputConfig(skip_still=share), output=OutputConfig(save=save, output="out/")
    )
    result = detect([str(clip)], config)
    assert result.exit_code == 0
    return result.summary


def test_still_frames_are_reused_and_marked(clip, tmp_path, monkeypatch):
    summary = run(clip, tmp_path, monkeypatch, "0.5%", "jsonl", "csv", "mot")
    assert (summary.frames.written, summary.frames.reused) == (12, 10)
    assert summary.stages["infer"].calls == 2
    infer_s = summary.stages["infer"].busy_s
    assert summary.fps.inference == pytest.approx(2 / infer_s, rel=0.2)
    assert any("10 of 12 frames (83%)" in note and "; mot " in note for note in summary.notes)
    lines = [json.loads(line) for line in Path(summary.outputs["jsonl"]).read_text().splitlines()]
    assert [line.get("reused", False) for line in lines] == [n % 6 > 0 for n in range(12)]
    for number, line in enumerate(lines):
        assert line["detections"] == lines[number - number % 6]["detections"]
        assert line["detections"]
    with open(summary.outputs["csv"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(int(row["frame"]) % 6 > 0, row["reused"]) for row in rows} == {
        (False, "0"),
        (True, "1"),
    }


def test_every_frame_is_inferred_without_the_option(clip, tmp_path, monkeypatch):
    summary = run(clip, tmp_path, monkeypatch, None, "jsonl", "csv")
    assert summary.frames.reused == 0
    assert summary.stages["infer"].calls == 12
    assert "reused" not in Path(summary.outputs["jsonl"]).read_text()
    assert "reused" not in Path(summary.outputs["csv"]).read_text()


def test_detector_reuses_still_frames(clip):
    with Detector(skip_still="0.5%") as detector:
        reused = [frame.reused for frame, _ in detector.stream(str(clip))]
    assert reused == [number % 6 > 0 for number in range(12)]


def test_detector_refuses_skip_still_for_a_camera():
    with (
        Detector(engine="null", skip_still="0.5%") as detector,
        pytest.raises(UsageError, match="skip_still is"),
    ):
        next(detector.stream("rtsp://127.0.0.1:9/none"))


def test_equal_image_files_are_all_inferred(clip, tmp_path, monkeypatch):
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), cv2.VideoCapture(str(clip)).read()[1])
    summary = run(tmp_path / "*.png", tmp_path, monkeypatch, "0.5%", "jsonl")
    assert summary.frames.reused == 0
