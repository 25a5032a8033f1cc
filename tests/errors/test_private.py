"""Private files and folders of this account, and files that are not trusted."""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from detector.core.errors.private import (
    ACL,
    has_no_home,
    is_roots,
    make_private_folder,
    open_own,
    read_own,
    user_cache,
    who_else_may_write,
)

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="machine: only root can change owners")


def fails(call: Callable[..., object], *arguments: object) -> bool:
    try:
        call(*arguments)
    except OSError:
        return True
    return False


def open_files_in(folder: Path) -> list[str]:
    """Return the open files in the folder. Other threads may open and close files elsewhere."""
    targets = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the file was just closed
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in targets if Path(path).is_relative_to(folder)]


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o755, 0o4755])
def test_file_that_only_its_owner_may_write_is_trusted(own_file: Path, mode: int) -> None:
    own_file.chmod(mode)
    assert who_else_may_write(own_file) is None


@pytest.mark.parametrize("mode", [0o602, 0o666, 0o777, 0o622])
def test_file_that_everyone_may_write_is_not_trusted(own_file: Path, mode: int) -> None:
    own_file.chmod(mode)
    reason = who_else_may_write(own_file)
    assert reason is not None
    assert f"{mode:04o}" in reason
    link = own_file.with_name("link")
    link.symlink_to(own_file)
    assert who_else_may_write(link) == reason
    assert not is_roots(own_file)


@needs_root
def test_file_that_another_group_may_write_is_not_trusted(own_file: Path) -> None:
    own_file.chmod(0o620)
    assert who_else_may_write(own_file) is None  # root's group has no other member
    os.chown(own_file, -1, NOBODY)
    assert who_else_may_write(own_file) is not None
    os.chown(own_file, -1, 54321)  # a group without a name
    assert who_else_may_write(own_file) is not None
    own_file.chmod(0o640)
    assert who_else_may_write(own_file) is None


@needs_root
def test_file_with_an_acl_is_not_trusted(own_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file has an ACL, the group's mode bits show the ACL's mask, not the group's rights."""
    own_file.chmod(0o660)
    assert who_else_may_write(own_file) is None
    monkeypatch.setattr(os, "listxattr", lambda path: [ACL])
    assert who_else_may_write(own_file) is not None


@needs_root
@pytest.mark.parametrize("owner", [1, NOBODY, 54321])
def test_file_of_another_account_is_not_trusted(own_file: Path, owner: int) -> None:
    assert is_roots(own_file)
    os.chown(own_file, owner, -1)
    assert who_else_may_write(own_file) is not None
    assert not is_roots(own_file)


def test_missing_path_has_no_other_writers_and_does_not_belong_to_root(tmp_path: Path) -> None:
    assert who_else_may_write(tmp_path / "absent") is None
    assert not is_roots(tmp_path / "absent")


def test_regular_file_is_read_up_to_its_limit(own_file: Path) -> None:
    assert read_own(own_file, 6) == b"secret"
    assert fails(read_own, own_file, 5)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "absent"])
def test_only_regular_files_are_opened(own_file: Path, kind: str) -> None:
    path = own_file.with_name(kind)
    if kind == "link":
        path.symlink_to(own_file)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    assert fails(open_own, path)
    assert not open_files_in(own_file.parent)


def test_new_folders_are_private_and_existing_ones_unchanged(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / "there").mkdir(mode=0o755)
        make_private_folder(tmp_path / "there" / "a" / "b")
        make_private_folder(tmp_path / "there")
    finally:
        os.umask(before)
    folders = [tmp_path / "there", tmp_path / "there/a", tmp_path / "there/a/b"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in folders] == [0o755, 0o700, 0o700]


def test_unknown_home_creates_nothing_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "~absent-account/cache")
    folder = user_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "detect-video"
    assert not has_no_home(user_cache())
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache/detect-video"
    assert not has_no_home(folder)  # the ~ in the path names another account
    assert has_no_home(Path("~/.cache"))
    assert fails(make_private_folder, Path("~/.cache"))
    assert list(tmp_path.iterdir()) == []
