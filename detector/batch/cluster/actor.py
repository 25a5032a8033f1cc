"""A worker on a node of the cluster: Ray runs ``Worker`` there, as an actor.

The worker is a local pool of one process (local.py). So the pool, not Ray, handles crashes and
hangs. An actor handles one call at a time; every call except ``load`` is short.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from detector.batch import dataset
from detector.batch.cluster.cores import claim_cores, take_lock
from detector.batch.cluster.messages import ORIGIN, Hello, Load, News, Welcome, to_text
from detector.batch.item import Task
from detector.batch.listing import look_at
from detector.batch.local import Limits, LocalPool
from detector.batch.places import open_outputs
from detector.batch.settings import LoadedFacts
from detector.core import __version__
from detector.core.errors import DetectVideoError, UsageError
from detector.core.errors.machine import CORES_VARIABLE
from detector.core.errors.secrets import redact
from detector.core.errors.writing import has_permission
from detector.core.session import codec
from detector.core.sources._addresses import is_address

LOOK_S = 1.0  # how long a call waits for an event while an item is processed
GLANCE_S = 0.05  # how long a call waits while the worker is idle
PREFIX, LOCK = "detect-video-batch-", "worker.lock"
NOBODY = ".nobody"  # cannot be an item's name, since hidden files are not listed


class Worker:
    """Runs on a node. ``_pool`` and ``_facts`` exist after ``load``."""

    _pool: LocalPool
    _facts: LoadedFacts
    _folder: str | None = None

    def __init__(self, node: Callable[[], str] | None = None) -> None:
        self._node = node or _node_of_ray
        self._locks: list[int] = []
        self._next: Task | None = None

    def hello(self, text: str) -> str:
        """Return a ``Welcome`` as text. It names this node and what the node lacks for the job. If
        ``text`` is from another version and cannot be parsed, it names only the node."""
        about: dict[str, Any] = {
            "version": __version__,
            "host": socket.gethostname(),
            "node": self._node(),
        }
        with suppress(UsageError):
            hello = codec.from_json(text, Hello, ORIGIN)
            about["sees"] = _sees(hello)
            about["unseen"] = [path for path in hello.paths if not os.path.exists(path)]
            about["barred"] = dict(_barred(hello))
            about["gathers"] = dataset.is_installed()
        return to_text(Welcome(**about))

    def load(self, load: Load) -> LoadedFacts:
        """Load the model. The first worker gets this call twice: without a digest, to resolve
        ``auto``, and then with the digest of the job's settings."""
        if self._folder is None:
            self._load_first(load)
        if load.digest is not None:
            self._pool.start(load.config, load.digest, 1)
        return self._facts

    def _load_first(self, load: Load) -> None:
        self._folder, lock = make_folder(load.folder or tempfile.gettempdir())
        usable = sorted(os.sched_getaffinity(0))
        cores, self._locks = claim_cores(load.cores, usable, load.node_cpus)
        if not self._locks:
            os.environ[CORES_VARIABLE] = str(load.cores)  # read by the pool's process
        self._locks.append(lock)
        limits = Limits(item=load.item_timeout)
        self._pool = LocalPool(Path(self._folder), load.place, [cores], limits, load.gathers)
        self._facts = self._pool.load_first(load.config, load.pictures, resolves=load.resolves)

    def work(self, task: Task) -> News:
        self._next = task
        return self._look(LOOK_S)

    def look(self) -> News:
        return self._look(GLANCE_S if self._pool.has_room() else LOOK_S)

    def _look(self, seconds: float) -> News:
        self._hand_over()
        events = self._pool.wait(seconds)
        self._hand_over()
        (state,), (report,) = self._pool.states(), self._pool.reports()
        return News(state=state.state, frames=state.frames, starts=report.starts, events=events)

    def _hand_over(self) -> None:
        """Submit the next item if the process is free. The pool first replaces a dead process."""
        if self._next is not None and self._pool.has_room():
            task, self._next = self._next, None
            self._pool.submit(task)

    def close(self) -> None:
        if self._folder is not None:
            self._pool.close()
            shutil.rmtree(self._folder, ignore_errors=True)


def make_folder(place: str) -> tuple[str, int]:
    """Remove the folders of killed workers. Return a new folder and its lock. The kernel releases
    the lock when the process ends."""
    for path in Path(place).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another worker has removed it, or has not locked it yet
            if path.lstat().st_uid == os.getuid() and (old := take_lock(str(path / LOCK))):
                shutil.rmtree(path, ignore_errors=True)
                os.close(old)
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=place)
        lock = take_lock(os.path.join(folder, LOCK), os.O_CREAT)
        if lock is not None and os.path.exists(os.path.join(folder, LOCK)):
            return folder, lock  # otherwise another worker has locked and removed the folder


def _sees(hello: Hello) -> bool:
    """Return whether OUT is the same folder as on the job's machine, and can be written."""
    if not hello.token_file:
        return True
    try:
        found = Path(hello.place, hello.token_file).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False
    return found == hello.token and has_permission(hello.place)


def _barred(hello: Hello) -> Iterator[tuple[str, str]]:
    """Yield (address, reason) for each address that this node cannot open. Items would fail here at
    once, so without this check the node would get most of them."""
    for address in hello.addresses:
        try:
            look_at(address)
        except DetectVideoError as error:
            yield address, redact(str(error))
    if is_address(hello.place):
        try:
            open_outputs(hello.place).read_marker(NOBODY)
        except DetectVideoError as error:
            yield hello.place, redact(str(error))


def _node_of_ray() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
