"""--start by a key frame: the frames of a whole run, bit for bit, wherever one is taken."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detector.core import sources
from detector.core.errors import SourceError
from detector.core.sources.video import _seek, opencv
from tests.conftest import CHECKOUT

from .clips import write_video
from .nasty import KINDS, clips

Frames = list[tuple[int, int, bytes]]


def read(
    path: Path, decoder: str, start_s: Fraction | None, frames: int | None = None
) -> tuple[Frames, sources.Source]:
    with sources.open(str(path), decoder=decoder, frames=frames) as source:
        if start_s is not None:
            source.restrict(start_s, None)
        return [(f.index, f.pts, hashlib.md5(f.image).digest()) for f in source], source


def seeks(path: Path, decoder: str, start_s: Fraction) -> bool:
    with sources.open(str(path), decoder=decoder) as source:
        number = source.seek(start_s)  # type: ignore[attr-defined]
    return bool(number)


def times_in(path: Path, *shares: str) -> list[Fraction]:
    frames, source = read(path, "av", None)
    base = source.info.time_base
    first, last = (frames[at][1] * base for at in (0, -1))
    return [first + (last - first) * Fraction(share) for share in shares]


def both_ways(
    path: Path,
    decoder: str,
    start_s: Fraction,
    monkeypatch: pytest.MonkeyPatch,
    most: int | None = None,
) -> tuple[Any, Any]:
    results = []
    for landing in (None, lambda *_: None):
        with monkeypatch.context() as patch:
            if landing:
                patch.setattr(_seek, "find_landing", landing)
            try:
                frames, source = read(path, decoder, start_s, most)
                results.append((frames, source.counts, source.info))
            except SourceError as error:
                results.append(str(error))
    return results[0], results[1]


ENCODINGS = {
    # file: codec, options; 60 frames with a key frame every 12
    "plain.mp4": ("libx264", {"bf": "0"}),
    "bframes.mp4": ("libx264", {"bf": "3"}),
    "bframes.mkv": ("libx264", {"bf": "3"}),
    "h265.mp4": ("libx265", {"x265-params": "log-level=none:open-gop=0:bframes=3"}),
    "vp9.webm": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}),
    "mpeg4.mp4": ("mpeg4", {"bf": "0", "b": "4000000"}),
    "jpeg.mkv": ("mjpeg", {"strict": "unofficial"}),
    "open.mp4": ("libx264", {"bf": "3", "x264-params": "open-gop=1:scenecut=0"}),
    "open.mkv": ("libx264", {"bf": "3", "x264-params": "open-gop=1:scenecut=0"}),
    "open265.mp4": ("libx265", {"x265-params": "log-level=none:open-gop=1:bframes=3"}),
    "open4.mp4": ("mpeg4", {"bf": "2", "b": "4000000"}),
}
DOUBTFUL = {
    "refresh.mp4": ("libx264", {"x264-params": "intra-refresh=1:scenecut=0"}),
    "plain.ts": ("libx264", {"bf": "2"}),  # its clock may jump
    "plain.avi": ("libx264", {"bf": "0"}),  # stores no pts
    "raw.h264": ("libx264", {"bf": "0"}),
}
VARIABLE = [40 * n + (n * n * 7) % 23 for n in range(60)]  # ms


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seek")


def encode(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        codec, options = {**ENCODINGS, **DOUBTFUL}[name]
        times: Any = VARIABLE if path.suffix in (".mp4", ".mkv", ".webm") else 60
        write_video(path, times, codec, g="12", **options)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "av"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_the_same_frames(
    name: str, decoder: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sought = encode(folder, name), 0
    for start in times_in(path, "0", "0.19", "0.2034", "0.5", "0.83", "1", "1.1"):
        sought += seeks(path, decoder, start)
        one, other = both_ways(path, decoder, start, monkeypatch)
        assert one == other, start
    assert sought >= 4


@pytest.mark.parametrize("name", DOUBTFUL)
def test_in_doubt_the_file_is_decoded(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode(folder, name)
    (start,) = times_in(path, "0.7")
    assert not seeks(path, "auto", start)
    one, other = both_ways(path, "auto", start, monkeypatch)
    assert one == other
    assert len(one[0]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nasty_clips(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Healthy and damaged, whether there is a key frame to take or not."""
    sought, paths = 0, clips(kind, request)
    if kind == "real":
        paths += (request.getfixturevalue("shared") / "data/attacks").glob("*.[ma]*")
    for path in paths:
        starts = times_in(path, "0.55", "0.9")
        # cv2's threads patch damage differently each time.
        first = "av" if path.name == "h2.mkv" else "auto"
        for decoder, start in zip((first, "av"), starts, strict=True):
            one, other = both_ways(path, decoder, start, monkeypatch)
            assert one == other, (path.name, decoder, start)
            sought += seeks(path, decoder, start)
    assert sought == 2  # most have one key frame


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_last_frames_of_long_videos(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = CHECKOUT / "videos"
    if kind == "real":
        folder = request.getfixturevalue("shared") / "data/videos"
    for path in folder.glob("*.mp4"):
        with sources.open(str(path)) as source:
            assert source.info.duration_s is not None
            start = Fraction(int(source.info.duration_s * 10) - 5, 10)
        one, other = both_ways(path, "auto", start, monkeypatch, 5)
        assert one == other
        assert len(one[0]) == 5


def test_what_lies_before_is_not_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, grabbed = encode(folder, "plain.mp4"), []

    def grab(self: Any) -> bool:
        grabbed.append(1)
        return inner(self)

    inner = opencv.OpenCVSource.grab
    (start,) = times_in(path, "0.9")
    monkeypatch.setattr(opencv.OpenCVSource, "grab", grab)
    with sources.open(str(path)) as source:
        source.restrict(start, None)
        first = source.read()
    assert first is not None
    assert first.index == 53
    assert len(grabbed) < 10


def test_a_start_at_a_key_frame_begins_there(folder: Path) -> None:
    path = encode(folder, "mpeg4.mp4")
    frames, whole = read(path, "av", None)
    with sources.open(str(path), decoder="av") as source:
        assert source.seek(frames[36][1] * whole.info.time_base) == 36  # type: ignore[attr-defined]


def test_cv2_ends_in_front_of_the_frames_that_an_open_group_loses(folder: Path) -> None:
    """It decodes 17 frames after frame 20, and the leading ones of the next key begin at 38."""
    options = "open-gop=1:scenecut=0:b-adapt=0:b-pyramid=none"
    path = write_video(folder / "long.mp4", 60, g="20", bf="16", **{"x264-params": options})
    with sources.open(str(path)) as source:
        assert source.seek(Fraction(45, 25)) == 37  # type: ignore[attr-defined]


@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_missed_landing_decodes_from_the_beginning(
    decoder: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode(folder, "plain.mp4")
    (start,) = times_in(path, "0.7")
    wanted, _ = read(path, decoder, start)

    real = _seek.find_landing

    def misled(*given: Any) -> Any:
        landing = real(*given)
        assert landing is not None
        return replace(landing, shown=tuple(pts + 1 for pts in landing.shown), fits=())

    monkeypatch.setattr(_seek, "find_landing", misled)
    frames, source = read(path, decoder, start)
    assert (frames, source.damaged) == (wanted, False)


def test_damage_after_the_start_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cv2 gives up, and PyAV continues with the numbers of a whole run."""
    whole = encode(folder, "plain.mp4")
    data = bytearray(whole.read_bytes())
    at = len(data) * 4 // 5
    data[at : at + 4000] = np.random.default_rng(3).bytes(4000)
    path = folder / "damaged.mp4"
    path.write_bytes(data)
    (start,) = times_in(whole, "0.5")
    assert seeks(path, "auto", start)
    one, other = both_ways(path, "auto", start, monkeypatch)
    assert one == other
    assert one[1].damaged
