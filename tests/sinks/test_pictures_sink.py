"""Annotated pictures: names, formats, and what happens to an existing folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from probing import make_frame, open_sink

from detector.core import sinks
from detector.core.errors import OutputError
from detector.core.sinks import pictures
from detector.core.sinks.pictures import PicturesSink
from detector.core.types import Detections, Frame

NO_DETECTIONS = Detections.empty()


def save_frames(folder: Path, frames: list[Frame], level: int) -> sinks.Sink:
    sink = open_sink("pictures", folder, path=str(folder.parent / "source"), kind="pictures")
    for frame in frames:
        frame.image[:] = level
        sink.write(frame, NO_DETECTIONS)
    sink.close()
    return sink


def save(folder: Path, *paths: str | None, level: int = 50) -> sinks.Sink:
    return save_frames(folder, [make_frame(i, path=path) for i, path in enumerate(paths)], level)


def save_named(folder: Path, *names: str) -> None:
    frames = [make_frame(i, path=f"in/{name}", name=name) for i, name in enumerate(names)]
    save_frames(folder, frames, 50)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != PicturesSink.manifest)


@pytest.mark.parametrize(
    "suffix", [".jpg", ".JPG", ".jpeg", ".png", ".webp", ".bmp", ".tiff", ".jp2", ".ppm"]
)
def test_source_name_and_format_are_kept(suffix: str, tmp_path: Path) -> None:
    save(tmp_path / "out", f"in/photo{suffix}", level=200)
    assert listed(tmp_path / "out") == [f"photo{suffix}"]
    picture = cv2.imread(str(tmp_path / "out" / f"photo{suffix}"))
    assert picture.shape == (48, 64, 3)
    assert np.abs(picture.astype(int) - 200).max() <= 2


def test_pictures_are_encoded_in_parallel_and_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delay the encoding of the first picture until that of the second begins."""
    real, second = pictures.encode, threading.Event()

    def encode(image: Any, *suffixes: str) -> tuple[str, bytes]:
        if image[0, 0, 0] == 0:
            assert second.wait(60)
        second.set()
        return real(image, *suffixes)

    monkeypatch.setattr(pictures, "encode", encode)
    sink = open_sink("pictures", tmp_path / "out", {"at_once": 2}, path="source", kind="pictures")
    for i in range(6):
        frame = make_frame(i, path=f"in/{i}.png")
        frame.image[:] = 20 * i
        sink.write(frame, NO_DETECTIONS)
    sink.close()
    assert sink._written == [f"{i}.png" for i in range(6)]
    for i in range(6):
        assert (cv2.imread(str(tmp_path / "out" / f"{i}.png")) == 20 * i).all()


def test_frames_with_reused_memory_are_encoded_immediately(tmp_path: Path) -> None:
    sink = open_sink("pictures", tmp_path / "out", {"at_once": 2}, path="source.mp4")
    frame = make_frame(0)
    for i in range(5):
        frame.index, frame.image[:] = i, 20 * i
        sink.write(frame, NO_DETECTIONS)
    sink.close()
    for i in range(5):
        image = cv2.imread(str(tmp_path / "out" / f"frame_{i:06}.jpg"))
        assert np.abs(image.astype(int) - 20 * i).max() <= 2


@pytest.mark.parametrize("end", ["close", "abort"])
def test_encoder_error_keeps_finished_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    sink = open_sink("pictures", tmp_path / "out", {"at_once": 2}, path="source", kind="pictures")
    sink.write(make_frame(0, path="in/0.png"), NO_DETECTIONS)
    sink._write_encoded(0)
    monkeypatch.setattr(cv2, "imencode", lambda *_: (False, None))
    sink.write(make_frame(1, path="in/1.png"), NO_DETECTIONS)
    if end == "close":
        with pytest.raises(OutputError, match="cannot encode"):
            sink.close()
    partial = sink.abort()
    assert partial is not None
    assert "1.png" not in os.listdir(partial)
    assert not (tmp_path / "out").exists()


