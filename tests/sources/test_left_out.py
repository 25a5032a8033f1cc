"""Files beside the pictures of a folder or pattern: videos are read, other files are noted."""

import json
import os
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector import Detector
from detector.core import sources
from detector.core.config.levels import resolve_config
from detector.core.errors import SourceError
from detector.core.run.detect import detect
from detector.core.run.inputs import gather_sources
from detector.core.run.outputs import SETTINGS
from detector.core.sources._contents import FFMPEG_PICTURES, PICTURES, VIDEOS
from detector.core.sources._folders import is_picture, is_video
from tests.conftest import CHECKOUT

from .oddities import ffmpeg

pytestmark = pytest.mark.usefixtures("place")


def make(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() in (".jpg", ".png", ".ppm", ".jp2"):
            image = np.full((64, 64, 3), 90, np.uint8)
            path.write_bytes(cv2.imencode(path.suffix.lower(), image)[1].tobytes())
        else:
            path.write_bytes(b"x")


def notes(*specs: str) -> list[str]:
    return [note for note in map(sources.note_of, gather_sources(specs)) if note]


def counted(note: str) -> list[str]:
    """Return a note's counts and suggestion, like ``["1 skipped", "1 .txt", "'P/**'"]``."""
    return re.findall(r"\d+ \.?\w+|'.*'", note)


SKIPPED = [
    # files -> counts in the note
    (["a.jpg", "b.PPM", "c.jp2", "D.JPG"], []),
    (["a.jpg", "n.txt", "m.TXT", "q.xyz"], ["3 skipped", "2 .txt", "1 .xyz"]),
    (["a.jpg", "v.mxf", "w.OGV"], []),
    (["v.h264", "README"], ["1 skipped", "1 without"]),
    (["a.jpg", ".hidden", ".git/x.jpg"], []),
    (["a.jpg", "s/1.jpg", "s/t/2.PNG"], ["1 subfolder", "2 pictures", "'P/**'"]),
    (
        ["a.jpg", "n.txt", "s/1.jpg", "t/v.vob", "u/notes.md"],
        ["1 skipped", "1 .txt", "2 subfolders", "1 picture", "1 video", "'P/**'"],
    ),
]


@pytest.mark.parametrize(("files", "expected"), SKIPPED, ids=[str(n) for n in range(len(SKIPPED))])
def test_skipped_files_of_a_folder_are_noted(files: list[str], expected: list[str]) -> None:
    make(*(f"P/{name}" for name in files))
    assert [(note[:3], counted(note)) for note in notes("P")] == (
        [("P: ", expected)] if expected else []
    )


def test_many_suffixes_are_summarized() -> None:
    make("P/a.jpg", *(f"P/{n}.t{n:02d}" for n in range(20)), "P/x.t00")
    (note,) = notes("P")
    named = ["2 .t00", *(f"1 .t{n:02d}" for n in range(1, 7))]
    assert counted(note) == ["21 skipped", *named, "13 with", "13 other"]


def test_links_are_followed_once(place: Path) -> None:
    make("P/a.jpg", "P/s/b.jpg")
    (place / "P/dead.jpg").symlink_to("nowhere")
    (place / "P/s/up").symlink_to("..")
    (place / "P/again").symlink_to("s")
    (note,) = notes("P")
    assert counted(note) == ["1 skipped", "1 neither", "1 subfolder", "1 picture", "'P/**'"]


def test_double_star_walks_subfolders(place: Path) -> None:
    make("P/a.jpg", "P/s/b.jpg", "P/s/t/c.PNG", "P/s/.hidden/d.jpg", "P/n.txt", "P/s/v.mxf")
    (place / "P/s/up").symlink_to("..")
    gathered = gather_sources(["P/**"])
    assert gathered == ["P/**", "P/s/v.mxf"]
    assert sources.pictures_of("P/**") == ["P/a.jpg", "P/s/b.jpg", "P/s/t/c.PNG"]
    assert list(map(counted, notes("P/**"))) == [["1 skipped", "1 .txt"]]


def test_folders_that_a_pattern_matches_are_noted() -> None:
    make("P/a.jpg", "P/s/b.jpg", "P/n.txt")
    assert notes("P/*.jpg") == []
    (note,) = notes("P/*")
    assert counted(note) == ["1 skipped", "1 .txt", "1 subfolder", "1 picture"]
    assert note.endswith(" P/s")


def test_outputs_of_runs_are_ignored_without_a_note() -> None:
    make("P/a.jpg", "P/a-ort-detected.jsonl", "P/a-ort-detected/a.jpg", "P/a-ort-detected.mp4")
    mark("P/a-ort-detected.jsonl", "P/a-ort-detected", "P/a-ort-detected.mp4")
    assert notes("P") == []
    assert sources.pictures_of("P/**") == ["P/a.jpg"]


def test_missing_source_gets_a_hint() -> None:
    make("a.mp4", "c d.mp4")
    for typed, hint in (
        ("a.mp4 b.mp4", "-o b.mp4"),
        ("c d.mp4", "did you mean 'c d"),
        ("a.mp4 b", "path"),
    ):
        with pytest.raises(SourceError, match=hint):
            gather_sources(typed.split())


def mark(*names: str) -> None:
    try:
        for name in names:
            os.setxattr(name, SETTINGS, b"x")
    except OSError:
        pytest.skip("machine: the folder for tests has no extended attributes")


def test_earlier_outputs_that_an_unquoted_pattern_matches_are_skipped() -> None:
    make("a.mp4", "a-detected.mp4", "a-detected-detected.mp4", "b.mp4", "c-detected.mp4")
    mark("a-detected.mp4", "a-detected-detected.mp4", "c-detected.mp4")
    typed = sorted(map(str, Path().glob("*.mp4")))
    assert gather_sources(typed) == ["a.mp4", "b.mp4", "c-detected.mp4"]
    assert list(map(counted, notes(*typed))) == [["2 earlier"]]
    make("p.jpg", "q.jpg", "p-detected.jpg")
    mark("p-detected.jpg")
    (pictures,) = gather_sources(["p-detected.jpg", "p.jpg", "q.jpg"])
    assert sources.pictures_of(pictures) == ["p.jpg", "q.jpg"]
    assert gather_sources(["a-detected.mp4"]) == ["a-detected.mp4"]
    with pytest.raises(SourceError, match="all 3 videos are earlier outputs"):
        sources.check("*-detected.mp4")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], []),
        (["n.txt"], ["1 skipped", "1 .txt"]),
        (["s/1.jpg", "t/2.jpg"], ["2 subfolders", "2 pictures", "'P/**'"]),
    ],
)
def test_folder_with_nothing_to_read_is_refused(files: list[str], expected: list[str]) -> None:
    Path("P").mkdir()
    make(*(f"P/{name}" for name in files))
    with pytest.raises(SourceError) as refused:
        sources.check("P")
    assert counted(str(refused.value)) == expected


