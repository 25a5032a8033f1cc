"""``burn`` turns an overlay into the video that the run would have drawn itself."""

from __future__ import annotations

import json
import os
import subprocess
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from detector.core.jobs.burn import _match_rows
from detector.core.sinks.overlay.carried import OverlayRow
from detector.core.types import Detections
from tests.cli.command import assert_one_line_error, detect_video, run_ok

STREET = Path(__file__).parents[2] / "videos/street.mp4"
RUN = ("--size", "192x128", "--conf", "0.15")


def frames(path: Path) -> list[tuple[float, Any]]:
    with av.open(str(path)) as container:
        return [
            (float(frame.pts * frame.time_base), frame.to_ndarray(format="bgr24"))
            for frame in container.decode(video=0)
        ]


def assert_equal_videos(ours: Path, theirs: Path) -> int:
    actual, expected = frames(ours), frames(theirs)
    assert [at for at, _ in actual] == [at for at, _ in expected]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(actual, expected, strict=True))
    return len(actual)


@pytest.fixture(scope="module")
def overlay_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("burn")
    source = folder / "in.mp4"
    command = ["ffmpeg", "-v", "error", "-i", STREET, "-f", "lavfi", "-i", "sine=440"]
    copied = ["-map", "0:v", "-map", "1:a", "-t", "4", "-c:v", "copy", "-c:a", "aac", source]
    subprocess.run([*map(str, command), *map(str, copied)], check=True)
    done = run_ok(
        *("in.mp4", "--save", "overlay,video", "-o", "x.mkv", "--frames", 40, "--json"),
        *("--line-width", 3, *RUN),
        cwd=folder,
    )
    assert json.loads(done.stdout)["outputs"] == {"video": "x.mp4", "overlay": "x.mkv"}
    return folder