NAMES = [
    # source paths -> names in the folder
    (["a/x.jpg", "b/x.jpg", "c/x.jpg"], ["x-2.jpg", "x-3.jpg", "x.jpg"]),
    (["a/x.jpg", "a/x-2.jpg", "b/x.jpg"], ["x-2.jpg", "x-3.jpg", "x.jpg"]),  # a source is named x-2
    (["x.jpg", "x.png"], ["x.jpg", "x.png"]),
    (["x.gif", "noname"], ["noname.png", "x.png"]),  # PNG if OpenCV cannot write the format exactly
    ([None, None], ["frame_000000.jpg", "frame_000001.jpg"]),  # frames of a video
    (["视频.jpg", os.fsdecode(b"caf\xe9.png")], sorted(["视频.jpg", os.fsdecode(b"caf\xe9.png")])),
]


@pytest.mark.parametrize(("paths", "names"), NAMES, ids=[str(i) for i in range(len(NAMES))])
def test_output_names_are_unique(paths: list[str | None], names: list[str], tmp_path: Path) -> None:
    save(tmp_path / "out", *paths)
    assert listed(tmp_path / "out") == names


def files(folder: Path) -> list[str]:
    paths = [path for path in folder.rglob("*") if not path.is_dir()]
    return sorted(str(path.relative_to(folder)) for path in paths if path.name[0] != ".")


