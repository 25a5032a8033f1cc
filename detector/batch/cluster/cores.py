"""Choose the cores of a worker on its node: Ray only counts cores and assigns none.

A worker owns a core while it holds the lock on that core's file. The kernel releases the lock when
the process ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress


def claim_cores(count: int, usable: Sequence[int], node_cpus: float) -> tuple[list[int], list[int]]:
    """Return ``count`` usable cores that no other worker has, and the locks to keep open. If fewer
    are free, or ``node_cpus`` is not ``len(usable)`` (a quota), return ``usable`` and no lock."""
    if int(node_cpus) != len(usable) or count >= len(usable):
        return list(usable), []
    folder = os.path.join(tempfile.gettempdir(), f"detect-video-cores-{os.getuid()}")
    taken: list[int] = []
    locks: list[int] = []
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.stat(folder).st_uid != os.getuid():  # another user created it
            return list(usable), []
        for core in usable:
            if len(taken) == count:
                break
            if (lock := take_lock(os.path.join(folder, str(core)), os.O_CREAT)) is not None:
                taken.append(core)
                locks.append(lock)
    if len(taken) == count:
        return taken, locks
    for lock in locks:
        os.close(lock)
    return list(usable), []


def take_lock(path: str, flags: int = 0) -> int | None:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
