"""Pictures of a video that state their own orientation: in EXIF, or in H.264's SEI message."""

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector.core import sources
from detector.core.sources.base import Choice
from detector.core.types import Image

from .oddities import ffmpeg

WIDTH, HEIGHT = 96, 64
# EXIF orientation -> how to turn the stored picture upright.
UPRIGHT = {
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    8: lambda image: np.rot90(image),
}
READERS = [("auto", "bgr"), ("opencv", "bgr"), ("av", "bgr"), ("auto", "yuv420p")]


def stored() -> Image:
    """Return a picture with different corners, so that no two orientations look the same."""
    image = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
    image[:24, :32], image[:24, -32:], image[-24:, :32] = (0, 0, 250), (0, 250, 0), (250, 0, 0)
    return image


def exif(orientation: int) -> bytes:
    """Return a big-endian TIFF with the maker's name, and with the orientation unless it is 0."""
    entries = [b"\x01\x0f\0\x02\0\0\0\x04abc\0"]
    if orientation:
        entries.append(b"\x01\x12\0\x03\0\0\0\x01" + struct.pack(">HH", orientation, 0))
    return b"MM\0*\0\0\0\x08" + struct.pack(">H", len(entries)) + b"".join(entries) + bytes(4)


def jpeg(orientation: int) -> bytes:
    data = cv2.imencode(".jpg", stored(), [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
    segment = b"Exif\0\0" + exif(orientation)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:]


def png(orientation: int) -> bytes:
    data = cv2.imencode(".png", stored())[1].tobytes()
    chunk = b"eXIf" + exif(orientation)
    whole = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return data[:33] + whole + data[33:]  # after the header


def make(folder: Path, name: str, orientation: int) -> Path:
    kind, suffix = name.split(".")
    data = {"jpg": jpeg, "png": png}[kind](orientation)
    if suffix == "mjpeg":
        (folder / name).write_bytes(data * 2)
        return folder / name
    for number in range(2):
        (folder / f"{number}.{kind}").write_bytes(data)
    ffmpeg("-framerate", "5", "-i", folder / f"%d.{kind}", "-c", "copy", folder / name)
    return folder / name


def read(path: Path, decoder: str = "auto", pixels: str = "bgr") -> list[Image]:
    with sources.open(str(path), decoder=decoder, pixels=pixels) as source:
        images = [frame.image for frame in source]
        assert (source.info.height, source.info.width) == images[0].shape[:2]
        assert not source.damaged
    return images


@pytest.mark.parametrize(
    "name", ["jpg.avi", "jpg.mov", "jpg.mkv", "jpg.mjpeg", "png.mov", "png.mkv"]
)
@pytest.mark.parametrize("orientation", [0, 1, 6])
def test_exif_orientation_in_a_video_is_applied(
    name: str, orientation: int, tmp_path: Path
) -> None:
    path = make(tmp_path, name, orientation)
    expected = UPRIGHT[orientation or 1](stored())
    for decoder, pixels in READERS:
        images = read(path, decoder, pixels)
        assert len(images) == 2
        assert images[0].shape == expected.shape
        assert np.abs(images[0].astype(int) - expected).mean() < 6


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("name", ["jpg.avi", "png.mov"])
def test_every_exif_orientation_is_applied(orientation: int, name: str, tmp_path: Path) -> None:
    path = make(tmp_path, name, orientation)
    for image in (*read(path), *read(path, "av")):
        assert np.abs(image.astype(int) - UPRIGHT[orientation](stored())).mean() < 6


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_reduced_picture_has_the_same_orientation(orientation: int, tmp_path: Path) -> None:
    path = make(tmp_path, "jpg.avi", orientation)
    with sources.open(str(path), choice=Choice(reduce=lambda *_: 2)) as source:
        small, _ = (frame.image for frame in source)
    whole = read(path)[0]
    assert (source.info.height, source.info.width) == whole.shape[:2]
    assert np.abs(small.astype(int) - whole[::2, ::2]).mean() < 6


def test_animated_png_with_exif_is_read(tmp_path: Path) -> None:
    """FFmpeg's muxer drops the EXIF chunk, so we insert it into the file."""
    plain = tmp_path / "plain.apng"
    (tmp_path / "0.png").write_bytes(png(0))
    (tmp_path / "1.png").write_bytes(png(0))
    encoded = ("-framerate", "5", "-i", tmp_path / "%d.png", "-c:v", "apng", "-f", "apng")
    ffmpeg(*encoded, plain)
    data, chunk = plain.read_bytes(), png(6)[33:]
    chunk = chunk[: 12 + struct.unpack(">I", chunk[:4])[0]]
    (tmp_path / "a.apng").write_bytes(data[:33] + chunk + data[33:])
    assert len(read(tmp_path / "a.apng")) == 2


def test_change_of_orientation_within_a_video_is_noted(tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(jpeg(1))
    (tmp_path / "1.jpg").write_bytes(jpeg(6))
    ffmpeg("-framerate", "5", "-i", tmp_path / "%d.jpg", "-c", "copy", tmp_path / "mixed.avi")
    with sources.open(str(tmp_path / "mixed.avi"), decoder="av") as source:
        assert [frame.size for frame in source] == [(HEIGHT, WIDTH)] * 2
    assert "270 degrees" in source.notes[0]


MESSAGES = [
    ("rotate=90", lambda image: np.rot90(image)),  # counter-clockwise
    ("rotate=180", UPRIGHT[3]),
    ("rotate=270", UPRIGHT[6]),
    ("flip=horizontal", UPRIGHT[2]),
    ("flip=vertical", UPRIGHT[4]),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.mp4", "a.h264", "a.ts"])
@pytest.mark.parametrize(("message", "show"), MESSAGES, ids=[row[0] for row in MESSAGES])
def test_h264_display_orientation_is_applied(message: str, show, name: str, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), stored())
    encoder = ("-c:v", "libx264", "-preset", "ultrafast", "-crf", "1", "-pix_fmt", "yuv420p")
    still = ("-loop", "1", "-framerate", "25", "-i", tmp_path / "a.png", "-frames:v", "4")
    ffmpeg(*still, *encoder, tmp_path / "plain.mp4")
    turn = f"h264_metadata=display_orientation=insert:{message}"
    bitstream = f"h264_mp4toannexb,{turn}" if name == "a.h264" else turn
    ffmpeg("-i", tmp_path / "plain.mp4", "-c", "copy", "-bsf:v", bitstream, tmp_path / name)
    for decoder, pixels in READERS:
        image = read(tmp_path / name, decoder, pixels)[0]
        assert image.shape == show(stored()).shape
        assert np.abs(image.astype(int) - show(stored())).mean() < 12
