"""A worker on a node of the cluster. Ray runs ``Worker`` as an actor, on the node's own
installation of detect-video.

It is a pool of one process (local.py): crashes, hangs and their replacement are as on one machine,
and Ray sees none of them. An actor takes one call at a time, each short but for loading.
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

from detector import __version__
from detector.batch import dataset
from detector.batch.cluster.cores import claim_cores
from detector.batch.cluster.messages import (
    ORIGIN,
    Begin,
    Happened,
    Hello,
    Load,
    Loaded,
    News,
    Welcome,
    to_text,
)
from detector.batch.item import Task
from detector.batch.listing import look_at
from detector.batch.local import Limits, LocalPool
from detector.batch.places import open_outputs
from detector.batch.pool import Event
from detector.core.errors import DetectVideoError, UsageError
from detector.core.errors.machine import CORES_VARIABLE
from detector.core.errors.secrets import redact
from detector.core.errors.writing import has_permission
from detector.core.session import codec
from detector.core.sources._addresses import is_address

LOOK_S = 1.0  # a call waits so long for something to happen while an item is under way
GLANCE_S = 0.05  # and so long where none is
NOBODY = ".nobody"  # no item's name: hidden ones are left out


class Worker:
    """``node``: tells the id of the node; Ray's own, or a fake."""

    def __init__(self, node: Callable[[], str] | None = None) -> None:
        self._node = node or _node_of_ray
        self._pool: LocalPool | None = None
        self._folder: str | None = None
        self._locks: list[int] = []
        self._next: Task | None = None

    def hello(self, text: str) -> str:
        """What this node is, and what it sees of the job. Of a job of another version only the
        version is told."""
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

    def load(self, text: str) -> str:
        load = codec.from_json(text, Load, ORIGIN)
        try:
            self._pool = self._make_pool(load)
            facts = self._pool.load_first(load.config, load.pictures, resolves=load.resolves)
        except DetectVideoError as error:
            return to_text(Loaded(error=str(error), exit_code=error.exit_code))
        return to_text(Loaded(facts=codec.to_builtins(facts)))

    def _make_pool(self, load: Load) -> LocalPool:
        self._folder = tempfile.mkdtemp(prefix="detect-video-batch-")
        usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        cores, self._locks = claim_cores(load.cores, usable, load.node_cpus)
        if not self._locks:
            os.environ[CORES_VARIABLE] = str(load.cores)  # the process that is started reads it
        limits = Limits(item=load.item_timeout)
        return LocalPool(Path(self._folder), load.place, [cores], limits, load.gathers)

    def begin(self, text: str) -> str:
        """The settings in force. The process is started anew where it was loaded with others."""
        begin = codec.from_json(text, Begin, ORIGIN)
        assert self._pool is not None, "load comes first"
        self._pool.start(begin.config, begin.digest, 1)
        return self._look(GLANCE_S)

    def work(self, text: str) -> str:
        self._next = codec.from_json(text, Task, ORIGIN)
        return self._look(LOOK_S)

    def look(self, text: str = "") -> str:
        assert self._pool is not None, "load comes first"
        return self._look(GLANCE_S if self._pool.has_room() else LOOK_S)

    def _look(self, seconds: float) -> str:
        pool = self._pool
        assert pool is not None, "load comes first"
        self._hand_over(pool)
        events = pool.wait(seconds)
        self._hand_over(pool)
        (state,), (report,) = pool.states(), pool.reports()
        happened = [_as_message(event) for event in events]
        news = News(state=state.state, frames=state.frames, starts=report.starts, events=happened)
        return to_text(news)

    def _hand_over(self, pool: LocalPool) -> None:
        """An idle process may have died a moment ago: then the item waits for the next one."""
        if self._next is not None and pool.has_room():
            task, self._next = self._next, None
            pool.submit(task)

    def close(self, text: str = "") -> str:
        """Ends the process in order. What it works on is dropped, and nothing of it stays."""
        if self._pool is not None:
            self._pool.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return ""


def _as_message(event: Event) -> Happened:
    return Happened(kind=type(event).__name__, event=codec.to_builtins(event))


def _sees(hello: Hello) -> bool:
    """Whether OUT is the very folder that the job has, and can be written."""
    if not hello.token_file:
        return True
    try:
        found = Path(hello.place, hello.token_file).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False
    return found == hello.token and has_permission(hello.place)


def _barred(hello: Hello) -> Iterator[tuple[str, str]]:
    """Of OUT and the sources, those of stores that this node's environment does not open, and why.
    A node without credentials would fail one item after the other, faster than others do them."""
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
