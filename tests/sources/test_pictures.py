"""Folders, globs and single pictures as sources."""

import json
import threading
from fractions import Fraction

import cv2
import numpy as np
import pytest

from detector.core import sinks, sources
from detector.core.errors import SourceError
from detector.core.sources import _pictures
from detector.core.sources._pictures import _make_output_names
from detector.core.sources.base import Choice
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


def test_folder_is_read_in_natural_order(folder):
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


def test_glob_and_single_picture_are_read(folder):
    assert names(sources.open(str(folder / "img?.*"))) == ["img1.PNG", "img2.png"]
    (only,) = sources.open(str(folder / "img2.png"))
    assert np.array_equal(only.image, picture(8))  # PNG is lossless, and cv2 wrote the array as BGR


def test_equal_file_names_keep_their_folders():
    assert _make_output_names(["a/1.png", "a/b/2.png", "c/2.png"]) == [
        "1.png",
        "a/b/2.png",
        "c/2.png",
    ]


def test_file_name_with_brackets_is_not_a_pattern(folder):
    save(folder / "img[1].png", picture(3))
    assert names(sources.open(str(folder / "img[1].png"))) == ["img[1].png"]


@pytest.mark.parametrize("factor", [1, 2])
def test_exif_orientation_is_applied(tmp_path, factor):
    upright = np.zeros((40, 60, 3), np.uint8)
    upright[:10, :10] = 255  # a white corner at the top left of the stored picture
    data = cv2.imencode(".jpg", upright)[1].tobytes()
    # One TIFF entry, big-endian: tag 0x0112 (orientation), type short, value 6 (turn clockwise).
    tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    exif = b"Exif\0\0" + tiff
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    (tmp_path / "a.jpg").write_bytes(data[:2] + segment + data[2:])
    source = sources.open(str(tmp_path / "a.jpg"), choice=Choice(reduce=lambda *size: factor))
    (frame,) = source
    assert frame.image.shape == (60 // factor, 40 // factor, 3)
    assert (source.info.width, source.info.height) == frame.size[::-1] == (40, 60)
    assert frame.image[: 8 // factor, -8 // factor :].min() > 200


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


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("broken", [None, "img1.PNG", "img2.png"])
@pytest.mark.parametrize(("stride", "frames"), [(1, None), (2, None), (1, 3), (3, 1)])
def test_parallel_decoding_gives_the_same_pictures(folder, at_once, broken, stride, frames):
    paths = [folder / name for name in ("bild ü 视频.jpg", "img1.PNG", "img2.png", "img10.png")]
    if broken:
        (folder / broken).write_bytes(b"no")
    expected = [
        (at, cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR))
        for at, path in enumerate(paths)
        if at % stride == 0 and path.name != broken
    ][:frames]
    with sources.open(
        str(folder), stride=stride, frames=frames, choice=Choice(at_once=at_once)
    ) as source:
        read = list(source)
    assert [frame.index for frame in read] == [at for at, _ in expected]
    for frame, (_, image) in zip(read, expected, strict=True):
        assert np.array_equal(frame.image, image)
    assert frame.buffer is None, "each picture needs memory of its own"


def test_pictures_are_decoded_in_parallel_and_only_a_few_ahead(folder, monkeypatch):
    """Pictures 2 and 3 are decoded at the same time, and at most four wait to be taken."""
    for number in range(20, 28):
        save(folder / f"img{number}.png", picture(1))
    real, both, begun = _pictures.read_with_note, threading.Barrier(2, timeout=60), []

    def read(path, choice):
        begun.append(path)
        if len(begun) in (2, 3):  # the very first is read when the folder is opened
            both.wait()
        return real(path, choice)

    monkeypatch.setattr(_pictures, "read_with_note", read)
    with sources.open(str(folder), choice=Choice(at_once=2)) as source:
        source.read()
        source.read()
        assert len(begun) <= 1 + 1 + 4
        assert len(list(source)) == 10
    assert sorted(begun) == sorted(set(begun))


def test_jpegs_are_decoded_to_a_reduced_size_if_that_is_enough(tmp_path):
    shades = np.linspace(0, 255, 203 * 301).reshape(203, 301, 1)
    whole = np.repeat(shades.astype(np.uint8), 3, axis=2)
    for name in ("a.jpg", "b.png"):
        cv2.imwrite(str(tmp_path / name), whole)
    sizes = []

    def reduce(width: int, height: int) -> int:
        sizes.append((width, height))
        return 4

    with sources.open(str(tmp_path), choice=Choice(reduce=reduce)) as source:
        jpeg, png = source
        notes = source.notes
    assert (source.info.width, source.info.height) == (301, 203)
    assert (jpeg.size, jpeg.reduced.factor, jpeg.image.shape) == ((203, 301), 4, (51, 76, 3))
    assert abs(jpeg.image[25, 38].astype(int) - whole[102, 154]).max() <= 2
    assert png.reduced is None
    assert np.array_equal(png.decoded, whole)
    assert set(sizes) == {(301, 203), (203, 301)}, "must ask for both: EXIF may rotate the picture"
    (note,) = notes
    assert note.startswith("1 picture decoded to 1/4 of the width and height")


def test_source_without_a_readable_picture_is_refused(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no")
    for spec in (tmp_path, tmp_path / "a.jpg", tmp_path / "*.jpg"):
        with pytest.raises(SourceError, match="read"):
            sources.open(str(spec))


@pytest.mark.parametrize("name", ["a.webp", "a.png"])
def test_first_picture_of_an_animation_is_taken_with_a_note(tmp_path, name):
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
def test_time_of_a_photo_is_in_its_row(tmp_path, suffix, stored, taken):
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
