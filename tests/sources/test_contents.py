"""A file's content, not its name, decides how it is read."""

import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector.core import sources
from detector.core.api.pictures import as_image
from detector.core.config.schema import OutputConfig
from detector.core.errors import SourceError, UsageError
from detector.core.run.outputs import OutputPlan
from detector.core.sources._heif import turn

from .clips import picture
from .oddities import ffmpeg

PHOTO = cv2.resize(picture(3, 96, 64), (240, 160))


def encode_photo(suffix: str) -> bytes:
    return cv2.imencode(suffix, PHOTO)[1].tobytes()


def write_clip(path: Path, *options: str) -> Path:
    ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x48:r=10:d=0.6", *options, path)
    return path


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.JPG", "-f mp4"),
        ("a.HEIC", "-f mov"),
        ("a.png", "-c:v mjpeg -f avi"),
        ("a.tif", "-c:v mpeg2video -f mpegts"),
        ("a.webp", "-f matroska"),
        ("a.jpeg", "-f gif"),
        ("a.jpg", "-c:v mjpeg -f mjpeg"),
        ("a.bmp", "-c:v mpeg2video -f vob"),
    ],
)
def test_video_with_a_picture_suffix_is_read_as_video(
    name: str, options: str, tmp_path: Path
) -> None:
    path = write_clip(tmp_path / name, *options.split())
    (tmp_path / "b.jpg").write_bytes(encode_photo(".jpg"))
    with sources.open(str(path)) as source:
        assert (source.info.kind, len(list(source))) == ("video", 6)
    assert "it holds a video" in source.notes[-1]
    with pytest.raises(UsageError, match="is a video"):
        as_image(path)
    gathered = sources.gather([str(tmp_path)], lambda _: False)
    is_stream = "-f mjpeg" in options
    assert gathered == ([str(tmp_path)] if is_stream else [str(tmp_path), str(path)])
    # In a folder, only a file's first bytes are examined, so a stream of JPEGs counts as a picture.
    with sources.open(str(tmp_path)) as source:
        assert len(list(source)) == 1 + is_stream
    assert ("only the first is used" in source.notes[0]) == is_stream


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.mp4", encode_photo(".jpg")),
        ("a.avi", encode_photo(".webp")),
        ("a.ts", encode_photo(".tif")),
        ("a.mkv", encode_photo(".png")),
        ("a.mov", encode_photo(".bmp")),
        ("a.mpg", encode_photo(".jp2")),
        ("a.dat", encode_photo(".jpg")),
    ],
)
def test_picture_with_another_suffix_is_read_as_picture(
    name: str, data: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    with sources.open(str(tmp_path / name)) as source:
        assert [frame.size for frame in source] == [(160, 240)]
    assert (source.info.kind, as_image(tmp_path / name).shape) == ("pictures", (160, 240, 3))
    assert "but it holds one" in source.notes[0]
    if name != "a.dat":  # folders are searched for known suffixes only
        assert sources.pictures_of(str(tmp_path)) == [str(tmp_path / name)]


def test_pictures_with_appended_data_stay_pictures(tmp_path: Path) -> None:
    photo, clip = encode_photo(".jpg"), write_clip(tmp_path / "a.mp4").read_bytes()
    mpf_segment = b"\xff\xe2\0\x08MPF\0\0\0"
    for name, data in {
        "motion.jpg": photo + clip,
        "gain map.jpg": photo[:2] + mpf_segment + photo[2:] + photo,
        "preview.jpg": photo + cv2.imencode(".jpg", PHOTO[::2, ::2])[1].tobytes(),
    }.items():
        (tmp_path / name).write_bytes(data)
        with sources.open(str(tmp_path / name)) as source:
            assert (source.info.kind, len(list(source)), source.notes) == ("pictures", 1, [])


def test_raw_camera_photo_is_not_read_as_its_thumbnail(tmp_path: Path) -> None:
    raw = tmp_path / "photo.cr2"
    raw.write_bytes(encode_photo(".tif"))
    assert sources.find_claiming(str(raw)).__name__ == "VideoSource"


# tiles.heic is laid out like an iPhone's photo: it has 3x2 HEVC tiles of 64x64, and a grid item
# that joins the tiles and crops the result to 150x100.
TILES = (Path(__file__).parent / "tiles.heic").read_bytes()
COLOURS = np.array(
    [
        [(30, 60, 200), (40, 200, 60), (200, 60, 40)],
        [(200, 200, 60), (60, 200, 200), (180, 60, 180)],
    ]
)
WHOLE = COLOURS.repeat(64, 0).repeat(64, 1)[:100, :150]


@pytest.mark.parametrize("name", ["a.HEIC", "named.jpg"])
@pytest.mark.parametrize(
    ("property_", "shown"),
    [
        (b"irot\0", WHOLE),
        (b"irot\3", np.rot90(WHOLE, -1)),
        (b"imir\0", WHOLE[::-1]),
        (b"imir\1", WHOLE[:, ::-1]),
    ],
)
def test_heic_tiles_are_joined(property_, shown, name: str, tmp_path: Path) -> None:
    """libheif 1.23 shows these files like the expected pictures."""
    (tmp_path / name).write_bytes(TILES.replace(b"irot\0", property_))
    image = as_image(tmp_path / name)
    assert image.shape == shown.shape
    assert np.abs(image - shown).max() <= 8
    plan = OutputPlan(OutputConfig(save=("pictures",)), [str(tmp_path / name)])
    with sources.open(str(tmp_path / name)) as source:
        (path,) = plan.paths(str(tmp_path / name), source.info).values()
    assert path.suffix == ".jpg"


def test_raw_pixels_are_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(bytes(4096))
    with (
        pytest.raises(SourceError, match="-video_size"),
        sources.open(str(tmp_path / "a.raw")) as source,
    ):
        source.read()


@pytest.mark.parametrize("options", [{}, {"subsampling": "4:0:0", "range": "limited"}])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_avif_equals_pillow(orientation: int, options: dict, tmp_path: Path) -> None:
    """cv2 alone ignores the orientation, and reads limited-range grey as full-range grey."""
    image = pytest.importorskip("PIL.Image")
    ops = pytest.importorskip("PIL.ImageOps")
    exif = image.Exif()
    exif[274] = orientation
    options = {"quality": 95, "subsampling": "4:4:4", "exif": exif, **options}
    image.fromarray(WHOLE.astype(np.uint8)).save(tmp_path / "a.avif", **options)
    with image.open(tmp_path / "a.avif") as saved:
        shown = np.asarray(ops.exif_transpose(saved).convert("RGB"))[..., ::-1].astype(int)
    ours = as_image(tmp_path / "a.avif")
    assert ours.shape == shown.shape
    assert np.abs(ours - shown).max() <= 8


def test_picture_is_cropped_before_it_is_rotated() -> None:
    clap = struct.pack(">IIIIiIiI", 40, 1, 20, 1, 10 * 2 + 40 - 150, 2, 5 * 2 + 20 - 100, 2)
    shown = turn(WHOLE, [(b"clap", clap), (b"irot", b"\1")])
    assert np.array_equal(shown, np.rot90(WHOLE[5:25, 10:50]))
    for damaged in (clap[:7], clap[:4] + bytes(28)):
        assert turn(WHOLE, [(b"clap", damaged)]).shape == WHOLE.shape


@pytest.mark.parametrize(
    "data",
    [
        TILES.replace(b"hvc1", b"abcd", 1),
        TILES.replace(b"grid", b"iovl"),
        TILES.replace(b"dimg", b"free"),
        TILES[:700],
    ],
    ids=["missing tile", "overlay, not grid", "no list of tiles", "file cut off"],
)
def test_incomplete_heic_tiles_are_refused(data: bytes, tmp_path: Path) -> None:
    """A single tile is not the picture: an iPhone's tile shows 512x512 of 4032x3024 pixels."""
    (tmp_path / "a.heic").write_bytes(data)
    with pytest.raises(SourceError, match=r"tiles.*heif-convert"):
        sources.open(str(tmp_path / "a.heic"))
