"""A file that a user names is read whole, or refused with its name: never without end."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from detector.core.errors import ModelError, UsageError, reading
from detector.core.errors.reading import check_regular, read_bytes, read_text


def test_a_file_within_the_limit_is_read_whole(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bytes(tmp_path / "a", "a list", limit=5) == b"12345"
    assert read_text(str(tmp_path / "a"), "a list") == "12345"


@pytest.mark.parametrize("name", ["large", "/dev/zero", "absent", ".", "nul\0name", "latin"])
def test_what_is_no_such_file_is_refused_by_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("large").write_bytes(b"1234567")
    Path("latin").write_bytes(b"a\n\xe9")
    with pytest.raises(ModelError) as caught:
        read_text(name, "a list", limit=5, error=ModelError)
    assert str(caught.value).startswith(name.partition("\0")[0])


def test_a_hole_of_a_terabyte_is_refused_unread(tmp_path):
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)
    for limit, said in ((2 << 30, "2 GB"), (1 << 30, "1 GB"), (5 << 20, "5 MB"), (9, "9 bytes")):
        with pytest.raises(UsageError, match=said):
            read_bytes(tmp_path / "hole", "a list", limit=limit)


def test_an_empty_device_is_an_empty_text():
    assert read_text("/dev/null", "a list") == ""


def test_a_pipe_that_ends_is_read_once_and_known_after_that(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    content = b"person\n" * 20_000  # more than a pipe holds
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[content])
    writer.start()
    assert read_bytes(tmp_path / "pipe", "a list") == content
    writer.join()
    assert read_bytes(tmp_path / "pipe", "a list") == content


def test_a_silent_pipe_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "SILENCE_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError):
        read_bytes(tmp_path / "pipe", "a list")


def test_a_signal_ends_the_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    def read_until_it_comes() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # it may come before the read begins
        read_bytes(tmp_path / "pipe", "a list")

    before = signal.signal(signal.SIGALRM, leave)
    try:
        with pytest.raises(KeyboardInterrupt):
            read_until_it_comes()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_a_library_opens_must_be_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "absent"):
        check_regular(path, "a model", ModelError)
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ModelError):
            check_regular(path, "a model", ModelError)
