"""Make single frames, and camera streams (with PyAV) in which each picture shows its number."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from detector.core.errors.addresses import Address
from detector.core.types import Arrival, Detections, Frame, Image
from detector.live.sources.base import Camera

WIDTH, HEIGHT = 256, 64
BITS = 52  # bits of a burnt number: enough for microseconds since 1970, until 2112
CELL = 8  # side of a bit's cell in pixels
NS = 1_000_000_000


def burn_number(image: Image, number: int) -> None:
    """Write a number into the top rows, as black and white cells that survive compression."""
    for bit in range(BITS):
        row, column = divmod(bit, image.shape[1] // CELL)
        cell = image[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
        cell[:] = 255 if number >> bit & 1 else 0


def read_number(image: Image) -> int:
    number = 0
    for bit in range(BITS):
        row, column = divmod(bit, image.shape[1] // CELL)
        cell = image[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
        number |= int(cell.mean() > 127) << bit
    return number


def draw_picture(number: int, width: int = WIDTH, height: int = HEIGHT) -> Image:
    """Return a picture with a burnt number and a block that moves."""
    image = np.full((height, width, 3), 60, np.uint8)
    x = number * 7 % max(1, width - 40)
    image[height // 2 : height // 2 + 40, x : x + 40] = (30, 200, 240)
    burn_number(image, number)
    return image


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
    options: Mapping[str, str] | None = None,
    b_frames: int | None = None,
    noise: bool = False,
) -> Path:
    """Make a video whose pictures show their numbers. ``noise``: add noise, for a larger file."""
    with av.open(str(path), "w") as container:
        options = dict(options or {})
        if codec == "libx264":
            options["sc_threshold"] = "0"  # no key frames besides those of ``gop``
        video: Any = container.add_stream(codec, rate=fps, options=options)
        video.width, video.height = size
        video.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        video.gop_size = gop
        if b_frames is not None:
            video.max_b_frames = b_frames
        audio: Any = None
        if sound:
            rate = 8000 if sound.startswith("pcm") else 48000
            audio = container.add_stream(sound, rate=rate)
            audio.layout = "mono"
            per_picture = rate // fps
        for i in range(count):
            image = draw_picture(first + i, *size)
            if noise:
                below = image[size[1] // 2 :]
                below[:] = np.random.default_rng(i).integers(0, 90, below.shape, np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="bgr24")
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


def make_stream_of_sizes(
    folder: Path, codec: str, sizes: Sequence[tuple[int, int]], count: int, **more: Any
) -> Path:
    """Make the byte stream of a camera that changes its size: ``count`` pictures per size."""
    suffix = ".h264" if codec == "libx264" else ".mjpeg"
    path = folder / f"sizes{suffix}"
    with path.open("wb") as file:
        for i, size in enumerate(sizes):
            part = folder / f"{i}{suffix}"
            make_stream(part, codec=codec, count=count, first=i * count, size=size, **more)
            file.write(part.read_bytes())
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
    """Return a frame that arrived ``seconds`` after zero on the monotonic clock. ``utc_s``: its
    Unix time; None: 2026-01-31 12:00:00 UTC plus ``seconds``."""
    utc = START_S + seconds if utc_s is None else utc_s
    return Frame(
        index=number,
        pts=round(seconds * 90_000),
        time_s=seconds,
        picture=draw_picture(number) if image is None else image,
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
