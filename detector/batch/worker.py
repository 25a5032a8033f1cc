"""A process of the local pool: it loads the model once, then processes one item after the other.

It answers each ``Order`` with ``PoolReply``s: the number of frames done so far, and at the end the
item's record or an error. Messages are JSON: an untrusted file may take over the worker that
decodes it, and a pickle could then run code in the job. What libraries print goes to a file.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from detector.batch.documents import ItemRecord
from detector.core.errors import EXIT_INTERNAL, DetectVideoError, EngineError, OutputError
from detector.core.run.child import listen, open_pipe, send
from detector.core.session import codec

BEAT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The order to load the model. ``config``: all options, by group. ``place``: the output folder
    or address. ``resolves``: whether ``config`` may contain ``auto``. ``gathers``: whether rows
    also go into the dataset."""

    config: dict[str, dict[str, Any]]
    place: str
    pictures: list[str]
    resolves: bool
    gathers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    do: Literal["open", "item", "close"]
    opening: Opening | None = None
    task: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReply:
    """A worker's answer. ``broken``: the worker must be replaced, since its state is unknown."""

    kind: Literal["loaded", "frames", "record", "error"]
    facts: dict[str, Any] | None = None  # the fields of settings.LoadedFacts
    frames: int = 0
    record: ItemRecord | None = None
    error: str = ""
    exit_code: int = 0
    broken: bool = False


def main(pipe: int) -> None:
    parent = open_pipe(pipe)
    for number in (signal.SIGINT, signal.SIGHUP):  # the parent handles them for all workers
        signal.signal(number, signal.SIG_IGN)
    _serve(listen(parent, Order, lambda order: order.do == "close"), _Reporter(parent))


def _serve(next_order: Callable[[], Order], reporter: _Reporter) -> None:
    worker: _ItemWorker | None = None
    while (order := next_order()).do != "close":
        try:
            if order.opening is not None:
                worker = _ItemWorker(order.opening)
                answer = PoolReply(kind="loaded", facts=codec.to_builtins(worker.facts))
            else:
                assert worker is not None, "the first order is open"
                answer = worker.work(order, reporter)
        except DetectVideoError as error:
            answer = _refusal(error)
        except Exception as error:
            answer = _describe_failure(error)
        reporter.send(answer)
    if worker is not None:
        worker.model.close()


class _Reporter:
    """Sends replies, and every ``BEAT_S`` seconds the number of frames done if it grew."""

    def __init__(self, parent: Connection) -> None:
        self._parent, self._lock = parent, threading.Lock()
        self._frames: int | None = None  # number to report; None: no progress since the last report
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, reply: PoolReply) -> None:
        with self._lock:
            self._frames = None
            send(self._parent, reply)

    def watch(self, frames: int) -> None:
        self._frames = frames

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with self._lock, suppress(OSError):
                if (frames := self._frames) is not None:
                    self._frames = None
                    send(self._parent, PoolReply(kind="frames", frames=frames))


class _ItemWorker:
    def __init__(self, opening: Opening) -> None:
        from detector.batch.item import open_model
        from detector.batch.places import open_outputs

        self.outputs = open_outputs(opening.place)
        self._gathers = opening.gathers
        if self._gathers:
            import pyarrow.parquet  # noqa: F401 -- now, so that no item waits for it
        self.model, self.facts = open_model(
            opening.config, opening.pictures, resolves=opening.resolves
        )

    def work(self, order: Order, reporter: _Reporter) -> PoolReply:
        from detector.batch.item import Task, process_item

        task = codec.from_builtins(order.task, Task, "batch")
        with suppress(OSError):  # drop libraries' output: over days it would fill the disk
            os.ftruncate(2, 0)
        gather = self.outputs.gather if self._gathers else None
        record = process_item(task, self.model, self.outputs, gather=gather, watch=reporter.watch)
        return PoolReply(kind="record", record=record)


def _refusal(error: DetectVideoError) -> PoolReply:
    """Return the reply for an error. An engine failure or a bug marks the worker as broken."""
    return PoolReply(
        kind="error",
        error=" ".join(str(error).split()),
        exit_code=error.exit_code,
        broken=isinstance(error, EngineError) or error.exit_code == EXIT_INTERNAL,
    )


def _describe_failure(error: Exception) -> PoolReply:
    from detector.core.run.limits import blame_limit

    blamed = blame_limit(error)
    if blamed is not None:
        broken = not isinstance(blamed, OutputError)
        return PoolReply(kind="error", error=str(blamed), exit_code=blamed.exit_code, broken=broken)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return PoolReply(
        kind="error", error=f"internal error: {text}", exit_code=EXIT_INTERNAL, broken=True
    )