def test_folder_opened_as_one_source_notes_its_videos_as_skipped() -> None:
    make("P/a.jpg", "P/b.jpg", "P/v.mkv", "P/n.txt")
    for frames in (None, 1):
        with sources.open("P", frames=frames) as source:
            list(source)
            assert list(map(counted, source.notes)) == [["2 skipped", "1 .mkv", "1 .txt"]]


def test_skipped_files_are_noted_in_the_summary() -> None:
    make("P/a.jpg", "P/n.txt")
    config = resolve_config(None, {"engine": "null", "save": "jsonl"})
    summary = detect(gather_sources(["P"]), config).summary
    assert ["1 skipped", "1 .txt"] in map(counted, summary.notes)
    json.dumps(summary.notes)


@pytest.mark.parametrize("suffix", [".tga", ".sgi", ".pcx", ".dpx", ".exr", ".xwd"])
def test_picture_that_opencv_cannot_read_is_read_by_ffmpeg(suffix: str) -> None:
    assert suffix in FFMPEG_PICTURES
    image = np.zeros((24, 32, 3), np.uint8)
    image[:12, :16] = (10, 100, 200)
    cv2.imwrite("a.png", image)
    ffmpeg("-i", "a.png", "-frames:v", "1", f"P{suffix}")
    with sources.open(f"P{suffix}") as source:
        (frame,) = source
    assert source.info.kind == "pictures"
    assert np.abs(frame.image.astype(int) - image).max() <= 2


def test_animated_avif_is_a_video() -> None:
    Path("a.avif").write_bytes(b"\0\0\0\x18ftypavis\0\0\0\0")
    Path("b.avif").write_bytes(b"\0\0\0\x18ftypavif\0\0\0\0")
    assert (is_picture("a.avif"), is_video("a.avif")) == (False, True)
    assert (is_picture("b.avif"), is_video("b.avif")) == (True, False)


def test_documented_suffixes_are_complete() -> None:
    lines = (CHECKOUT / "docs/usage.md").read_text().splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.count("|") == 3]
    listed = {name.strip(): suffixes.split() for name, suffixes in rows}
    assert listed["pictures"] == sorted(PICTURES)
    assert listed["videos"] == sorted(VIDEOS)


@pytest.mark.slow
def test_detector_reads_the_videos_of_a_folder_and_warns(place: Path) -> None:
    make("P/a.jpg", "P/n.txt", "P/s/b.jpg")
    (place / "P/v.mp4").symlink_to(CHECKOUT / "videos/street.mp4")
    with (
        Detector(engine="null", frames=2) as detector,
        pytest.warns(UserWarning, match=r"P: 1 skipped.* 1 subfolder"),
    ):
        assert len(list(detector.stream("P"))) == 3
