"""Streams of cameras, made with PyAV. Every picture carries its number."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from detector.core.errors.secrets import Address
from detector.core.types import Arrival, Detections, Frame, Image
from detector.live.sources.base import Camera

BITS, BLOCK = 16, 16  # a number is a row of black and white blocks, the lowest bit first
WIDTH, HEIGHT = BITS * BLOCK, 64
NS = 1_000_000_000


def numbered(number: int, width: int = WIDTH, height: int = HEIGHT) -> Image:
    image = np.full((height, width, 3), 100, np.uint8)
    image[BLOCK * 2 :, : number * 7 % width] = (30, 90, 160)  # something that moves
    for bit in range(BITS):
        image[:BLOCK, bit * BLOCK : (bit + 1) * BLOCK] = 255 if number >> bit & 1 else 0
    return image


def read_number(grey: Image) -> int:
    number = 0
    for bit in range(BITS):
        block = grey[4 : BLOCK - 4, bit * BLOCK + 4 : (bit + 1) * BLOCK - 4]
        number |= int(block.mean() > 128) << bit
    return number


def numbers_of(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        return [
            read_number(frame.to_ndarray(format="gray8")) for frame in container.decode(video=0)
        ]


def make_stream(
    path: Path,
    *,
    count: int = 50,
    codec: str = "libx264",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    fps: int = 25,
    gop: int = 10,
    first: int = 0,
    sound: str | None = None,
    options: dict[str, str] | None = None,
) -> Path:
    with av.open(str(path), "w") as container:
        options = dict(options or {})
        if codec == "libx264":
            options["sc_threshold"] = "0"  # key frames where ``gop`` says, and nowhere else
        video: Any = container.add_stream(codec, rate=fps, options=options)
        video.width, video.height = size
        video.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        video.gop_size = gop
        audio: Any = None
        if sound:
            rate = 8000 if sound.startswith("pcm") else 48000
            audio = container.add_stream(sound, rate=rate)
            audio.layout = "mono"
            per_picture = rate // fps
        for i in range(count):
            frame = av.VideoFrame.from_ndarray(numbered(first + i, *size), format="bgr24")
            frame.pts, frame.time_base = i, Fraction(1, fps)
            container.mux(video.encode(frame))
            if audio is not None:
                tone = np.sin(np.arange(per_picture) * 0.2) * 9000
                heard = av.AudioFrame.from_ndarray(
                    tone.astype(np.int16)[None], format="s16", layout="mono"
                )
                heard.sample_rate, heard.pts = rate, i * per_picture
                heard.time_base = Fraction(1, rate)
                container.mux(audio.encode(heard))
        container.mux(video.encode(None))
        if audio is not None:
            container.mux(audio.encode(None))
    return path


def camera(name: str = "yard", kind: str = "network") -> Camera:
    return Camera(name, kind, Address("rtsp://yard.example/1"))


def frame_at(
    number: int,
    seconds: float,
    *,
    image: Image | None = None,
    epoch: int = 1,
    utc_s: float | None = None,
    name: str = "yard",
) -> Frame:
    """A detected picture that arrived ``seconds`` after the clock's zero, and that long after
    2026-01-31 12:00:00 UTC.
    """
    utc = START_S + seconds if utc_s is None else utc_s
    return Frame(
        index=number,
        pts=round(seconds * 90_000),
        time_s=seconds,
        picture=numbered(number) if image is None else image,
        arrival=Arrival(name, epoch, round(seconds * NS), utc),
    )


START_S = 1769860800.0  # 2026-01-31 12:00:00 UTC


def one_detection() -> Detections:
    return Detections(
        np.array([[1, 2, 30, 40]], np.float32),
        np.array([0.9], np.float32),
        np.array([0]),
        ("person",),
    )