def test_subfolders_are_replaced_by_a_second_run(tmp_path: Path) -> None:
    save_named(tmp_path / "out", "left/a.png", "deep/er/a.png")
    save_named(tmp_path / "out", "right/a.png", "b.png")
    assert files(tmp_path / "out") == ["b.png", "right/a.png"]
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == ["right"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_foreign_file_in_a_subfolder_is_kept(tmp_path: Path) -> None:
    save_named(tmp_path / "out", "left/a.png")
    (tmp_path / "out/left/mine.txt").write_text("mine")
    save_named(tmp_path / "out", "left/a.png", "left/b.png")
    assert files(tmp_path / "out") == ["left/a.png", "left/b.png", "left/mine.txt"]
    with pytest.raises(OutputError):
        save_named(tmp_path / "out", "left/mine.txt/c.png")
    assert (tmp_path / "out/left/mine.txt").read_text() == "mine"


def test_foreign_empty_folder_is_kept(tmp_path: Path) -> None:
    save_named(tmp_path / "out", "left/a.png")
    (tmp_path / "out/mine").mkdir()
    save_named(tmp_path / "out", "b.png")
    assert (tmp_path / "out/mine").is_dir()
    assert files(tmp_path / "out") == ["b.png", "left/a.png"]


@pytest.fixture
def sync_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List each path below ``tmp_path`` when it is synced, and "renamed NAME" at each rename."""
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def sync(file: int) -> None:
        fsync(file)
        done.append(os.path.relpath(os.readlink(f"/proc/self/fd/{file}"), tmp_path))

    def renamed(source: Path, name: Path) -> None:
        rename(source, name)
        done.append(f"renamed {Path(source).name}")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", renamed)
    return done


FOLDER_CONTENT = {"", "/left", "/left/a.png", "/b.png", f"/{PicturesSink.manifest}"}


def test_whole_folder_is_synced_before_it_is_renamed(tmp_path: Path, sync_log: list[str]) -> None:
    save_named(tmp_path / "out", "left/a.png", "b.png")
    at = sync_log.index("renamed out.partial")
    assert {f"out.partial{name}" for name in FOLDER_CONTENT} <= set(sync_log[:at])
    assert sync_log[at + 1 :] == ["."]


def test_files_moved_one_by_one_are_synced(tmp_path: Path, sync_log: list[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    save_named(tmp_path / "out", "left/a.png", "b.png")
    assert {f"out.partial{name}" for name in FOLDER_CONTENT} <= set(sync_log)
    assert {"out", "out/left", f"out/{PicturesSink.manifest}"} <= set(sync_log)


@pytest.mark.parametrize("name", ["../mine/a.png", "link/a.png", "/mine/a.png", "link"])
def test_foreign_manifest_cannot_delete_files_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.png").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/link").symlink_to(tmp_path / "mine")
    (tmp_path / "out" / PicturesSink.manifest).write_text(f"{name}\n")
    save_named(tmp_path / "out", "b.png")
    with pytest.raises(OutputError):
        save_named(tmp_path / "out", "link/a.png")
    assert (tmp_path / "mine/a.png").read_text() == "mine"


def test_picture_too_large_for_its_format_becomes_png(tmp_path: Path) -> None:
    sink = open_sink("pictures", tmp_path / "out")
    sink.write(make_frame(0, size=(1, 16384), path="wide.webp"), NO_DETECTIONS)
    sink.close()
    assert listed(tmp_path / "out") == ["wide.png"]


def test_folder_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    save(tmp_path / "out", "a.png", "b.png", level=10)
    sink = save(tmp_path / "out", "b.png", "c.png", level=90)
    assert listed(tmp_path / "out") == ["b.png", "c.png"]
    assert cv2.imread(str(tmp_path / "out" / "b.png")).max() == 90
    assert sink.notes == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_earlier_folder_is_complete_until_close(tmp_path: Path) -> None:
    save(tmp_path / "out", "a.png", "b.png")
    sink = open_sink("pictures", tmp_path / "out")
    sink.write(make_frame(0, path="a.png"), NO_DETECTIONS)
    assert listed(tmp_path / "out") == ["a.png", "b.png"]
    assert sink.abort() == tmp_path / "out.partial"
    assert listed(tmp_path / "out") == ["a.png", "b.png"]
    assert listed(tmp_path / "out.partial") == ["a.png"]


@pytest.mark.parametrize("ours_before", [True, False])
def test_foreign_files_are_never_deleted(ours_before: bool, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    if ours_before:
        save(folder, "a.png", "b.png", level=10)
    folder.mkdir(exist_ok=True)
    (folder / "thesis.txt").write_text("precious")
    (folder / "sub").mkdir()
    (folder / "sub" / "deep.txt").write_text("precious")
    sink = save(folder, "b.png", "c.png", level=90)
    assert listed(folder) == ["a.png"] * ours_before + ["b.png", "c.png", "sub", "thesis.txt"]
    assert (
        (folder / "thesis.txt").read_text()
        == (folder / "sub" / "deep.txt").read_text()
        == "precious"
    )
    assert cv2.imread(str(folder / "b.png")).max() == 90
    assert "one by one" in sink.notes[0]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_foreign_file_of_the_same_name_is_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "b.png").write_text("precious")
    with pytest.raises(OutputError, match=r"b\.png"):
        save(folder, "a.png", "b.png")
    assert (folder / "b.png").read_text() == "precious"
    assert listed(folder) == ["b.png"]


def test_empty_current_folder_is_filled_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(folder)
    before = folder.stat().st_ino
    save(folder, "in/a.png")
    assert listed(folder) == ["a.png"]
    assert folder.stat().st_ino == before  # the same folder: a shell may be in it
    monkeypatch.chdir(tmp_path)


def test_partial_folder_of_a_killed_run_is_cleared(tmp_path: Path) -> None:
    sink = open_sink("pictures", tmp_path / "out")
    sink.write(make_frame(0, path="old.png"), NO_DETECTIONS)
    assert sink.abort() == tmp_path / "out.partial"
    save(tmp_path / "out", "new.png")
    assert listed(tmp_path / "out") == ["new.png"]


def test_foreign_folder_with_the_temporary_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.txt").write_text("precious")
    with pytest.raises(OutputError, match=r"out\.partial holds files"):
        save(tmp_path / "out", "a.png")
    assert (tmp_path / "out.partial" / "thesis.txt").exists()


def test_folder_of_the_source_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "photos" / "a.png"
    source.parent.mkdir()
    cv2.imwrite(str(source), np.zeros((4, 4, 3), np.uint8))
    before = source.read_bytes()
    sink = open_sink(
        "pictures", tmp_path / "photos", path=str(tmp_path / "photos" / "*.png"), kind="pictures"
    )
    with pytest.raises(OutputError, match="choose another -o"):
        sink.write(make_frame(0, path=str(source)), NO_DETECTIONS)
    assert sink.abort() is None
    assert source.read_bytes() == before


def test_file_with_the_folder_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    with pytest.raises(OutputError, match="is not a folder"):
        save(tmp_path / "out", "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_full_disk_keeps_the_earlier_folder(small_disk: Any) -> None:
    folder = small_disk(96) / "out"
    save(folder, "a.bmp")
    with pytest.raises(OutputError, match="disk full"):
        save(folder, *[f"{i}.bmp" for i in range(20)])
    assert listed(folder) == ["a.bmp"]
