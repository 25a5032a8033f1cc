"""Writing files, which get their final name only when complete; locks and temporary folders."""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from detector.core.errors import OutputError
from detector.core.errors.holding import hold
from detector.core.errors.writing import (
    HIDDEN,
    is_null_device,
    put_in_place,
    remove_hidden_files,
    take_lock,
    temporary_folder,
    whole_file,
    write_whole,
)
from tests.conftest import CHECKOUT


def test_file_appears_when_complete_and_the_temporary_one_is_removed(tmp_path):
    target = tmp_path / "new/spans.npz"
    target.parent.mkdir()
    with whole_file(target, "cure") as temporary:
        np.savez(temporary, x=np.arange(3))
        assert not target.exists()
    assert np.load(target)["x"].tolist() == [0, 1, 2]
    assert [path.name for path in target.parent.iterdir()] == ["spans.npz"]


def test_failed_write_keeps_the_earlier_file(tmp_path):
    target = tmp_path / "a.json"
    write_whole(target, b"before")

    def write_half() -> None:
        with whole_file(target, "cure") as temporary:
            temporary.write_bytes(b"aft")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        write_half()
    assert target.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_failed_write_raises_output_error_with_name_and_cure(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "file/x.json", tmp_path / "folder"):
        with pytest.raises(OutputError, match=r"cannot be written: .*--there") as caught:
            write_whole(target, b"x", "give --there")
        assert str(target) in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


# ---- order of syncs, so that a power loss does no harm


class SyncLog:
    """A log of the calls of os.fsync and os.replace."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, ...]] = []
        fsync, replace = os.fsync, os.replace

        def sync(file: int) -> None:
            fsync(file)
            path = Path(os.readlink(f"/proc/self/fd/{file}"))
            content = "a folder" if path.is_dir() else path.read_text()
            self.events.append(("sync", content))

        def rename(source: Path, target: Path) -> None:
            replace(source, target)
            self.events.append(("rename", Path(target).name))

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "replace", rename)


@pytest.mark.parametrize("by", [write_whole, put_in_place])
def test_content_is_synced_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch, by):
    log = SyncLog(monkeypatch)
    if by is write_whole:
        write_whole(tmp_path / "x.json", b"whole")
    else:
        with (tmp_path / "hidden").open("wb") as file:
            file.write(b"whole")
            file.flush()
            put_in_place(tmp_path / "hidden", tmp_path / "x.json", file.fileno())
    assert log.events == [("sync", "whole"), ("rename", "x.json"), ("sync", "a folder")]


def failing(error: int, on_folders: bool):
    fsync = os.fsync

    def fail(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode) == on_folders:
            raise OSError(error, os.strerror(error))
        fsync(file)

    return fail


def test_failed_sync_of_the_content_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(errno.EIO, on_folders=False))
    with pytest.raises(OutputError, match="Input/output error"):
        write_whole(tmp_path / "x.json", b"whole")
    assert list(tmp_path.iterdir()) == []


def test_failed_sync_of_a_folder_raises_unless_folders_cannot_be_synced(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(errno.EIO, on_folders=True))
    with pytest.raises(OutputError, match="Input/output error"):
        write_whole(tmp_path / "x.json", b"whole")
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL, on_folders=True))
    write_whole(tmp_path / "y.json", b"whole")
    assert (tmp_path / "y.json").read_bytes() == b"whole"


# ---- permissions


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_file_modes_follow_the_umask_unless_files_are_private(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "a" / "row.json", b"")
        write_whole(tmp_path / "b" / "c" / "key.json", b"", private=True)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    folder = 0o777 & ~umask
    assert modes == {"a": folder, "row.json": mode, "b": 0o700, "c": 0o700, "key.json": 0o600}


# ---- temporary folders


def test_missing_temporary_folder_raises_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(OutputError, match=r"set TMPDIR$"), temporary_folder():
        pass
    (tmp_path / "in.mp4").write_bytes(b"\0")
    with hold(str(tmp_path / "in.mp4")) as held:  # works, since it needs no temporary folder
        assert held.name == str(tmp_path / "in.mp4")


def test_detector_never_uses_tempfile_temporary_directory():
    """Python 3.11's TemporaryDirectory overflows the stack if it cannot remove its content."""
    for path in (CHECKOUT / "detector").rglob("*.py"):
        assert "TemporaryDirectory(" not in path.read_text(), path


def test_temporary_folder_is_private_and_removed_with_its_content(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_folder("x-") as folder:
        assert folder.parent == tmp_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_temporary_folder_is_removed_despite_a_signal_during_removal(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove, calls = shutil.rmtree, []

    def interrupted(*arguments, **more):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(*arguments, **more)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), temporary_folder("x-"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_only_hidden_files_of_killed_processes_are_removed(tmp_path):
    for name in ("1a2b3c4d.npz", "1a2b3c4d5e6f7a8b.npz", "1a2b3c4.npz", "notes"):
        (tmp_path / f"{HIDDEN}{name}").write_bytes(b"")
    (tmp_path / "1a2b3c4d.npz").write_bytes(b"")
    remove_hidden_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{HIDDEN}1a2b3c4.npz",
        f"{HIDDEN}notes",
        "1a2b3c4d.npz",
    }


def test_second_lock_fails_and_unsupported_locks_succeed(tmp_path, monkeypatch):
    with (tmp_path / "x").open("wb") as first, (tmp_path / "x").open("rb") as second:
        assert take_lock(first.fileno()) is True
        assert take_lock(second.fileno()) is False

        def flock(error):
            monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(error, "x")))

        flock(errno.ENOLCK)
        assert take_lock(second.fileno()) is True
        flock(errno.EIO)
        with pytest.raises(OSError, match="x"):
            take_lock(second.fileno())


def test_null_device_is_recognized_by_any_path(tmp_path):
    (tmp_path / "link").symlink_to(os.devnull)
    (tmp_path / "file").write_bytes(b"")
    for path in (os.devnull, Path(os.devnull), tmp_path / "link"):
        assert is_null_device(path) is True
    for path in ("/dev/zero", tmp_path / "file", tmp_path / "absent", "a\0b", tmp_path):
        assert is_null_device(path) is False
