"""The timeline: the tracks of all threads of a run, and sums over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from detector.core.timeline.booking import Booking
from detector.core.timeline.native import Burnt, Mark, Natives, RunQueue, open_run_queue
from detector.core.timeline.nvtx_ranges import attach
from detector.core.timeline.rows import Spool
from detector.core.timeline.spans import (
    INFER,
    MAX_ROWS,
    PREPROCESS,
    READ,
    WORK,
    BusyMeter,
    OffTrack,
    ThreadTrack,
)


class Timeline:
    """The tracks of all threads. ``clock`` and ``cpu_clock`` return nanoseconds.

    ``cpu_clock`` is the thread's own CPU time. With ``process_clock`` (set in the plain loop), the
    CPU time of a stage also counts the process's other threads while a call of the stage runs.
    ``run_queue`` returns a reader of how long the calling thread waited for a core, or None if the
    system does not count it. ``natives`` observes the threads of libraries. For each stage and kind
    of wait, we keep the first ``max_rows`` rows, in ``folder`` if set; with ``ring``, the last.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
        nvtx: bool = True,
        max_rows: int = MAX_ROWS,
        natives: Natives | None = None,
        ring: bool = False,
        folder: Path | None = None,
        process_clock: Callable[[], int] | None = None,
        run_queue: Callable[[], RunQueue | None] = open_run_queue,
    ) -> None:
        self.clock = clock
        self._domain: Any | None = attach().domain if nvtx else None
        self._lock = threading.Lock()
        self.tracks: dict[str, ThreadTrack] = {}
        self.meters = {INFER: BusyMeter()}
        self._natives = natives
        self._marks: list[Mark] = []
        bookings = {}
        if natives is not None and process_clock is None:  # process_clock counts engine threads
            bookings[INFER] = Booking(natives.tasks_of(INFER))
        self._make_track = partial(
            ThreadTrack,
            clock=clock,
            cpu_clock=cpu_clock,
            meters=self.meters,
            domain=self._domain,
            max_rows=max_rows,
            natives=natives,
            ring=ring,
            spool=Spool(folder),
            process_clock=process_clock,
            run_queue=run_queue,
            bookings=bookings,
        )
        if natives is not None:
            natives.forget_gone()

    @contextmanager
    def run(self, text: str) -> Iterator[None]:
        """Mark a run with the NVTX range "run", at which a recording tool can start to record."""
        if self._domain is None:
            yield
            return
        self._domain.mark(self._domain.get_event_attributes(message=text))
        whole = self._domain.start_range(self._domain.get_event_attributes(message="run"))
        try:
            yield
        finally:
            self._domain.end_range(whole)

    def track(self, name: str) -> ThreadTrack:
        with self._lock:
            if name not in self.tracks:
                self.tracks[name] = self._make_track(name)
            return self.tracks[name]

    def book_threads(self, stage: str) -> AbstractContextManager[None]:
        """Return a context manager that books threads started inside it to the stage."""
        return nullcontext() if self._natives is None else self._natives.book_threads(stage)

    def mark(self) -> None:
        """Read the clocks of native threads. The first and the last mark bound the steady state."""
        if self._natives is not None:
            self._marks[1:] = [self._natives.mark(self._calls())]

    def burnt(self) -> Burnt | None:
        """Return the time used between the first and the last mark; None without two marks."""
        if self._natives is None or len(self._marks) < 2 or not self._marks[-1].times:
            return None
        return self._natives.between(self._marks[0], self._marks[-1])

    def _calls(self) -> dict[str, int]:
        with self._lock:
            tracks = list(self.tracks.values())
        calls: dict[str, int] = {}
        for track in tracks:
            for (stage, kind), span in list(track.spans.items()):
                if kind == WORK:
                    calls[stage] = calls.get(stage, 0) + span.calls
        calls[READ] = calls.get(PREPROCESS, 0)  # the last read finds the end and decodes nothing
        return calls


class OffTimeline:
    """A timeline that measures nothing, for runs without instruments."""

    def __init__(self) -> None:
        self.tracks: dict[str, ThreadTrack] = {}

    def run(self, text: str) -> nullcontext[None]:
        return nullcontext()

    def track(self, name: str) -> OffTrack:
        return OffTrack()

    def book_threads(self, stage: str) -> nullcontext[None]:
        return nullcontext()

    def mark(self) -> None:
        return None
