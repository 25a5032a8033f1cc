"""Folders, globs and single pictures."""

import json
from fractions import Fraction

import cv2
import numpy as np
import pytest

from detector.core import sinks, sources
from detector.core.errors import SourceError
from detector.core.sources.pictures import _output_names
from detector.core.types import Detections

from .clips import picture


@pytest.fixture
def folder(tmp_path):
    for name in ("img10.png", "img2.png", "img1.PNG", "bild ü 视频.jpg"):
        save(tmp_path / name, picture(len(name)))
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden.png").write_bytes(b"")
    (tmp_path / "sub.png").mkdir()
    return tmp_path


def save(path, image):
    path.write_bytes(cv2.imencode(path.suffix.lower(), image)[1].tobytes())


def names(frames):
    return [frame.path.rsplit("/", 1)[1] for frame in frames]


def test_folder_in_natural_order(folder):
    source = sources.open(str(folder))
    frames = list(source)
    assert names(frames) == ["bild ü 视频.jpg", "img1.PNG", "img2.png", "img10.png"]
    assert [(f.index, f.pts, f.time_s) for f in frames] == [(n, n, float(n)) for n in range(4)]
    info = source.info
    assert (info.kind, info.width, info.height) == ("pictures", 96, 64)
    assert info.fps == info.time_base == 1
    assert (info.frames_declared, source.damaged) == (4, False)


def test_the_clock_of_pictures_begins_at_0(folder):
    source = sources.open(str(folder))
    source.restrict(Fraction(2), None)
    assert names(source) == ["img2.png", "img10.png"]
    assert not any("--start" in note for note in source.notes)


def test_glob_and_single(folder):
    assert names(sources.open(str(folder / "img?.*"))) == ["img1.PNG", "img2.png"]
    (only,) = sources.open(str(folder / "img2.png"))
    assert np.array_equal(only.image, picture(8))  # png is exact, and cv2 wrote the array as BGR


def test_files_of_one_name_keep_their_folders():
    assert _output_names(["a/1.png", "a/b/2.png", "c/2.png"]) == ["1.png", "a/b/2.png", "c/2.png"]


def test_a_name_with_brackets_is_a_file(folder):
    save(folder / "img[1].png", picture(3))
    assert names(sources.open(str(folder / "img[1].png"))) == ["img[1].png"]


def test_exif_orientation(tmp_path):
    upright = np.zeros((40, 60, 3), np.uint8)
    upright[:10, :10] = 255  # a white corner at the top left of what is stored
    data = cv2.imencode(".jpg", upright)[1].tobytes()
    # One TIFF entry, big-endian: tag 0x0112 (orientation), type short, value 6: turn clockwise to
    # show.
    tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    exif = b"Exif\0\0" + tiff
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    (tmp_path / "a.jpg").write_bytes(data[:2] + segment + data[2:])
    source = sources.open(str(tmp_path / "a.jpg"))
    (frame,) = source
    assert frame.image.shape == (60, 40, 3)
    assert (source.info.width, source.info.height) == (40, 60)
    assert frame.image[:8, -8:].min() > 200


@pytest.mark.parametrize("broken", [0, 1, 3])
def test_unreadable_pictures_are_counted_and_skipped(folder, broken, capfd):
    order = ["bild ü 视频.jpg", "img1.PNG", "img2.png", "img10.png"]
    path = folder / order[broken]
    path.write_bytes(path.read_bytes()[:200])
    source = sources.open(str(folder))
    assert [frame.index for frame in source] == [n for n in range(4) if n != broken]
    assert (source.counts.bad, source.damaged) == (1, True)
    assert order[broken] in source.notes[0]
    assert capfd.readouterr() == ("", "")


def test_stride_limit_and_buffer(folder):
    buffer = np.empty((64, 96, 3), np.uint8)
    source = sources.open(str(folder), stride=2)
    assert [source.read(buffer).index, source.read(buffer).index] == [0, 2]
    assert np.array_equal(buffer, cv2.imread(str(folder / "img2.png")))
    assert source.read(buffer) is None
    assert source.counts.skipped == 2
    assert len(list(sources.open(str(folder), frames=3))) == 3


def test_none_readable(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no")
    for spec in (tmp_path, tmp_path / "a.jpg", tmp_path / "*.jpg"):
        with pytest.raises(SourceError, match="read"):
            sources.open(str(spec))


@pytest.mark.skipif(
    not hasattr(cv2, "imwriteanimation"), reason="OpenCV before 4.11 writes no animation"
)
@pytest.mark.parametrize("name", ["a.webp", "a.png"])
def test_of_an_animation_the_first_picture_is_taken_and_that_is_said(tmp_path, name):
    moving = cv2.Animation()
    moving.frames, moving.durations = [picture(0), picture(5)], np.array([40, 40])
    cv2.imwriteanimation(str(tmp_path / name), moving)
    save(tmp_path / f"still-{name}", picture(0))
    source = sources.open(str(tmp_path))
    assert len(list(source)) == 2
    (note,) = source.notes
    assert note.startswith(f"{tmp_path / name}: ")
    assert "animation" in note
    assert not source.damaged


NOON, ISO = "2024:05:01 12:34:56", "2024-05-01T12:34:56"


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
@pytest.mark.parametrize(
    ("stored", "taken"),
    [
        ({36867: NOON}, ISO),
        ({36867: NOON, 36881: "+02:00"}, f"{ISO}+02:00"),
        ({36867: NOON, 36881: "  :  "}, ISO),
        ({36867: "0000:00:00 00:00:00"}, None),
        ({36868: NOON}, None),
    ],
)
def test_time_of_a_photo_goes_into_rows(tmp_path, suffix, stored, taken):
    image = pytest.importorskip("PIL.Image")
    exif = image.Exif()
    exif[271] = "maker"
    exif.get_ifd(34665).update(stored)
    image.new("RGB", (64, 48)).save(tmp_path / f"a{suffix}", exif=exif)
    source = sources.open(str(tmp_path))
    (frame,) = source
    lines = sinks.open("jsonl", tmp_path / "x.jsonl")
    lines.describe(source.info)
    assert json.loads(lines.rows(frame, Detections.empty())).get("time") == taken
