"""Files that a user names are read completely or refused, with limits on size and waiting."""

import os
import signal
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from detector.core.errors import ModelError, UsageError, reading
from detector.core.errors.reading import check_regular, read_bytes, read_text


def test_file_within_the_limit_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bytes(tmp_path / "a", "a list", limit=5) == b"12345"
    assert read_text(str(tmp_path / "a"), "a list") == "12345"


def test_error_of_an_unreadable_file_asks_for_read_access_not_a_new_file(tmp_path, monkeypatch):
    refuse = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr("detector.core.errors.reading.os.open", refuse)
    with pytest.raises(UsageError, match="read access"):
        read_text(tmp_path / "token", "a token", cure="make one with: openssl")


@pytest.mark.parametrize("name", ["large", "/dev/zero", "absent", ".", "nul\0name", "latin"])
def test_unreadable_or_large_file_is_refused_with_its_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("large").write_bytes(b"1234567")
    Path("latin").write_bytes(b"a\n\xe9")
    with pytest.raises(ModelError) as caught:
        read_text(name, "a list", limit=5, error=ModelError)
    assert str(caught.value).startswith(name.partition("\0")[0])


def test_sparse_file_above_the_limit_is_refused_without_being_read(tmp_path):
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)
    for limit, limit_text in (
        (2 << 30, "2 GB"),
        (1 << 30, "1 GB"),
        (5 << 20, "5 MB"),
        (9, "9 bytes"),
    ):
        with pytest.raises(UsageError, match=limit_text):
            read_bytes(tmp_path / "hole", "a list", limit=limit)


def test_null_device_reads_as_empty_text():
    assert read_text("/dev/null", "a list") == ""


def test_content_of_a_pipe_is_remembered(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    content = b"person\n" * 20_000  # more than a pipe holds
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[content])
    writer.start()
    assert read_bytes(tmp_path / "pipe", "a list") == content
    writer.join()
    assert read_bytes(tmp_path / "pipe", "a list") == content


def test_pipe_without_a_writer_is_refused_after_a_timeout(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "SILENCE_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError):
        read_bytes(tmp_path / "pipe", "a list")


def test_signal_interrupts_reading_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    def read_until_the_signal() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # the signal may come before the read begins
        read_bytes(tmp_path / "pipe", "a list")

    before = signal.signal(signal.SIGALRM, leave)
    try:
        with pytest.raises(KeyboardInterrupt):
            read_until_the_signal()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_only_regular_or_missing_files_pass_check_regular(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "absent"):
        check_regular(path, "a model", ModelError)
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ModelError):
            check_regular(path, "a model", ModelError)
