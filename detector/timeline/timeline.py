"""The timeline: all tracks of a run, and what they add up to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from detector.timeline.meter import Meter
from detector.timeline.ranges import open_domain
from detector.timeline.stages import INFER
from detector.timeline.track import MAX_ROWS, OffTrack, Track


class Timeline:
    """Hands a track to each thread. ``clock`` and ``cpu_clock`` return nanoseconds; tests hand in fakes.

    ``cpu_clock`` is the thread's own CPU time by default. A run in one plain loop hands in ``time.process_time_ns``:
    there a stage's CPU is the process's, with what the libraries burn in threads of their own.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
        nvtx: bool = True,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self.clock = clock
        self._cpu_clock = cpu_clock
        self._domain: Any | None = open_domain() if nvtx else None
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self.tracks: dict[str, Track] = {}
        self.meters = {INFER: Meter()}

    @property
    def nvtx_attached(self) -> bool:
        return self._domain is not None

    @contextmanager
    def run(self, text: str) -> Iterator[None]:
        """For a tool that records: a mark that says what the ranges after it belong to, and a range "run" across all
        threads, from here to the end, that a capture can start and stop with."""
        if self._domain is None:
            yield
            return
        self._domain.mark(self._domain.get_event_attributes(message=text))
        whole = self._domain.start_range(self._domain.get_event_attributes(message="run"))
        try:
            yield
        finally:
            self._domain.end_range(whole)

    def track(self, name: str) -> Track:
        with self._lock:
            if name not in self.tracks:
                track = Track(name, self.clock, self._cpu_clock, self.meters, self._domain, self._max_rows)
                self.tracks[name] = track
            return self.tracks[name]


class OffTimeline:
    """A timeline that measures nothing, for the cost of the instruments to be measured against."""

    def __init__(self) -> None:
        self.tracks: dict[str, Track] = {}

    def run(self, text: str) -> nullcontext[None]:
        return nullcontext()

    def track(self, name: str) -> OffTrack:
        return OffTrack()
