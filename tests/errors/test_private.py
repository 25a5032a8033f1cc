"""Private files of this account: how they are made, and which files are not trusted."""

from __future__ import annotations

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
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="machine: only root may give files away")


def fails(call: Callable[..., object], *arguments: object) -> bool:
    try:
        call(*arguments)
    except OSError:
        return True
    return False


def opened_in(folder: Path) -> list[str]:
    """Return this process's open files in the folder; other threads change the count of all."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # just closed
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if Path(path).is_relative_to(folder)]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o755, 0o4755])
def test_what_others_may_only_read_is_ours(mine: Path, mode: int) -> None:
    mine.chmod(mode)
    assert who_else_may_write(mine) is None


@pytest.mark.parametrize("mode", [0o602, 0o666, 0o777, 0o622])
def test_what_everybody_may_write_is_not(mine: Path, mode: int) -> None:
    mine.chmod(mode)
    said = who_else_may_write(mine)
    assert said is not None
    assert f"{mode:04o}" in said
    link = mine.with_name("link")
    link.symlink_to(mine)
    assert who_else_may_write(link) == said
    assert not is_roots(mine)


@needs_root
def test_what_another_group_may_write_is_not(mine: Path) -> None:
    mine.chmod(0o620)
    assert who_else_may_write(mine) is None  # root's group has no other member
    os.chown(mine, -1, NOBODY)
    assert who_else_may_write(mine) is not None
    os.chown(mine, -1, 54321)  # a group without a name
    assert who_else_may_write(mine) is not None
    mine.chmod(0o640)
    assert who_else_may_write(mine) is None


@needs_root
def test_a_file_with_rights_for_single_accounts_is_not(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group's bits are then what the most of them may."""
    mine.chmod(0o660)
    assert who_else_may_write(mine) is None
    monkeypatch.setattr(os, "listxattr", lambda path: [ACL])
    assert who_else_may_write(mine) is not None


@needs_root
@pytest.mark.parametrize("owner", [1, NOBODY, 54321])
def test_what_belongs_to_another_account_is_not(mine: Path, owner: int) -> None:
    assert is_roots(mine)
    os.chown(mine, owner, -1)
    assert who_else_may_write(mine) is not None
    assert not is_roots(mine)


def test_missing_path_has_no_other_writers_and_is_not_roots(tmp_path: Path) -> None:
    assert who_else_may_write(tmp_path / "absent") is None
    assert not is_roots(tmp_path / "absent")


def test_a_plain_file_is_read_up_to_its_limit(mine: Path) -> None:
    assert read_own(mine, 6) == b"secret"
    assert fails(read_own, mine, 5)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "absent"])
def test_nothing_but_a_plain_file_is_opened(mine: Path, kind: str) -> None:
    """A pipe would wait for a writer for ever."""
    path = mine.with_name(kind)
    if kind == "link":
        path.symlink_to(mine)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    assert fails(open_own, path)
    assert not opened_in(mine.parent)


def test_folders_are_made_for_this_account_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / "there").mkdir(mode=0o755)
        make_private_folder(tmp_path / "there" / "a" / "b")
        make_private_folder(tmp_path / "there")
    finally:
        os.umask(before)
    made = [tmp_path / "there", tmp_path / "there/a", tmp_path / "there/a/b"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o755, 0o700, 0o700]


def test_without_a_home_nothing_is_made_in_the_current_folder(
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
    assert not has_no_home(folder)  # its ~ is another account's
    assert has_no_home(Path("~/.cache"))
    assert fails(make_private_folder, Path("~/.cache"))
    assert list(tmp_path.iterdir()) == []
