"""The figures of a run once a second, with the last minutes of each camera.

One question a second reaches the run, however many ask the page. It is asked in a thread of its
own: a run that hangs while it answers must not hang the page, which is there to say so.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from detector.live.base import LiveFigures
from detector.live.page.documents import LIVE, HistoryDocument, rounded

EVERY_S = 1.0
KEPT = 600  # samples: ten minutes
ANSWER_S = 3.0  # a run that takes longer to say how it is does not count as healthy


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    clock_s: float  # monotonic
    age_ms: dict[str, float]
    processed: dict[str, int]
    dropped: dict[str, int]


class Sampler:
    """``newest`` is of the last second; None before the run begins and while it does not answer."""

    def __init__(
        self,
        ask: Callable[[], LiveFigures | None],
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ask, self._clock = ask, clock
        self.every_s = every_s
        self.newest: LiveFigures | None = None
        self.at_s = clock()  # Unix time of ``newest``
        self.names: frozenset[str] = frozenset()  # of the streams, when the run last told
        self._samples: deque[_Sample] = deque(maxlen=KEPT)
        self.sampled = asyncio.Event()  # set by the next sample; take it before you look

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        question: asyncio.Future[LiveFigures | Exception | None] | None = None
        while True:
            began = loop.time()
            question = question or self._question(loop)
            done, _ = await asyncio.wait([question], timeout=max(ANSWER_S, self.every_s))
            if done:
                self._note(question.result())
                question = None
            else:
                self._keep(None)  # the question stands; a second one would only wait behind it
            await asyncio.sleep(max(0.05, self.every_s - (loop.time() - began)))

    def _question(
        self, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[LiveFigures | Exception | None]:
        """Asks in a thread that no end of the program waits for."""
        answered: asyncio.Future[LiveFigures | Exception | None] = loop.create_future()

        def ask() -> None:
            answer: LiveFigures | Exception | None
            try:
                answer = self._ask()
            except Exception as error:
                answer = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_set, answered, answer)

        threading.Thread(target=ask, name="detect-video page asks", daemon=True).start()
        return answered

    def _note(self, answer: LiveFigures | Exception | None) -> None:
        self._keep(None if isinstance(answer, Exception) else answer)

    def _keep(self, figures: LiveFigures | None) -> None:
        self.newest, self.at_s = figures, self._clock()
        if figures is not None:
            streams = figures.streams
            self.names = frozenset(one.name for one in streams)
            self._samples.append(
                _Sample(
                    self.at_s,
                    time.monotonic(),
                    {
                        one.name: one.age_ms.p50
                        for one in streams
                        if one.state == LIVE and one.age_ms.p50 is not None
                    },
                    {one.name: one.processed for one in streams},
                    {one.name: sum(one.dropped.values()) for one in streams},
                )
            )
        self.sampled.set()
        self.sampled = asyncio.Event()

    def history(self) -> HistoryDocument:
        """The kept samples of the cameras that are there now."""
        samples = list(self._samples)
        names = [one.name for one in self.newest.streams] if self.newest else []
        return HistoryDocument(
            schema=1,
            every_s=self.every_s,
            times_s=[round(one.at_s, 2) for one in samples],
            age_ms={name: [rounded(one.age_ms.get(name), 1) for one in samples] for name in names},
            processed_fps={name: _rates(samples, "processed", name) for name in names},
            dropped_fps={name: _rates(samples, "dropped", name) for name in names},
        )


def _rates(samples: list[_Sample], what: str, name: str) -> list[float | None]:
    """Per second, between each sample and the one before it; null for the first."""
    rates: list[float | None] = []
    before: _Sample | None = None
    for one in samples:
        rate = None
        counts = getattr(one, what)
        if before is not None and one.clock_s > before.clock_s and name in counts:
            then = getattr(before, what).get(name)
            if then is not None and counts[name] >= then:
                rate = (counts[name] - then) / (one.clock_s - before.clock_s)
        rates.append(rounded(rate, 1))
        before = one
    return rates


def _set(answered: asyncio.Future[Any], answer: object) -> None:
    if not answered.done():
        answered.set_result(answer)
