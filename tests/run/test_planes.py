"""Runs that read YUV planes: no conversion to BGR, the same detections, better colours."""

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
AGREEMENT = 0.995  # minimum share of detections that planes and BGR have in common
CONF, EDGE = 0.25, 0.05
FRAMES = 60
NO_HOOKS = Hooks()


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Planes]:
    conversions: list[Planes] = []
    real = PlanesReader.make_bgr

    def make_bgr(self: PlanesReader, planes: Planes) -> Image:
        conversions.append(planes)
        return real(self, planes)

    monkeypatch.setattr(PlanesReader, "make_bgr", make_bgr)
    return conversions


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("planes") / "clip.mp4", 12)


def run(
    clip: Path, folder: Path, hooks: Hooks = NO_HOOKS, engine: str = "null", **options: Any
) -> Summary:
    settings = {"output": f"{folder}/", "run_dir": str(folder / "run"), "engine": engine, **options}
    result = detect([str(clip)], resolve_config(None, settings), hooks=hooks)
    assert result.exit_code == 0, result.errors
    return result.summary


@pytest.mark.parametrize(("sync", "threads"), [(False, 1), (True, 2)])
def test_opencv_uses_one_thread_in_the_overlapped_loop_on_two_cores(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool, threads: int
) -> None:
    monkeypatch.setattr(limits, "usable_cores", lambda: 2)
    monkeypatch.delenv(limits.OPENCV_THREADS, raising=False)
    before = cv2.getNumThreads()
    during: set[int] = set()
    try:
        cv2.setNumThreads(2)
        run(clip, tmp_path, Hooks(detected=lambda *_: during.add(cv2.getNumThreads())), sync=sync)
        assert (during, cv2.getNumThreads()) == ({threads}, 2)
    finally:
        cv2.setNumThreads(before)


def pixels_of(summary: Summary) -> object:
    assert summary.video is not None
    return summary.video.pixels


@pytest.mark.parametrize("sync", [False, True])
def test_default_run_converts_no_picture_to_bgr(
    clip: Path, tmp_path: Path, conversions: list[Planes], sync: bool
) -> None:
    kinds: Counter[type] = Counter()
    hooks = Hooks(detected=lambda frame, _: kinds.update([type(frame.picture)]))
    summary = run(clip, tmp_path, hooks, sync=sync)
    assert pixels_of(summary) == "yuv420p"
    assert (kinds, conversions) == ({Planes: 12}, [])
    with av.open(summary.outputs["video"]) as container:
        assert len(list(container.decode(video=0))) == 12


@pytest.mark.slow
@pytest.mark.parametrize("save", [None, ("overlay",)], ids=["default", "overlay"])
def test_modules_are_imported_before_the_run_starts(
    clip: Path, tmp_path: Path, save: tuple[str, ...] | None
) -> None:
    """The time of a run must not include imports for the source, the loop or the outputs."""
    program = """
import sys
from detector.core.run import detect

def print_imports(*arguments, inner=detect._run_source):
    before = set(sys.modules)
    inner(*arguments)
    new = set(sys.modules) - before
    print(*sorted(name for name in new if name == "av" or name.startswith("detector.")))

detect._run_source = print_imports
from detector.core.cli import main
main()
"""
    words = [str(clip), "--engine", "null", "--quiet", *(() if save is None else ("--save", *save))]
    command = [sys.executable, "-c", program, *words]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr) == ([], "")


@pytest.mark.parametrize(
    "options",
    [
        {"save": ("jsonl", "csv", "mot")},
        {"save": ("coco",)},
        {"save": ("yolo",)},
        {"save": ("video", "overlay", "yolo")},
        {"only_detections": True},
    ],
    ids=str,
)
def test_no_picture_is_converted_for_outputs_without_bgr(
    clip: Path, tmp_path: Path, conversions: list[Planes], options: dict[str, Any]
) -> None:
    assert pixels_of(run(clip, tmp_path, **options)) == "yuv420p"
    assert conversions == []


