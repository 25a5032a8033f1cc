"""Small videos and pictures, written for the tests, and helpers to read and damage them."""

import os
import random
import subprocess
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from detector.core import sources
from detector.core.sources import _standard_input
from detector.core.types import Frame

WIDTH, HEIGHT = 96, 64
_encoded: dict[Hashable, bytes] = {}


def picture(number: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """Return u8 RGB [h, w, 3]: noise with a bright square, which moves four pixels per frame."""
    image = np.random.default_rng(number).integers(0, 90, (height, width, 3), dtype=np.uint8)
    image[8:24, 4 * number % width :][:, :16] = 220
    return image


def write_video(
    path: Path,
    ticks: list[int] | int = 24,
    codec: str = "libx264",
    rotation: int = 0,
    **options: str,
) -> Path:
    """Write a video. ``ticks``: the times of its frames in ms, or the number of frames at 25/s.
    ``rotation``: degrees; if not 0, stored pixels have an aspect of 4:3. ``options``: options of
    the encoder."""
    times = [40 * n for n in range(ticks)] if isinstance(ticks, int) else ticks
    kind = ("video", tuple(times), codec, rotation, *sorted(options.items()))
    return encode_once(path, kind, lambda: _encode(path, times, codec, rotation, options))


def encode_once(path: Path, kind: Hashable, encode: Callable[[], None]) -> Path:
    """Write ``path`` with ``encode`` the first time, and from cached bytes later. The key of the
    cache is ``kind`` and the suffix of ``path``."""
    key = (path.suffix, kind)
    if key in _encoded:
        path.write_bytes(_encoded[key])
    else:
        encode()
        _encoded[key] = path.read_bytes()
    return path


def _encode(
    path: Path, times: list[int], codec: str, rotation: int, options: dict[str, str]
) -> None:
    container_options = {"movflags": "+faststart"} if path.suffix == ".mp4" else {}
    with av.open(str(path), "w", options=container_options) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        if rotation:
            stream.set_display_rotation(rotation)
            stream.codec_context.sample_aspect_ratio = Fraction(4, 3)
        # With AVX-512, x264's mb-tree depends on uninitialised memory: 2 to 4 of 100 encodings
        # differ.
        steady = {"mbtree": "0"} if codec == "libx264" else {}
        stream.options = {"threads": "1", **steady, **options}
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def damage_packets(path: Path, *numbers: int) -> Path:
    """Replace the second half of each of these packets by noise that FFmpeg reports as damage.
    FFmpeg decodes some noise silently, so we try several seeds."""
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    previous = complaints(path)
    for packet in (packets[number] for number in numbers):
        whole, half, seed = path.read_bytes(), packet.size // 2, 0
        while len(reported := complaints(path)) <= len(previous):
            seed += 1
            noise = random.Random(seed).randbytes(packet.size - half)
            end = packet.pos + packet.size
            path.write_bytes(whole[: packet.pos + half] + noise + whole[end:])
        previous = reported
    return path


def complaints(path: Path) -> list[str]:
    line = ["ffmpeg", "-v", "error", "-i", str(path), "-f", "null", "-"]
    return subprocess.run(line, capture_output=True, text=True, check=False).stderr.splitlines()


def count_by_ffmpeg(path: Path) -> int:
    line = ["ffmpeg", "-v", "quiet", "-nostdin", "-i", str(path), "-map", "0:v:0"]
    line += ["-fps_mode", "passthrough", "-f", "framecrc", "-"]
    lines = subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(not line.startswith("#") for line in lines)


def cut(path: Path, share: float) -> Path:
    data = path.read_bytes()
    short = path.with_name(f"cut-{path.name}")
    short.write_bytes(data[: int(len(data) * share)])
    return short


def write_sound(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        for number in range(4):
            frame = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
            )
            frame.sample_rate, frame.pts = 16000, number * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def read_all(path: Path, **options: Any) -> tuple[list[Frame], Any]:
    with sources.open(str(path), **options) as source:
        return list(source), source


def assert_equal(ours: list[Frame], theirs: list[Frame]) -> None:
    assert [(f.index, f.pts, f.time_s) for f in ours] == [
        (f.index, f.pts, f.time_s) for f in theirs
    ]
    for our_frame, their_frame in zip(ours, theirs, strict=True):
        assert np.array_equal(our_frame.image, their_frame.image), our_frame.index


def pts_of(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        return [frame.pts for frame in container.decode(video=0)]


def beeping_clip(path: Path, *codec: str, fps: int = 25, seconds: int = 6) -> Path:
    """Write a black, silent clip with a flash and a beep from 3.0 s to 3.4 s."""
    flash = (
        f"color=black:s=64x48:r={fps}:d={seconds},"
        "drawbox=c=white:t=fill:enable='between(t,2.999,3.4)'"
    )
    beep = f"aevalsrc='if(between(t,3,3.4),0.8*sin(2*PI*1000*t),0)':s=44100:d={seconds}"
    command = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", flash, "-f", "lavfi", "-i", beep]
    command += ["-c:v", "libx264"]
    subprocess.run([*command, "-preset", "ultrafast", *codec, "-y", path], check=True)
    return path


def flash_and_beep(path: Path) -> tuple[float, float]:
    """Return the times of the flash and of the beep, in seconds."""
    with av.open(str(path)) as file:
        bright = [f.time for f in file.decode(video=0) if f.to_ndarray(format="gray").mean() > 128]
    with av.open(str(path)) as file:
        for frame in file.decode(audio=0):
            threshold = 0.1 if frame.format.name == "fltp" else 3000
            loud = np.flatnonzero(np.abs(frame.to_ndarray()[0]) > threshold)
            if len(loud):
                return bright[0], frame.time + loud[0] / frame.sample_rate
    raise AssertionError(f"no beep in {path}")


@contextmanager
def standard_input(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    monkeypatch.setattr(_standard_input, "_current", _standard_input.StandardInput(descriptor))
    try:
        yield
    finally:
        os.close(descriptor)
