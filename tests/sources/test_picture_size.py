"""The size that a picture's header claims is known before the picture is decoded."""

import cv2
import numpy as np
import pytest

from detector.core.config.schema import Config, RuntimeConfig
from detector.core.errors import SourceError, machine
from detector.core.run.reading import SourceReading
from detector.core.sources._picture_size import MOST_PIXELS, claimed_size, why_not_decoded
from detector.core.sources._pictures import read_picture
from detector.core.sources.pictures import PicturesSource
from detector.lab.datasets.base import read_picture_size
from tests.attacks.inputs import PICTURES, content
from tests.attacks.kinds.pictures import SIZED
from tests.sources.clips import write_video

WRITTEN = (
    (".png", ()),
    (".jpg", ()),
    (".jpg", (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)),
    (".webp", (cv2.IMWRITE_WEBP_QUALITY, 80)),
    (".webp", ()),
    (".tif", ()),
    (".bmp", ()),
    (".gif", ()),
    (".ppm", ()),
    (".ppm", (cv2.IMWRITE_PXM_BINARY, 0)),
    (".ras", ()),
    (".pam", ()),
    (".hdr", ()),
    (".jp2", ()),
)


@pytest.mark.parametrize(("suffix", "options"), WRITTEN)
def test_claimed_size_is_the_decoded_size(suffix, options):
    if not cv2.haveImageWriter(f"a{suffix}"):
        pytest.skip("machine: this cv2 cannot write it")
    _, data = cv2.imencode(suffix, np.full((37, 61, 3), 90, np.uint8), options)
    assert claimed_size(data.tobytes()) == (61, 37)


@pytest.mark.parametrize("name", PICTURES)
def test_truncated_header_does_not_raise(name):
    data = content(name)
    for length in range(min(len(data), 700)):
        claimed_size(data[:length])


def test_small_jpeg_that_claims_a_gigapixel_is_not_decoded(tmp_path):
    """libjpeg would fill the missing part of the picture with grey, which takes 6 GB."""
    path = tmp_path / "bomb.jpg"
    path.write_bytes(SIZED["p.jpg"](content("p.jpg"), 32767, 32767))
    assert why_not_decoded(path.read_bytes())
    assert read_picture(str(path)) is None
    with pytest.raises(SourceError, match="32767x32767"):
        PicturesSource.open(str(path))


def test_picture_above_the_pixel_limit_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "machine_bytes", lambda: 1 << 40)
    jpeg = content("p.jpg")
    assert not why_not_decoded(SIZED["p.jpg"](jpeg, 16384, MOST_PIXELS // 16384))
    assert why_not_decoded(SIZED["p.jpg"](jpeg, 16384, MOST_PIXELS // 16384 + 1))


@pytest.mark.parametrize("name", SIZED)
def test_picture_too_large_for_the_machine_is_not_decoded(tmp_path, monkeypatch, name):
    """2^28 pixels take 3 GB: below the pixel limit, but too much for a machine with 1 GB."""
    monkeypatch.setattr(machine, "machine_bytes", lambda: 1 << 30)
    small = SIZED[name](content(name), 8192, 8192)
    large = SIZED[name](content(name), 16383, 16383)
    assert why_not_decoded(small) is None
    assert "16383x16383 pixels need 3.0 GB" in str(why_not_decoded(large))
    (tmp_path / name).write_bytes(large)
    with pytest.raises(SourceError, match=r"1\.0 GB"):
        PicturesSource.open(str(tmp_path / name))
    (tmp_path / f"0{name}").write_bytes(content(name))
    source = PicturesSource.open(str(tmp_path))
    assert len(list(source)) == source.counts.bad == 1
    assert "1.0 GB" in source.notes[0]


def test_memory_limit_of_the_process_counts_too(monkeypatch):
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (1 << 29, 1 << 29))
    large = SIZED["p.jpg"](content("p.jpg"), 8192, 8192)
    assert "ulimit -v leaves 0.5 GB" in str(why_not_decoded(large))


@pytest.mark.parametrize(("batch", "fits"), [(1, True), (8, False)])
def test_frames_that_cannot_be_in_flight_together_are_refused(tmp_path, monkeypatch, batch, fits):
    path = write_video(tmp_path / "in.mp4", 3)
    with SourceReading.of(Config()).open(str(path)) as source:
        frame = source.info.width * source.info.height * 3
    # Batch 1 needs two frames in flight, and 8/3 of a frame for decoding.
    monkeypatch.setattr(machine, "machine_bytes", lambda: 5 * frame)
    config = Config(runtime=RuntimeConfig(batch=batch))
    if fits:
        SourceReading.of(config).open(str(path)).close()
    else:
        with pytest.raises(SourceError, match="--batch"):
            SourceReading.of(config).open(str(path))


HUGE = {
    "a chunk of 4 GB": lambda png: png[:33] + b"\xff\xff\0\xba" + png[37:],
    "cut off": lambda png: png[:-1],
    "no end": lambda png: png[:-12],
    "a PNM": lambda _: b"P6 # 3\n16384 16385 255\n\0\0\0",
    "a PNM of digits": lambda _: b"P5 " + b"9" * 3000 + b" 1 255\n",
    "a PAM": lambda _: b"P7\nWIDTH 99999\nHEIGHT 99999\nDEPTH 3\nMAXVAL 255\nENDHDR\n",
    "a Sun raster": lambda _: b"\x59\xa6\x6a\x95\0\0\xff\xff\0\0\xff\xff" + bytes(40),
    "a GIF": lambda _: b"GIF89a\xff\xff\xff\xff" + bytes(40),
    "a Radiance": lambda _: b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 65535 +X 65535\n",
}


@pytest.mark.parametrize("name", HUGE)
def test_file_that_claims_more_than_it_contains_is_not_decoded(tmp_path, monkeypatch, name):
    """A chunk that claims 4 GB once took that much memory, in a file of 243 bytes."""
    png = content("p.png")
    path = tmp_path / "p.png"
    path.write_bytes(HUGE[name](png))
    monkeypatch.setattr(cv2, "imdecode", None)  # a call would fail
    assert read_picture(str(path)) is None
    with pytest.raises(SourceError):
        read_picture_size(str(path))


def test_bytes_after_the_end_of_a_png_are_ignored(tmp_path):
    path = tmp_path / "p.png"
    path.write_bytes(content("p.png") + b"more")
    assert read_picture(str(path)) is not None
