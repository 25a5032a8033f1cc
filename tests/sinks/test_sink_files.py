"""What every sink guarantees for its file: complete or absent, one writer, one-line errors."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probing import make_frame, make_info, one_person, with_scene, write_clip

from detector.core import sinks
from detector.core.errors import OutputError, UsageError

# Sinks that write a file; the others write a folder.
FILES = [name for name in sinks.names() if sinks.find(name).suffixes[0].startswith(".")]


def target(name: str, folder: Path) -> Path:
    return folder / f"out{sinks.find(name).suffixes[0]}"


def partial(name: str, folder: Path) -> Path:
    path = target(name, folder)
    return path.with_name(
        f"{path.stem}.partial{path.suffix}" if name in FILES else f"{path.name}.partial"
    )


def open_sink(name: str, path: Path, **info: Any) -> sinks.Sink:
    sink = sinks.open(name, path)
    if name == "overlay":  # it copies the source's packets
        info.setdefault("path", str(write_clip(path.parent.parent / "source.mp4")))
    sink.open(make_info(**info))
    return sink


def write(sink: sinks.Sink, n: int = 3) -> None:
    person = replace(one_person(), track_ids=np.array([1]))
    for i in range(n):
        sink.write(make_frame(i), with_scene(person, i) if sink.needs else person)


def files_in(folder: Path) -> set[Path]:
    return {p for p in folder.iterdir() if not p.name.endswith(".coco-results.json")}


def test_unknown_sink_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'avi'; .* coco, .*counts, "):
        sinks.open("avi", tmp_path / "x.avi")


@pytest.mark.parametrize("name", sinks.names())
def test_abort_keeps_written_frames_under_the_temporary_name(name: str, tmp_path: Path) -> None:
    sink = open_sink(name, target(name, tmp_path))
    write(sink)
    assert sink.abort() == partial(name, tmp_path)
    assert sorted(tmp_path.iterdir()) == [partial(name, tmp_path)]
    assert sink.abort() is None


@pytest.mark.parametrize("name", sinks.names())
def test_abort_before_open_or_without_a_frame_leaves_nothing(name: str, tmp_path: Path) -> None:
    assert sinks.open(name, target(name, tmp_path)).abort() is None
    assert open_sink(name, target(name, tmp_path)).abort() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("end", ["close", "abort"])
def test_existing_file_is_replaced_only_on_close(name: str, end: str, tmp_path: Path) -> None:
    target(name, tmp_path).write_bytes(b"precious")
    sink = open_sink(name, target(name, tmp_path))
    write(sink)
    assert target(name, tmp_path).read_bytes() == b"precious"
    getattr(sink, end)()
    assert (target(name, tmp_path).read_bytes() == b"precious") == (end == "abort")


@pytest.mark.parametrize("name", sinks.names())
def test_second_writer_is_refused_until_the_first_closes(name: str, tmp_path: Path) -> None:
    first, path = open_sink(name, target(name, tmp_path)), target(name, tmp_path)
    write(first)
    with pytest.raises(OutputError, match="another run"):
        open_sink(name, path)
    first.close()
    third = open_sink(name, path)  # close released the lock
    write(third)
    third.close()


@pytest.mark.parametrize("name", FILES)
def test_link_shares_the_lock_of_its_target_and_remains_a_link(name: str, tmp_path: Path) -> None:
    link = tmp_path / f"link{sinks.find(name).suffixes[0]}"
    link.symlink_to(target(name, tmp_path))
    sink = open_sink(name, link)
    with pytest.raises(OutputError, match="another run"):
        open_sink(name, target(name, tmp_path))
    write(sink)
    assert sink.close() == link
    assert link.is_symlink()
    assert target(name, tmp_path).is_file()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["file", "link", "link to nothing", "pipe"])
def test_foreign_file_with_the_temporary_name_is_kept(name: str, kind: str, tmp_path: Path) -> None:
    foreign = partial(name, tmp_path)
    (tmp_path / "thesis").write_text("precious")
    if kind == "file":
        foreign.write_text("precious")
    elif kind == "link":
        foreign.symlink_to(tmp_path / "thesis")
    elif kind == "link to nothing":
        foreign.symlink_to(tmp_path / "to be written")
    else:
        os.mkfifo(foreign)
    before = os.lstat(foreign)
    sink = open_sink(name, target(name, tmp_path))
    write(sink)
    with pytest.raises(OutputError, match="another run"):
        open_sink(name, target(name, tmp_path))  # out.partial-2 is locked by the first writer
    sink.close()
    assert os.path.samestat(os.lstat(foreign), before)
    assert (tmp_path / "thesis").read_text() == "precious"
    assert kind not in ("file", "link") or foreign.read_text() == "precious"
    assert files_in(tmp_path) == {foreign, tmp_path / "thesis", target(name, tmp_path)}


@pytest.mark.parametrize("name", FILES)
def test_permissions_follow_the_umask(name: str, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        sink = open_sink(name, target(name, tmp_path))
        write(sink)
        sink.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(target(name, tmp_path).stat().st_mode) == 0o666


@pytest.mark.parametrize("name", FILES)
def test_temporary_file_of_an_aborted_run_is_reused(name: str, tmp_path: Path) -> None:
    first = open_sink(name, target(name, tmp_path))
    write(first)
    partial_path = first.abort()
    assert partial_path == partial(name, tmp_path)
    try:
        os.getxattr(partial_path, "user.detect-video")
    except OSError:
        pytest.skip("machine: its temporary folder has no extended attributes")
    second = open_sink(name, target(name, tmp_path))
    write(second)
    second.close()
    assert files_in(tmp_path) == {target(name, tmp_path)}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("which", [target, partial], ids=["target", "temporary name"])
def test_overwriting_the_source_is_refused(name: str, which: Any, tmp_path: Path) -> None:
    which(name, tmp_path).write_bytes(b"source")
    (tmp_path / "hard link").hardlink_to(which(name, tmp_path))
    for source in (which(name, tmp_path), tmp_path / "hard link"):
        sink = sinks.open(name, target(name, tmp_path))
        with pytest.raises(OutputError, match="overwrite the source"):
            sink.open(make_info(str(source)))
        assert sink.abort() is None
        assert source.read_bytes() == b"source"


@pytest.mark.parametrize("name", sinks.names())
def test_error_names_the_missing_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="/nowhere") as caught:
        open_sink(name, target(name, tmp_path / "nowhere"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_folder_with_the_target_name_is_refused(name: str, tmp_path: Path) -> None:
    target(name, tmp_path).mkdir()
    with pytest.raises(OutputError, match="not a regular file"):
        open_sink(name, target(name, tmp_path))
    assert files_in(tmp_path) == {target(name, tmp_path)}


@pytest.mark.parametrize("name", sinks.names())
def test_missing_permission_is_reported(name: str, tmp_path: Path) -> None:
    """Try /proc, too: even root cannot write there."""
    with pytest.raises(OutputError, match="cannot write"):
        open_sink(name, target(name, Path("/proc")))
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(OutputError, match="no permission"):
            open_sink(name, target(name, tmp_path))


@pytest.mark.parametrize("name", sinks.names())
def test_unusual_file_names_are_written(name: str, tmp_path: Path) -> None:
    for stem in ("视频 out", "a:b%03d", "-", "file:x", os.fsdecode(b"caf\xe9"), "#[x]?"):
        sink = open_sink(name, tmp_path / f"{stem}{sinks.find(name).suffixes[0]}")
        write(sink)
        assert sink.close().exists()


ENCODED = [("video", suffix) for suffix in (".webm", ".avi", ".gif", ".ts", ".flv")]


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        pytest.param(name, suffix, marks=pytest.mark.slow if name == "overlay" or suffix else ())
        for name, suffix in [*((name, "") for name in sinks.names()), *ENCODED]
    ],
)
def test_full_disk_is_reported_and_leaves_no_final_file(
    name: str, suffix: str, small_disk: Any
) -> None:
    folder = small_disk(64)
    path = folder / f"out{suffix}" if suffix else target(name, folder)
    sink = open_sink(name, path)
    noise = np.random.default_rng(0).integers(
        0, 256, (4, 240, 320, 3), np.uint8
    )  # does not compress

    def fill() -> None:
        for i in range(20_000):
            frame = make_frame(i)
            frame.image = noise[i % 4]
            # The sink of tracks writes only when a track ends, so each track here lasts one frame.
            sink.write(frame, with_scene(one_person(), i))
        sink.close()

    with pytest.raises(OutputError, match=r"^disk full: \S*/out\S* ") as caught:
        fill()
    assert "\n" not in str(caught.value)
    partial_path = sink.abort()
    assert not path.exists()
    if partial_path is None:
        assert list(folder.iterdir()) == []
