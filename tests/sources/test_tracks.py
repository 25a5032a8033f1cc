"""Files with several video tracks: which one is used, what we note, and how to choose another."""

from pathlib import Path

import pytest

from detector import Detector
from detector.core import sources
from detector.core.errors import SourceError, UsageError
from detector.core.sources.base import Choice
from detector.core.sources.video._tracks import select_tags

from .oddities import ffmpeg

SMALL, LARGE = "96x64", "128x96"
SIZES = {SMALL: (64, 96), LARGE: (96, 128)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracks")
    for size in SIZES:
        moving = f"testsrc2=size={size}:rate=25:duration=0.4"
        encoder = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p")
        ffmpeg("-f", "lavfi", "-i", moving, *encoder, folder / f"{size}.mp4")
    return folder


def mux(folder: Path, name: str, sizes: list[str], defaults: str, *more: str) -> Path:
    """Copy clips into one file. ``defaults``: a digit for each track, 1 for a default track."""
    inputs = [word for size in sizes for word in ("-i", str(folder / f"{size}.mp4"))]
    maps = [word for number in range(len(sizes)) for word in ("-map", f"{number}:v")]
    flags = [
        word
        for number, flag in enumerate(defaults)
        for word in (f"-disposition:v:{number}", "default" if flag == "1" else "0")
    ]
    ffmpeg(*inputs, *maps, "-c", "copy", *flags, *more, folder / name)
    return folder / name


def sizes_read(path: Path, **options: object) -> set[tuple[int, int]]:
    with sources.open(str(path), **options) as source:
        return {frame.size for frame in source}


# The tracks that `ffmpeg -i FILE OUT` chooses.
CHOICES = [
    ("later.mkv", [SMALL, LARGE], "01", LARGE),
    ("first.mkv", [SMALL, LARGE], "10", SMALL),
    ("small-later.mkv", [LARGE, SMALL], "01", SMALL),
    ("none.mkv", [SMALL, LARGE], "00", LARGE),
    ("both.mkv", [SMALL, LARGE], "11", LARGE),
    ("both-first.mkv", [LARGE, SMALL], "11", LARGE),
    ("later.mp4", [SMALL, LARGE], "01", LARGE),
    ("both.mp4", [SMALL, LARGE], "11", LARGE),
    ("plain.ts", [SMALL, LARGE], "00", LARGE),
]


@pytest.mark.parametrize(
    ("name", "tracks", "defaults", "expected", "decoder", "pixels"),
    [
        *((*choice, "auto", "bgr") for choice in CHOICES),
        # The other readers choose the track with the same code, so one file is enough for each.
        (*CHOICES[0], "av", "bgr"),
        (*CHOICES[0], "auto", "yuv420p"),
    ],
)
def test_default_or_largest_track_is_read(
    name: str,
    tracks: list[str],
    defaults: str,
    expected: str,
    decoder: str,
    pixels: str,
    folder: Path,
) -> None:
    path = mux(folder, name, tracks, defaults)
    number = tracks.index(expected) + 1
    with sources.open(str(path), decoder=decoder, pixels=pixels) as source:
        assert {frame.size for frame in source} == {SIZES[expected]}
        assert (source.info.width, source.info.height) == SIZES[expected][::-1]
    assert source.notes[0].startswith(f"video track {number} of 2 is used (h264 {expected}")
    assert not source.damaged


@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_track_can_be_chosen_by_number(decoder: str, folder: Path) -> None:
    path = mux(folder, "choice.mkv", [SMALL, LARGE, LARGE], "010")
    for number, size in enumerate([SMALL, LARGE, LARGE], 1):
        with sources.open(str(path), decoder=decoder, choice=Choice(track=number)) as source:
            assert {frame.size for frame in source} == {SIZES[size]}
            assert f"video track {number} of 3 is used" in source.notes[0]
    with pytest.raises(UsageError, match=r"--video-track 4.*1 to 3"):
        sources.open(str(path), choice=Choice(track=4))


def test_default_track_is_read_if_sizes_are_equal(folder: Path) -> None:
    path = mux(folder, "equal.mkv", [LARGE, LARGE], "01")
    with sources.open(str(path)) as source:
        assert source.notes[0].startswith("video track 2 of 2 ")


def test_track_of_another_program_can_be_chosen(folder: Path) -> None:
    programs = ("-program", "title=A:st=0", "-program", "title=B:st=1")
    path = mux(folder, "programs.ts", [SMALL, LARGE], "00", *programs)
    assert sizes_read(path) == {SIZES[LARGE]}
    assert sizes_read(path, choice=Choice(track=1)) == {SIZES[SMALL]}


def test_single_track_is_read_without_a_note(folder: Path) -> None:
    with sources.open(str(folder / f"{SMALL}.mp4")) as source:
        assert source.notes == []
    with pytest.raises(UsageError, match="1 video"):
        sources.open(str(folder / f"{SMALL}.mp4"), choice=Choice(track=2))


@pytest.mark.slow
def test_cover_picture_does_not_count_as_a_track(folder: Path) -> None:
    cover = folder / "cover.png"
    ffmpeg("-f", "lavfi", "-i", "color=red:size=640x480", "-frames:v", "1", cover)
    path = folder / "covered.mp4"
    shown = ("-map", "0", "-map", "1", "-c", "copy", "-disposition:v:0", "attached_pic")
    ffmpeg("-i", cover, "-i", folder / f"{SMALL}.mp4", *shown, path)
    with sources.open(str(path)) as source:
        assert {frame.size for frame in source} == {SIZES[SMALL]}
        assert not any("track" in note for note in source.notes if "another track" not in note)


def test_opencv_fails_if_it_would_read_another_track(folder: Path) -> None:
    path = mux(folder, "later.mkv", [SMALL, LARGE], "01")
    with pytest.raises(SourceError, match=r"another track.*--decoder auto"):
        sources.open(str(path), decoder="opencv")
    assert sizes_read(path, decoder="opencv", choice=Choice(track=1)) == {SIZES[SMALL]}


@pytest.mark.slow
def test_detector_accepts_option_video_track(folder: Path) -> None:
    path = str(mux(folder, "later.mkv", [SMALL, LARGE], "01"))
    for options, size in (({}, LARGE), ({"video_track": 1}, SMALL)):
        with Detector(engine="null", **options) as detector:
            assert {frame.size for frame, _ in detector.stream(path)} == {SIZES[size]}


def test_only_tags_about_the_content_are_selected() -> None:
    phone = {
        "major_brand": "qt  ",
        "encoder": "Lavf",
        "TITLE": "Yard",
        "com.apple.quicktime.location.ISO6709": "+48.85+002.35/",
        "com.apple.quicktime.make": "Apple",
        "com.apple.quicktime.software": "17.1",
        "location-eng": "+48.85+002.35/",
        "comment": " ",
    }
    assert select_tags(phone) == {
        "title": "Yard",
        "location": "+48.85+002.35/",
        "make": "Apple",
        "location-eng": "+48.85+002.35/",
    }
