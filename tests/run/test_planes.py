"""Runs that never leave YUV: no BGR picture, the same detections, better colours."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from detector.core import sinks, sources
from detector.core.analysis.agreement import agreement, match_pairs
from detector.core.config.levels import resolve_config
from detector.core.run import limits
from detector.core.run.detect import Hooks, detect
from detector.core.session.document import Summary
from detector.core.sinks.crops import cut
from detector.core.sinks.video.canvas import Canvas
from detector.core.sources import _planes
from detector.core.sources._planes import PlanesReader
from detector.core.types import Detections, Frame, Image, Picture, Planes
from tests.conftest import CHECKOUT, night
from tests.sources.clips import write_video

STREET = CHECKOUT / "videos" / "street.mp4"
CLIPS = ("bench_720p", "people", "person-bicycle-car-detection", "traffic")
AGREEMENT = 0.995  # at least, of planes and BGR
CONF, EDGE = 0.25, 0.05
FRAMES = 60
NO_HOOKS = Hooks()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Planes]:
    asked: list[Planes] = []
    real = PlanesReader.make_bgr

    def make_bgr(self: PlanesReader, planes: Planes) -> Image:
        asked.append(planes)
        return real(self, planes)

    monkeypatch.setattr(PlanesReader, "make_bgr", make_bgr)
    return asked


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("planes") / "clip.mp4", 12)


def run(
    clip: Path, folder: Path, hooks: Hooks = NO_HOOKS, engine: str = "null", **options: Any
) -> Summary:
    given = {"output": f"{folder}/", "run_dir": str(folder / "run"), "engine": engine, **options}
    result = detect([str(clip)], resolve_config(None, given), hooks=hooks)
    assert result.exit_code == 0, result.errors
    return result.summary


@pytest.mark.parametrize(("sync", "threads"), [(False, 1), (True, 2)])
def test_opencv_has_one_thread_while_two_cores_run_the_overlapped_loop(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool, threads: int
) -> None:
    monkeypatch.setattr(limits, "usable_cores", lambda: 2)
    monkeypatch.delenv(limits.OPENCV_THREADS, raising=False)
    before = cv2.getNumThreads()
    seen: set[int] = set()
    try:
        cv2.setNumThreads(2)
        run(clip, tmp_path, Hooks(detected=lambda *_: seen.add(cv2.getNumThreads())), sync=sync)
        assert (seen, cv2.getNumThreads()) == ({threads}, 2)
    finally:
        cv2.setNumThreads(before)


def pixels_of(summary: Summary) -> object:
    assert summary.video is not None
    return summary.video.pixels


@pytest.mark.parametrize("sync", [False, True])
def test_the_default_job_makes_no_bgr_picture(
    clip: Path, tmp_path: Path, made: list[Planes], sync: bool
) -> None:
    kinds: Counter[type] = Counter()
    hooks = Hooks(detected=lambda frame, _: kinds.update([type(frame.picture)]))
    summary = run(clip, tmp_path, hooks, sync=sync)
    assert pixels_of(summary) == "yuv420p"
    assert (kinds, made) == ({Planes: 12}, [])
    with av.open(summary.outputs["video"]) as container:
        assert len(list(container.decode(video=0))) == 12


@pytest.mark.slow
@pytest.mark.parametrize("save", [None, ("overlay",)], ids=["default", "overlay"])
def test_no_run_pays_for_imports(clip: Path, tmp_path: Path, save: tuple[str, ...] | None) -> None:
    """Whatever a source, the loop and the outputs need is there when the clock of a run starts."""
    program = """
import sys
from detector.core.run import detect

def watched(*given, inner=detect._run_source):
    before = set(sys.modules)
    inner(*given)
    after = set(sys.modules) - before
    print(*sorted(one for one in after if one == "av" or one.startswith("detector.")))

