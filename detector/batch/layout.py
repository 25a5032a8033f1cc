"""The names of files in an output folder, and the lock that reserves it for a job or its shards."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from detector.batch.listing import WHOLE, Shard
from detector.core.errors import OutputError
from detector.core.errors.writing import take_lock

FILES, MARKER, ROWS, SORTED = "files", "done.json", "detections.jsonl", "sorted"
SCRATCH = ".detect-video-item-"  # prefix of an unfinished item's hidden folder; a digest follows
LOCK = ".detect-video-batch"
# Names that a job uses in its folder, including those of the results and of the dataset.
OWN = re.compile(
    r"files|sorted|detections([-\w]*\.csv)?|job\.json|settings\.yaml|(manifest|failures)[-\w]*\.\w+"
)
MARKER_BYTES = 4 << 20
CURE = "choose another folder with -o"


def named(stem: str, suffix: str, shard: Shard) -> str:
    """Return ``manifest.sqlite``, or ``manifest-2-of-4.sqlite`` for a shard."""
    return f"{stem}{suffix}" if shard == WHOLE else f"{stem}-{shard}{suffix}"


def remove_tree(path: str | Path) -> None:
    """Remove one of our folders. If ``path`` is a link, remove only the link."""
    if os.path.islink(path):
        with suppress(OSError):
            os.unlink(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _refuse_links(place: str) -> None:
    with suppress(FileNotFoundError), os.scandir(place) as entries:
        for entry in entries:
            if OWN.fullmatch(entry.name) and entry.is_symlink():
                raise OutputError(
                    f"{entry.path}: is a link, but a job writes only inside its folder; remove "
                    f"the link, or {CURE}"
                )


@contextmanager
def locked(place: str, shard: Shard) -> Iterator[None]:
    """Lock an output folder against other jobs. The shards of one job may share it, but the same
    shard may not run twice. The kernel releases the lock when the process ends. A file system
    without locks gives no protection."""
    held: list[int] = []
    _refuse_links(place)
    try:
        whole = _open_lock(place, LOCK)
        held.append(whole)
        if not take_lock(whole, shared=shard != WHOLE):
            raise OutputError(f"{place}: another batch job is running here; wait for it, or {CURE}")
        if shard != WHOLE:
            own = _open_lock(place, f"{LOCK}-{shard}")
            held.append(own)
            if not take_lock(own):
                raise OutputError(f"{place}: --shard {shard.number}/{shard.of} is already running")
            if other := _other_division(place, shard):
                raise OutputError(
                    f"{place}: shard {other} is running here; all shards that run at once need the "
                    "same N in --shard I/N"
                )
        yield
    finally:
        for file in held:
            os.close(file)


def is_running(place: str) -> bool:
    """Return whether a job or a shard runs in ``place``; False if its file system has no locks."""
    try:
        file = os.open(os.path.join(place, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not take_lock(file)
    finally:
        os.close(file)


def _other_division(place: str, shard: Shard) -> str | None:
    for path in Path(place).glob(f"{LOCK}-*-of-*"):
        text = path.name.removeprefix(f"{LOCK}-")
        if text.endswith(f"-of-{shard.of}"):
            continue
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if not take_lock(file):
                    return text
            finally:
                os.close(file)
    return None


def _open_lock(place: str, name: str) -> int:
    path = os.path.join(place, name)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}; {CURE}") from error
