"""Download a known model's official file: resume a partial download, check size and sha256."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from detector.core.errors import ModelError
from detector.core.errors.private import make_private_folder
from detector.core.errors.writing import put_in_place, set_aside
from detector.core.models.catalogue import Download, known_model

BLOCK_BYTES = 1 << 16
TIMEOUT_S = 30  # after this time without data, give up

Progress = Callable[[int, int], None]
"""(bytes downloaded, bytes in total)"""


def pull(name: str, progress: Progress | None = None) -> tuple[Path, bool]:
    """Download or resume the official file of ``name``; return it, and whether it was downloaded.
    A different file in its place is renamed to ``FILE.replaced``. Raises ModelError."""
    model = known_model(name)
    download = model.download
    if download is None:
        why = f"it needs {model.needs}" if model.needs else "it is part of the package"
        raise ModelError(f"{name}: nothing to pull: {why}")
    if download.sha256 is None or download.size is None:
        raise ModelError(
            f"{name}: its checksum is unknown, so it cannot be downloaded: {model.how_to_get()}"
        )
    if _is_complete(download.target, download):
        return download.target, False
    try:
        make_private_folder(download.target.parent)
        _fetch_into_cache(name, download, progress or (lambda done, total: None))
    except OSError as exc:
        raise ModelError(
            f"{download.target}: cannot be written: {exc.strerror or exc}; set XDG_CACHE_HOME to a "
            "folder that you can write"
        ) from exc
    return download.target, True


def _fetch_into_cache(name: str, download: Download, progress: Progress) -> None:
    partial = download.target.with_name(f"{download.target.name}.partial")
    with partial.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelError(
                f"{name}: another process is downloading it; wait until it has finished"
            ) from None
        _fetch(name, download, file, progress)
        file.flush()
        digest, size = _digest(partial), partial.stat().st_size
        if size < (download.size or 0):
            raise ModelError(
                f"{name}: the connection ended after {size} of {download.size} bytes; "
                "run the command again to resume"
            )
        if digest != download.sha256 or size != download.size:
            partial.unlink()
            raise ModelError(
                f"{name}: {download.url} returned another file: {size} bytes with sha256 {digest} "
                f"instead of {download.size} bytes with sha256 {download.sha256}; the download was "
                "removed"
            )
        set_aside(download.target)
        put_in_place(partial, download.target, file.fileno())


def _fetch(name: str, download: Download, file: IO[bytes], progress: Progress) -> None:
    """Append the missing bytes to the partial file. Start again if the server cannot resume."""
    from detector.core.http import open_from

    size = download.size or 0
    have = file.seek(0, os.SEEK_END)
    if have > size:
        file.truncate(have := 0)
    if have == size:
        return  # complete, but the process that downloaded it ended before the check
    if not download.url.startswith(("http://", "https://")):
        raise ModelError(f"{download.url}: only http and https are supported")
    with _server_errors(name, download):
        answer = open_from(download.url, have, timeout_s=TIMEOUT_S)
    with closing(answer):
        if have != answer.start:
            file.truncate(have := 0)
        progress(have, size)
        while have <= size:  # one byte too many is enough to reject what the server sends
            with _server_errors(name, download):
                block = answer.read(min(BLOCK_BYTES, size + 1 - have))
            if not block:
                break
            file.write(block)
            have += len(block)
            progress(min(have, size), size)


@contextmanager
def _server_errors(name: str, download: Download) -> Iterator[None]:
    from urllib.error import HTTPError

    try:
        yield
    except (OSError, ValueError) as exc:
        reason = f"HTTP {exc.code} {exc.reason}" if isinstance(exc, HTTPError) else exc
        raise ModelError(
            f"{name}: {download.url} cannot be downloaded: {reason}; try again (the download "
            f"resumes where it stopped), or put the file at {download.target} yourself (sha256 "
            f"{download.sha256})"
        ) from exc


def _is_complete(path: Path, download: Download) -> bool:
    return (
        path.is_file() and path.stat().st_size == download.size and _digest(path) == download.sha256
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
