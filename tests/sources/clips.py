"""Small videos and pictures, written by PyAV and numpy, so that the tests need no file from
elsewhere.
"""

from __future__ import annotations

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
    """u8 RGB [h, w, 3]: a bright square that moves by four pixels a frame, over noise that costs
    bytes.
    """
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
    """One frame per entry of ``ticks`` (1/1000 s), or that many at 25/s. ``options`` go to the
    encoder.

    With a ``rotation`` (degrees) the pixels are not square either: 4:3, as stored.
    """
    times = [40 * n for n in range(ticks)] if isinstance(ticks, int) else ticks
    kind = ("video", tuple(times), codec, rotation, *sorted(options.items()))
    return encode_once(path, kind, lambda: _encode(path, times, codec, rotation, options))


def encode_once(path: Path, kind: Hashable, encode: Callable[[], None]) -> Path:
    """Write ``path`` with ``encode`` the first time, and later from the bytes it made. ``kind``
    holds everything that decides them except the name's suffix.
    """
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


def hurt(path: Path, *numbers: int) -> Path:
    """Turn the second half of these packets into noise that makes ffmpeg's decoder complain: it
    decodes some noise silently.
    """
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    told = complaints(path)
    for packet in (packets[number] for number in numbers):
        whole, half, seed = path.read_bytes(), packet.size // 2, 0
        while len(heard := complaints(path)) <= len(told):
            seed += 1
            noise = random.Random(seed).randbytes(packet.size - half)
            end = packet.pos + packet.size
            path.write_bytes(whole[: packet.pos + half] + noise + whole[end:])
        told = heard
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


def pts_of(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        return [frame.pts for frame in container.decode(video=0)]


def clip_with_sound(path: Path, *, codec: str = "aac", late: float = 0.0) -> Path:
    """Two seconds at 25 fps; a tone from 1.0 s on. ``late``: seconds without any sound before."""
    with av.open(str(path), "w") as file:
        video = file.add_stream("libx264", rate=25)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio = file.add_stream(codec, rate=48000)
        audio.codec_context.layout = "mono"
        for n in range(50):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 4 * n, np.uint8), "bgr24")
            picture.pts = n
            file.mux(video.encode(picture))
        kind = audio.codec_context.format.name
        for n in range(int(late * 50), 100):
            tone = np.sin(np.arange(960) / 9) * (n >= 50)
            samples = tone.astype(np.float32) if "flt" in kind else (tone * 30000).astype(np.int16)
            block = av.AudioFrame.from_ndarray(samples[None], kind, "mono")
            block.sample_rate, block.pts = 48000, n * 960
            file.mux(audio.encode(block))
        file.mux(video.encode(None))
        file.mux(audio.encode(None))
    return path


@contextmanager
def standard_input(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    monkeypatch.setattr(_standard_input, "_current", _standard_input.StandardInput(descriptor))
    try:
        yield
    finally:
        os.close(descriptor)