detect._run_source = watched
from detector.core.cli import main
main()
"""
    words = [str(clip), "--engine", "null", "--quiet", *(() if save is None else ("--save", *save))]
    command = [sys.executable, "-c", program, *words]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr) == ([], "")


@pytest.mark.parametrize(
    "save",
    [("jsonl", "csv", "mot"), ("coco",), ("yolo",), ("overlay",), ("video", "overlay", "yolo")],
    ids=",".join,
)
def test_outputs_that_need_none(
    clip: Path, tmp_path: Path, made: list[Planes], save: tuple[str, ...]
) -> None:
    assert pixels_of(run(clip, tmp_path, save=save)) == "yuv420p"
    assert made == []


def test_a_picture_without_detections_is_not_copied(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures: list[Any] = []
    real = Canvas.fill

    def fill(self: Canvas, picture: Picture) -> Any:
        pictures.append((picture.picture, real(self, picture)))
        return pictures[-1][1]

    monkeypatch.setattr(Canvas, "fill", fill)
    monkeypatch.setattr(_planes, "copy_planes", None)
    run(clip, tmp_path)
    assert len(pictures) == 12
    assert all(given is taken for given, taken in pictures)


def add_captions(path: Path) -> Path:
    """Closed captions (ATSC A/53, part 4) before each picture of a raw H.264 stream."""
    said = b"\xb5\x00\x31GA94\x03\x41\xff\xfc\x94\x2c\xff"
    message = b"\x00\x00\x01\x06\x04" + bytes([len(said)]) + said + b"\x80"
    before_slices = re.sub(
        rb"\x00\x00\x01(?=[\x41\x65])", lambda start: message + start.group(), path.read_bytes()
    )
    path.write_bytes(before_slices)
    with av.open(str(path)) as container:
        for picture in container.decode(video=0):
            assert picture.side_data.get("A53_CC") is not None
    return path


@pytest.mark.parametrize("kind", ["key frames", "captions"])
def test_a_picture_is_encoded_the_same_where_it_lies(kind: str, tmp_path: Path) -> None:
    """What a decoder notes on its pictures is not taken over: kinds of pictures, captions."""
    if kind == "captions":
        path = add_captions(write_video(tmp_path / "clip.h264", 24, bf="0"))
    else:
        path = write_video(tmp_path / "clip.mp4", 24, g="4", bf="1")
    files = {True: tmp_path / "copied.mp4", False: tmp_path / "lent.mp4"}
    for copied, file in files.items():
        with sources.open(str(path), pixels="yuv420p") as source:
            sink = sinks.open("video", file)
            sink.open(source.info)
            for frame in source:
                assert isinstance(frame.picture, Planes)
                if copied:
                    frame.picture = frame.picture.copy()
                sink.write(frame, Detections.empty())
            sink.close()
    assert files[True].read_bytes() == files[False].read_bytes()


def test_clips_of_detections_need_none(clip: Path, tmp_path: Path, made: list[Planes]) -> None:
    summary = run(clip, tmp_path, only_detections=True)
    assert (pixels_of(summary), made) == ("yuv420p", [])


def test_pictures_are_bgr_from_the_start(clip: Path, tmp_path: Path, made: list[Planes]) -> None:
    summary = run(clip, tmp_path, save=("video", "pictures"))
    assert (pixels_of(summary), made) == ("bgr", [])


def test_a_source_that_stays_bgr_says_why(tmp_path: Path) -> None:
    path = write_video(tmp_path / "turned.mp4", 5, rotation=90)
    assert re.match("bgr: .* 90 ", pixels_of(run(path, tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".avi", ".gif"])
def test_formats_that_are_not_420(
    clip: Path, tmp_path: Path, made: list[Planes], suffix: str
) -> None:
    summary = run(clip, tmp_path, output=str(tmp_path / f"out{suffix}"))
    assert pixels_of(summary) == "yuv420p"
    assert len(made) == 12


@pytest.mark.slow
def test_crops_are_made_of_frames_with_detections(tmp_path: Path, made: list[Planes]) -> None:
    """Cut crops from the picture before boxes are drawn, while its planes go on."""
    seen = Seen()
    summary = run(
        STREET, tmp_path, Hooks(detected=seen), "ort", save=("video", "crops"), frames=6, conf=0.5
    )
    assert pixels_of(summary) == "yuv420p"
    assert len(made) == sum(len(found) > 0 for found in seen.detections) > 0
    with sources.open(str(STREET), frames=6) as source:
        for frame, found in zip(source, seen.detections, strict=True):
            for number, box in enumerate(found.boxes.tolist()):
                name = f"{found.name(number)}/frame_{frame.index:06d}_{number}.jpg"
                crop = cv2.imread(f"{summary.outputs['crops']}/{name}")
                plain = cut(frame.image, box)
                assert crop.shape == plain.shape
                assert np.abs(crop.astype(int) - plain).mean() < 6  # JPEG's share


COLOURS = {  # what the stream states: matrix, primaries, transfer; FFmpeg's numbers
    "unsaid": ({}, (2, 2, 2)),
    "bt709": ({"x264-params": "colormatrix=bt709:colorprim=bt709:transfer=bt709"}, (1, 1, 1)),
    "bt601": (
        {"x264-params": "colormatrix=smpte170m:colorprim=smpte170m:transfer=smpte170m"},
        (6, 6, 6),
    ),
    "full": ({"x264-params": "fullrange=on"}, (2, 2, 2)),
}


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
@pytest.mark.parametrize("name", COLOURS)
def test_the_written_video_states_the_colours_of_its_source(
    tmp_path: Path, name: str, suffix: str
) -> None:
    options, stated = COLOURS[name]
    path = write_video(tmp_path / "in.mp4", 4, crf="10", **options)
    summary = run(path, tmp_path, output=str(tmp_path / f"out{suffix}"), crf=8)
    with av.open(str(path)) as before, av.open(summary.outputs["video"]) as after:
        ours, theirs = (next(one.decode(video=0)) for one in (after, before))
        assert (ours.color_range == 2) == (theirs.color_range == 2) == (name == "full")
        if suffix == ".mp4":  # VP9 itself has no room for all of them
            assert (ours.colorspace, ours.color_primaries, ours.color_trc) == stated
        apart = ours.to_ndarray().astype(int) - theirs.to_ndarray()
        assert np.abs(apart).mean() < 3


class Seen:
    def __init__(self) -> None:
        self.detections: list[Detections] = []

    def __call__(self, frame: Frame, detections: Detections) -> None:
        self.detections.append(replace(detections))


def both_ways(
    clip: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[tuple[Seen, Summary]]:
    results = []
    for pixels in ("yuv420p", "bgr"):
        monkeypatch.setenv("DETECT_VIDEO_PIXELS", pixels)
        seen = Seen()
        summary = run(clip, folder / pixels, Hooks(detected=seen), **options)
        assert pixels_of(summary) == pixels
        results.append((seen, summary))
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["street", "traffic", *(night(one) for one in CLIPS if one != "traffic")]
)
def test_detections_and_colours_of_both_ways(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = STREET
    if name != "street":
        path = request.getfixturevalue("shared") / f"data/videos/{name}.mp4"
    planes, bgr = both_ways(
        path, tmp_path, monkeypatch, engine="ort", frames=FRAMES, conf=CONF - EDGE
    )
    assert partners(planes[0].detections, bgr[0].detections) >= AGREEMENT
    assert agreement(bgr[0].detections, planes[0].detections).share >= 0.95
    ours, theirs = (
        psnr_outside(path, Path(summary.outputs["video"]), seen.detections)
        for seen, summary in (planes, bgr)
    )
    assert ours[0] > theirs[0], (ours, theirs)
    # Colours of a grey clip are a level or two; which, is up to the encoder. Above 60 dB one pixel
    # in fifteen is off by one level.
    assert all(ours[i] > min(theirs[i] - 0.5, 60) for i in (1, 2)), (ours, theirs)


def partners(ours: list[Detections], theirs: list[Detections]) -> float:
    """The share of detections, of both ways, that the other way has too. At the edge of the
    threshold a score that differs in the third digit decides, so a partner may lie below it."""
    count = found = 0
    for one, other in zip(ours, theirs, strict=True):
        for these, those in ((one, other), (other, one)):
            kept = these.scores >= CONF
            clear = Detections(these.boxes[kept], these.scores[kept], these.class_ids[kept])
            count += len(clear)
            found += len(match_pairs(clear, those))
    assert count > 0
    return found / count


def psnr_outside(
    source: Path, written: Path, detections: list[Detections]
) -> tuple[float, float, float]:
    """Return the PSNR of Y, U and V in dB against the source, outside boxes and labels."""
    squares = [0.0, 0.0, 0.0]
    counts = [0, 0, 0]
    with av.open(str(source)) as before, av.open(str(written)) as after:
        pairs = zip(before.decode(video=0), after.decode(video=0), detections, strict=False)
        for one, other, found in pairs:
            height, width = one.height, one.width
            outside = np.ones((height, width), np.bool_)
            for x1, y1, x2, y2 in found.boxes.astype(int).tolist():
                # Labels are above, below or beside their box.
                outside[max(0, y1 - 40) : y2 + 40, max(0, x1 - 160) : x2 + 160] = False
            for i, (a, b) in enumerate(zip(arrays(one), arrays(other), strict=True)):
                mask = outside if i == 0 else outside[::2, ::2]
                squares[i] += float(((a - b)[mask] ** 2).sum())
                counts[i] += int(mask.sum())
    return tuple(  # type: ignore[return-value]
        10 * np.log10(255**2 * count / max(1e-9, square))
        for square, count in zip(squares, counts, strict=True)
    )


def arrays(picture: Any) -> list[np.ndarray]:
    height, width = picture.height, picture.width
    stored = picture.to_ndarray(format="yuv420p").astype(np.float32)
    halves = stored[height:].reshape(2, height // 2, width // 2)
    return [stored[:height], halves[0], halves[1]]
