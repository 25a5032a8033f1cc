"""Samples the figures of a run once a second, and stores the last minutes of each camera.

The figures are read in a separate thread, so that the page still works if the run hangs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from detector.live.base import LiveFigures, count_drops
from detector.live.page.documents import LIVE, HistoryDocument, rounded

EVERY_S = 1.0
KEPT = 600  # samples: ten minutes
TIMEOUT_S = 3.0  # a run that does not respond for longer counts as hanging


@dataclass(frozen=True, slots=True)
class _RunSample:
    at_s: float
    clock_s: float  # monotonic time
    age_ms: dict[str, float]
    processed: dict[str, int]
    dropped: dict[str, int]


class Sampler:
    """Samples figures. ``newest``: the last figures; None if the run has not begun or hangs."""

    def __init__(
        self, read: Callable[[], LiveFigures | None], clock: Callable[[], float] = time.time
    ) -> None:
        self._read_figures, self._clock = read, clock
        self.every_s = EVERY_S
        self.newest: LiveFigures | None = None
        self.at_s = clock()  # Unix time of ``newest``
        self.names: frozenset[str] = frozenset()  # last known names of the streams
        self._samples: deque[_RunSample] = deque(maxlen=KEPT)
        self.sampled = asyncio.Event()  # set at the next sample, then replaced

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        request: asyncio.Future[LiveFigures | Exception | None] | None = None
        while True:
            began = loop.time()
            request = request or self._request_figures(loop)
            done, _ = await asyncio.wait([request], timeout=max(TIMEOUT_S, self.every_s))
            if done:
                figures = request.result()
                self._keep(None if isinstance(figures, Exception) else figures)
                request = None
            else:
                self._keep(None)  # keep ``request``: another would only wait for it
            await asyncio.sleep(max(0.05, self.every_s - (loop.time() - began)))

    def _request_figures(
        self, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[LiveFigures | Exception | None]:
        """Read the figures in a daemon thread, so that a hanging run does not delay the exit."""
        future: asyncio.Future[LiveFigures | Exception | None] = loop.create_future()

        def ask() -> None:
            answer: LiveFigures | Exception | None
            try:
                answer = self._read_figures()
            except Exception as error:
                answer = error
            with suppress(RuntimeError):  # the event loop may have ended
                loop.call_soon_threadsafe(
                    lambda: None if future.done() else future.set_result(answer)
                )

        threading.Thread(target=ask, name="detect-video page asks", daemon=True).start()
        return future

    def _keep(self, figures: LiveFigures | None) -> None:
        self.newest, self.at_s = figures, self._clock()
        if figures is not None:
            streams = figures.streams
            self.names = frozenset(stream.name for stream in streams)
            self._samples.append(
                _RunSample(
                    self.at_s,
                    time.monotonic(),
                    {
                        stream.name: stream.age_ms.p50
                        for stream in streams
                        if stream.state == LIVE and stream.age_ms.p50 is not None
                    },
                    {stream.name: stream.processed for stream in streams},
                    {one.name: count_drops(one.dropped, one.received)[0] for one in streams},
                )
            )
        self.sampled.set()
        self.sampled = asyncio.Event()

    def history(self) -> HistoryDocument:
        samples = list(self._samples)
        names = [stream.name for stream in self.newest.streams] if self.newest else []
        return HistoryDocument(
            schema=1,
            every_s=self.every_s,
            times_s=[round(sample.at_s, 2) for sample in samples],
            age_ms={
                name: [rounded(sample.age_ms.get(name), 1) for sample in samples] for name in names
            },
            processed_fps={name: _rates(samples, "processed", name) for name in names},
            dropped_fps={name: _rates(samples, "dropped", name) for name in names},
        )


def _rates(samples: list[_RunSample], what: str, name: str) -> list[float | None]:
    """Return rates per second between samples; the first is None."""
    rates: list[float | None] = []
    before: _RunSample | None = None
    for sample in samples:
        rate = None
        counts = getattr(sample, what)
        if before is not None and sample.clock_s > before.clock_s and name in counts:
            then = getattr(before, what).get(name)
            if then is not None and counts[name] >= then:
                rate = (counts[name] - then) / (sample.clock_s - before.clock_s)
        rates.append(rounded(rate, 1))
        before = sample
    return rates
