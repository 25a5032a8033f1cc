"""--start seeks to a key frame: the frames equal those of a whole run, bit for bit."""

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

from .clips import write_video
from .nasty import KINDS, clips

Frames = list[tuple[int, int, bytes]]


def read(path: Path, decoder: str, start_s: Fraction | None) -> tuple[Frames, sources.Source]:
    with sources.open(str(path), decoder=decoder) as source:
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
    path: Path, decoder: str, start_s: Fraction, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Any]:
    """Return the frames, counts and info, or the error: first with seeking, then without."""
    results = []
    for landing in (None, lambda *_: None):
        with monkeypatch.context() as patch:
            if landing:
                patch.setattr(_seek, "find_landing", landing)
            try:
                frames, source = read(path, decoder, start_s)
                results.append((frames, source.counts, source.info))
            except SourceError as error:
                results.append(str(error))
    return results[0], results[1]


ENCODINGS = {
    # file -> codec, options; each file has 60 frames, and every 12th is a key frame
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
UNSAFE = {
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
        codec, options = {**ENCODINGS, **UNSAFE}[name]
        times: Any = VARIABLE if path.suffix in (".mp4", ".mkv", ".webm") else 60
        write_video(path, times, codec, g="12", **options)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "av"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_seek_gives_the_frames_of_a_whole_run(
    name: str, decoder: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seek_count = encode(folder, name), 0
    for start in times_in(path, "0", "0.19", "0.2034", "0.5", "0.83", "1", "1.1"):
        seek_count += seeks(path, decoder, start)
        seeking, decoding = both_ways(path, decoder, start, monkeypatch)
        assert seeking == decoding, start
    assert seek_count >= 4


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_file_is_decoded_from_the_beginning(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode(folder, name)
    (start,) = times_in(path, "0.7")
    assert not seeks(path, "auto", start)
    seeking, decoding = both_ways(path, "auto", start, monkeypatch)
    assert seeking == decoding
    assert len(seeking[0]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_seek_in_nasty_clips_gives_the_same_frames(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    seek_count, paths = 0, clips(kind, request)
    if kind == "real":
        paths += (request.getfixturevalue("shared") / "data/attacks").glob("*.[ma]*")
    for path in paths:
        starts = times_in(path, "0.55", "0.9")
        # h2.mkv is damaged, and cv2's threads conceal damage differently each time.
        first = "av" if path.name == "h2.mkv" else "auto"
        for decoder, start in zip((first, "av"), starts, strict=True):
            seeking, decoding = both_ways(path, decoder, start, monkeypatch)
            assert seeking == decoding, (path.name, decoder, start)
            seek_count += seeks(path, decoder, start)
    assert seek_count == 2  # most clips have only one key frame


def test_frames_before_the_key_frame_are_not_decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_start_at_a_key_frame_begins_there(folder: Path) -> None:
    path = encode(folder, "mpeg4.mp4")
    frames, whole = read(path, "av", None)
    with sources.open(str(path), decoder="av") as source:
        assert source.seek(frames[36][1] * whole.info.time_base) == 36  # type: ignore[attr-defined]


def test_seek_lands_before_the_leading_frames_of_an_open_gop(folder: Path) -> None:
    """Key frame 40 has leading frames 38 and 39, so cv2 seeks to frame 20 and grabs up to 37."""
    options = "open-gop=1:scenecut=0:b-adapt=0:b-pyramid=none"
    path = write_video(folder / "long.mp4", 60, g="20", bf="16", **{"x264-params": options})
    with sources.open(str(path)) as source:
        assert source.seek(Fraction(45, 25)) == 37  # type: ignore[attr-defined]


@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_after_a_missed_landing_decoding_begins_at_the_first_frame(
    decoder: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode(folder, "plain.mp4")
    (start,) = times_in(path, "0.7")
    expected, _ = read(path, decoder, start)

    real = _seek.find_landing

    def find_wrong_landing(*arguments: Any) -> Any:
        landing = real(*arguments)
        assert landing is not None
        return replace(landing, shown=tuple(pts + 1 for pts in landing.shown), fits=())

    monkeypatch.setattr(_seek, "find_landing", find_wrong_landing)
    frames, source = read(path, decoder, start)
    assert (frames, source.damaged) == (expected, False)


def test_damage_after_the_start_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the damage cv2 stops, and PyAV continues with the frame numbers of a whole run."""
    whole = encode(folder, "plain.mp4")
    data = bytearray(whole.read_bytes())
    at = len(data) * 4 // 5
    data[at : at + 4000] = np.random.default_rng(3).bytes(4000)
    path = folder / "damaged.mp4"
    path.write_bytes(data)
    (start,) = times_in(whole, "0.5")
    assert seeks(path, "auto", start)
    seeking, decoding = both_ways(path, "auto", start, monkeypatch)
    assert seeking == decoding
    assert seeking[1].damaged