@pytest.mark.slow
def test_burnt_video_equals_the_video_of_the_run(overlay_folder: Path) -> None:
    done = run_ok("burn", "x.mkv", cwd=overlay_folder)
    assert done.stdout == "x-burnt.mp4: 40 frames\n"
    assert assert_equal_videos(overlay_folder / "x-burnt.mp4", overlay_folder / "x.mp4") == 40
    with av.open(str(overlay_folder / "x-burnt.mp4")) as container:
        assert container.streams.audio
    again = detect_video("burn", "x.mkv", cwd=overlay_folder)  # the same settings replace the file
    assert again.stdout == "x-burnt.mp4: 40 frames\n"
    if "user.detect-video.settings" in os.listxattr(overlay_folder / "x-burnt.mp4"):
        other = detect_video("burn", "x.mkv", "--hide-labels", cwd=overlay_folder)
        assert other.stdout == "x-burnt-2.mp4: 40 frames\n"
    assert not list(overlay_folder.glob("*.partial*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("--start", "1.5", "--duration", "1"), ("--stride", "4"), ("--hide-scores",)]
)
def test_burn_honours_options_that_select_frames_or_labels(
    options: tuple[str, ...], overlay_folder: Path, tmp_path: Path
) -> None:
    run_ok(
        *(overlay_folder / "in.mp4", "--save", "overlay,video", "-o", "y.mkv", "--frames", 20),
        *(*options, *RUN),
        cwd=tmp_path,
    )
    assert detect_video("burn", "y.mkv", "-o", "b.mp4", cwd=tmp_path).returncode == 0
    assert assert_equal_videos(tmp_path / "b.mp4", tmp_path / "y.mp4") == 20


def test_rows_are_matched_to_pictures_by_time() -> None:
    """Times may differ by a millisecond. A picture without a row is dropped."""
    pictures = [SimpleNamespace(time_s=ms / 1000) for ms in (0, 20, 41, 79, 122, 158, 160)]
    rows = [OverlayRow(ms, ms, ms + 7, Detections.empty()) for ms in (0, 40, 80, 120, 160, 200)]
    matched: Any = _match_rows(iter(pictures), iter(rows), 7, Fraction(1, 1000))
    found = [None if picture is None else round(picture.time_s * 1000) for picture, _ in matched]
    assert found == [0, 41, 79, None, 160, None]


@pytest.mark.slow
def test_burn_accepts_encoding_options(overlay_folder: Path, tmp_path: Path) -> None:
    for quality in ("fast", "small"):
        out = tmp_path / f"{quality}.mp4"
        done = run_ok("burn", "x.mkv", "-o", out, "--quality", quality, cwd=overlay_folder)
    assert (tmp_path / "fast.mp4").stat().st_size > (tmp_path / "small.mp4").stat().st_size
    done = detect_video("burn", "x.mkv", "--quality", "fast", "--crf", 9, cwd=overlay_folder)
    assert_one_line_error(done, 2, "--quality", "--crf")


@pytest.mark.slow
def test_burn_refuses_wrong_inputs_and_outputs(overlay_folder: Path, tmp_path: Path) -> None:
    def burn(*arguments: object) -> Any:
        return detect_video("burn", *arguments, cwd=tmp_path)

    overlay = overlay_folder / "x.mkv"
    before = overlay.read_bytes()
    assert_one_line_error(burn("nothing.mkv"), 3, "nothing.mkv")
    assert_one_line_error(burn(overlay_folder / "in.mp4"), 3, "not an overlay", "--save overlay")
    assert_one_line_error(burn(overlay, "-o", overlay), 2, "is the overlay itself")
    assert_one_line_error(burn(overlay, "-o", "-"), 2, "burn only writes")
    assert_one_line_error(burn(overlay, "-o", "x.jsonl"), 2, ".mp4")
    assert_one_line_error(burn(overlay, overlay, "-o", "x.mp4"), 2, "-o x/")
    assert_one_line_error(burn(overlay, "--crf", "60"), 2, "--crf")
    assert_one_line_error(burn(overlay, "--blur", "unicorn"), 2, "unicorn")
    assert_one_line_error(burn(overlay, "-o", "no/such/x.mp4"), 6, "no/such")
    assert overlay.read_bytes() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_truncated_overlay_gives_the_readable_frames_and_exits_7(
    overlay_folder: Path, tmp_path: Path
) -> None:
    data = (overlay_folder / "x.mkv").read_bytes()
    (tmp_path / "cut.mkv").write_bytes(data[: len(data) * 2 // 3])
    done = detect_video("burn", "cut.mkv", cwd=tmp_path)
    assert done.returncode == 7, (done.stdout, done.stderr)
    assert 5 <= len(frames(tmp_path / "cut-burnt.mp4")) < 40


@pytest.mark.slow
def test_run_refuses_options_that_an_overlay_cannot_store(
    overlay_folder: Path, tmp_path: Path
) -> None:
    """The options are refused before the model is loaded, so the model may be missing."""

    def run(*arguments: object) -> Any:
        return detect_video(*arguments, "--model", "no.onnx", cwd=tmp_path)

    source = overlay_folder / "in.mp4"
    both = ("--save", "overlay,player")
    assert_one_line_error(run(source, *both, "--blur", "person"), 2, "--blur", "--save video")
    assert_one_line_error(run(source, *both, "--no-video"), 2, "--no-video")
    assert_one_line_error(run(source, *both, "--only-detections"), 2, "--only-detections")
    assert_one_line_error(run("-", *both), 2, "standard input")
    assert_one_line_error(run("rtsp://127.0.0.1:9/x", *both), 2, "--save")
    raw = tmp_path / "raw.h264"
    command = ["ffmpeg", "-v", "error", "-i", source, "-an", "-c", "copy", raw]
    subprocess.run(list(map(str, command)), check=True)
    assert_one_line_error(run(raw, *both), 2, "have no time stamps", "--save video")


@pytest.mark.slow
def test_missing_overlay_does_not_stop_the_others(overlay_folder: Path, tmp_path: Path) -> None:
    done = detect_video(
        "burn", "nothing.mkv", overlay_folder / "x.mkv", "-o", "both/", cwd=tmp_path
    )
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in (tmp_path / "both").iterdir()] == ["x-burnt.mp4"]
