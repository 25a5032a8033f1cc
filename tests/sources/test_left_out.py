"""What a folder or a pattern holds beside what is read: it is taken, or it is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
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
from detector.core.sources._contents import FFMPEG_PICTURES, PICTURES, VIDEOS, is_picture, is_video
from tests.conftest import CHECKOUT

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


def counted(said: str) -> list[str]:
    """What a note counts, and what it says to type: ``["1 skipped", "1 .txt", "'P/**'"]``."""
    return re.findall(r"\d+ \.?\w+|'.*'", said)


LEFT_OUT = [
    # files -> what is counted
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


@pytest.mark.parametrize(("files", "told"), LEFT_OUT, ids=[str(n) for n in range(len(LEFT_OUT))])
def test_a_folder_names_what_it_leaves_out(files: list[str], told: list[str]) -> None:
    make(*(f"P/{name}" for name in files))
    assert [(note[:3], counted(note)) for note in notes("P")] == ([("P: ", told)] if told else [])


def test_many_suffixes_are_summed_up() -> None:
    make("P/a.jpg", *(f"P/{n}.t{n:02d}" for n in range(20)), "P/x.t00")
    (note,) = notes("P")
    named = ["2 .t00", *(f"1 .t{n:02d}" for n in range(1, 7))]
    assert counted(note) == ["21 skipped", *named, "13 with", "13 other"]


def test_links(place: Path) -> None:
    make("P/a.jpg", "P/s/b.jpg")
    (place / "P/dead.jpg").symlink_to("nowhere")
    (place / "P/s/up").symlink_to("..")
    (place / "P/again").symlink_to("s")
    (note,) = notes("P")
    assert counted(note) == ["1 skipped", "1 neither", "1 subfolder", "1 picture", "'P/**'"]


def test_two_stars_walk(place: Path) -> None:
    make("P/a.jpg", "P/s/b.jpg", "P/s/t/c.PNG", "P/s/.hidden/d.jpg", "P/n.txt", "P/s/v.mxf")
    (place / "P/s/up").symlink_to("..")
    gathered = gather_sources(["P/**"])
    assert gathered == ["P/**", "P/s/v.mxf"]
    assert sources.pictures_of("P/**") == ["P/a.jpg", "P/s/b.jpg", "P/s/t/c.PNG"]
    assert list(map(counted, notes("P/**"))) == [["1 skipped", "1 .txt"]]


def test_a_pattern_names_the_folders_that_it_matches() -> None:
    make("P/a.jpg", "P/s/b.jpg", "P/n.txt")
    assert notes("P/*.jpg") == []
    (note,) = notes("P/*")
    assert counted(note) == ["1 skipped", "1 .txt", "1 subfolder", "1 picture"]
    assert note.endswith(" P/s")


def test_what_runs_wrote_is_not_left_out() -> None:
    make("P/a.jpg", "P/a-ort-detected.jsonl", "P/a-ort-detected/a.jpg", "P/a-ort-detected.mp4")
    mark("P/a-ort-detected.jsonl", "P/a-ort-detected", "P/a-ort-detected.mp4")
    assert notes("P") == []
    assert sources.pictures_of("P/**") == ["P/a.jpg"]


def test_a_source_that_is_missing_among_others() -> None:
    make("a.mp4", "c d.mp4")
    for typed, said in (("a.mp4 b.mp4", "-o b.mp4"), ("c d.mp4", "use c d"), ("a.mp4 b", "path")):
        with pytest.raises(SourceError, match=said):
            gather_sources(typed.split())


def mark(*names: str) -> None:
    try:
        for name in names:
            os.setxattr(name, SETTINGS, b"x")
    except OSError:
        pytest.skip("machine: the folder for tests has no extended attributes")


def test_outputs_that_an_unquoted_pattern_names_again_are_skipped() -> None:
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
    ("files", "told"),
    [
        ([], []),
        (["n.txt"], ["1 skipped", "1 .txt"]),
        (["s/1.jpg", "t/2.jpg"], ["2 subfolders", "2 pictures", "'P/**'"]),
    ],
)
def test_nothing_to_read(files: list[str], told: list[str]) -> None:
    Path("P").mkdir()
    make(*(f"P/{name}" for name in files))
    with pytest.raises(SourceError) as refused:
        sources.check("P")
    assert counted(str(refused.value)) == told


def test_a_folder_that_is_opened_alone_names_its_videos_too() -> None:
    """Open the folder like ``profile``."""
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


def ffmpeg(*arguments: str) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], check=True)


@pytest.mark.parametrize("suffix", [".tga", ".sgi", ".pcx", ".dpx", ".exr", ".xwd"])
def test_pictures_that_opencv_does_not_read_are_pictures(suffix: str) -> None:
    """Decode what ffmpeg made of a PNG, and compare it with the PNG's pixels."""
    assert suffix in FFMPEG_PICTURES
    image = np.zeros((24, 32, 3), np.uint8)
    image[:12, :16] = (10, 100, 200)
    cv2.imwrite("a.png", image)
    ffmpeg("-i", "a.png", "-frames:v", "1", f"P{suffix}")
    with sources.open(f"P{suffix}") as source:
        (frame,) = source
    assert source.info.kind == "pictures"
    assert np.abs(frame.image.astype(int) - image).max() <= 2


def test_an_avif_that_moves_is_a_video() -> None:
    Path("a.avif").write_bytes(b"\0\0\0\x18ftypavis\0\0\0\0")
    Path("b.avif").write_bytes(b"\0\0\0\x18ftypavif\0\0\0\0")
    assert (is_picture("a.avif"), is_video("a.avif")) == (False, True)
    assert (is_picture("b.avif"), is_video("b.avif")) == (True, False)


def test_the_documents_list_the_suffixes() -> None:
    lines = (CHECKOUT / "docs/usage.md").read_text().splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.count("|") == 3]
    listed = {name.strip(): suffixes.split() for name, suffixes in rows}
    assert listed["pictures"] == sorted(PICTURES)
    assert listed["videos"] == sorted(VIDEOS)


@pytest.mark.slow
def test_python_reads_the_videos_of_a_folder_too_and_warns(place: Path) -> None:
    make("P/a.jpg", "P/n.txt", "P/s/b.jpg")
    (place / "P/v.mp4").symlink_to(CHECKOUT / "videos/street.mp4")
    with (
        Detector(engine="null", frames=2) as detector,
        pytest.warns(UserWarning, match=r"P: 1 skipped.* 1 subfolder"),
    ):
        seen = [frame.source or frame.path for frame, _ in detector.stream("P")]
    assert len(seen) == 3