def test_picture_without_detections_is_not_copied(
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
    assert all(picture is filled for picture, filled in pictures)


def add_captions(path: Path) -> Path:
    """Insert closed captions (ATSC A/53, part 4) before each picture of a raw H.264 stream."""
    captions = b"\xb5\x00\x31GA94\x03\x41\xff\xfc\x94\x2c\xff"
    message = b"\x00\x00\x01\x06\x04" + bytes([len(captions)]) + captions + b"\x80"
    before_slices = re.sub(
        rb"\x00\x00\x01(?=[\x41\x65])", lambda start: message + start.group(), path.read_bytes()
    )
    path.write_bytes(before_slices)
    with av.open(str(path)) as container:
        for picture in container.decode(video=0):
            assert picture.side_data.get("A53_CC") is not None
    return path


@pytest.mark.parametrize("kind", ["key frames", "captions"])
def test_borrowed_picture_is_encoded_like_a_copy(kind: str, tmp_path: Path) -> None:
    """The decoder's metadata, such as picture types and captions, must not reach the encoder."""
    if kind == "captions":
        path = add_captions(write_video(tmp_path / "clip.h264", 24, bf="0"))
    else:
        path = write_video(tmp_path / "clip.mp4", 24, g="4", bf="1")
    files = {True: tmp_path / "copied.mp4", False: tmp_path / "borrowed.mp4"}
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


def test_run_that_saves_pictures_reads_bgr(
    clip: Path, tmp_path: Path, conversions: list[Planes]
) -> None:
    summary = run(clip, tmp_path, save=("video", "pictures"))
    assert (pixels_of(summary), conversions) == ("bgr", [])


def test_reason_is_given_for_a_source_that_stays_bgr(tmp_path: Path) -> None:
    path = write_video(tmp_path / "turned.mp4", 5, rotation=90)
    assert re.match("bgr: .* 90 ", pixels_of(run(path, tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".avi", ".gif"])
def test_video_formats_without_yuv_420_convert_every_picture(
    clip: Path, tmp_path: Path, conversions: list[Planes], suffix: str
) -> None:
    summary = run(clip, tmp_path, output=str(tmp_path / f"out{suffix}"))
    assert pixels_of(summary) == "yuv420p"
    assert len(conversions) == 12


@pytest.mark.slow
def test_crops_convert_only_the_frames_with_detections(
    tmp_path: Path, conversions: list[Planes]
) -> None:
    """The video is drawn in planes. Only crops, which show the picture without boxes, need BGR."""
    log = DetectionLog()
    summary = run(
        STREET, tmp_path, Hooks(detected=log), "ort", save=("video", "crops"), frames=6, conf=0.5
    )
    assert pixels_of(summary) == "yuv420p"
    assert len(conversions) == sum(len(detections) > 0 for detections in log.detections) > 0
    with sources.open(str(STREET), frames=6) as source:
        for frame, detections in zip(source, log.detections, strict=True):
            for number, box in enumerate(detections.boxes.tolist()):
                name = f"{detections.name(number)}/frame_{frame.index:06d}_{number}.jpg"
                crop = cv2.imread(f"{summary.outputs['crops']}/{name}")
                plain = cut(frame.image, box)
                assert crop.shape == plain.shape
                assert np.abs(crop.astype(int) - plain).mean() < 6  # JPEG loses this much


COLOURS = {  # options, (matrix, primaries, transfer) as FFmpeg's numbers
    "unspecified": ({}, (2, 2, 2)),
    "bt709": ({"x264-params": "colormatrix=bt709:colorprim=bt709:transfer=bt709"}, (1, 1, 1)),
    "bt601": (
        {"x264-params": "colormatrix=smpte170m:colorprim=smpte170m:transfer=smpte170m"},
        (6, 6, 6),
    ),
    "full": ({"x264-params": "fullrange=on"}, (2, 2, 2)),
}


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
@pytest.mark.parametrize("name", COLOURS)
def test_written_video_states_the_colours_of_its_source(
    tmp_path: Path, name: str, suffix: str
) -> None:
    options, stated = COLOURS[name]
    path = write_video(tmp_path / "in.mp4", 4, crf="10", **options)
    summary = run(path, tmp_path, output=str(tmp_path / f"out{suffix}"), crf=8)
    with av.open(str(path)) as before, av.open(summary.outputs["video"]) as after:
        ours, theirs = (next(container.decode(video=0)) for container in (after, before))
        assert (ours.color_range == 2) == (theirs.color_range == 2) == (name == "full")
        if suffix == ".mp4":  # VP9 cannot store all colour tags
            assert (ours.colorspace, ours.color_primaries, ours.color_trc) == stated
        assert np.abs(ours.to_ndarray().astype(int) - theirs.to_ndarray()).mean() < 3


class DetectionLog:
    def __init__(self) -> None:
        self.detections: list[Detections] = []

    def __call__(self, frame: Frame, detections: Detections) -> None:
        self.detections.append(replace(detections))


def both_ways(
    clip: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[tuple[DetectionLog, Summary]]:
    results = []
    for pixels in ("yuv420p", "bgr"):
        monkeypatch.setenv("DETECT_VIDEO_PIXELS", pixels)
        log = DetectionLog()
        summary = run(clip, folder / pixels, Hooks(detected=log), **options)
        assert pixels_of(summary) == pixels
        results.append((log, summary))
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["street", "traffic", *(night(name) for name in CLIPS if name != "traffic")]
)
def test_planes_and_bgr_give_the_same_detections_and_colours(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = STREET
    if name != "street":
        path = request.getfixturevalue("shared") / f"data/videos/{name}.mp4"
    planes, bgr = both_ways(
        path, tmp_path, monkeypatch, engine="ort", frames=FRAMES, conf=CONF - EDGE
    )
    assert share_of_matches(planes[0].detections, bgr[0].detections) >= AGREEMENT
    assert agreement(bgr[0].detections, planes[0].detections).share >= 0.95
    ours, theirs = (
        psnr_outside(path, Path(summary.outputs["video"]), log.detections)
        for log, summary in (planes, bgr)
    )
    assert ours[0] > theirs[0], (ours, theirs)
    # The encoder may change a grey clip's chroma by a level or two. A PSNR above 60 dB passes:
    # there, at most one pixel in fifteen is off by one level.
    assert all(ours[i] > min(theirs[i] - 0.5, 60) for i in (1, 2)), (ours, theirs)


def share_of_matches(ours: list[Detections], theirs: list[Detections]) -> float:
    """Return the share of detections above the threshold that have a match in the other list. The
    match may be below the threshold."""
    count = matched = 0
    for our_frame, their_frame in zip(ours, theirs, strict=True):
        for these, those in ((our_frame, their_frame), (their_frame, our_frame)):
            mask = these.scores >= CONF
            clear = Detections(these.boxes[mask], these.scores[mask], these.class_ids[mask])
            count += len(clear)
            matched += len(match_pairs(clear, those))
    assert count > 0
    return matched / count


def psnr_outside(
    source: Path, written: Path, detections: list[Detections]
) -> tuple[float, float, float]:
    """Return the PSNR of Y, U and V in dB against the source, outside boxes and labels."""
    squares = [0.0, 0.0, 0.0]
    counts = [0, 0, 0]
    with av.open(str(source)) as before, av.open(str(written)) as after:
        pairs = zip(before.decode(video=0), after.decode(video=0), detections, strict=False)
        for source_picture, written_picture, frame_detections in pairs:
            height, width = source_picture.height, source_picture.width
            outside = np.ones((height, width), np.bool_)
            for x1, y1, x2, y2 in frame_detections.boxes.astype(int).tolist():
                # Labels are above, below or beside their box.
                outside[max(0, y1 - 40) : y2 + 40, max(0, x1 - 160) : x2 + 160] = False
            planes = zip(arrays(source_picture), arrays(written_picture), strict=True)
            for i, (a, b) in enumerate(planes):
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
