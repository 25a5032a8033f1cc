"""One day of a live run: its loop, its session and its figures."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detector.core.run.looping import RunClock
from detector.core.run.tiling import Tiling
from detector.core.timeline.spans import READ, WORK
from detector.core.timeline.timeline import OffTimeline, Timeline
from detector.live.base import format_day
from detector.live.capacity import capacity, find_busiest_stage, sentence
from detector.live.figures import LiveStatus
from detector.live.memory import MemoryWatch
from detector.live.options import FOLDER, LiveOptions
from detector.live.routing import Router

if TYPE_CHECKING:
    from detector.core.run.plan import RunPlan
    from detector.core.session.document import DecodingFigures, Summary
    from detector.core.session.outcome import SourceRun
    from detector.core.session.store import Session

# Timeline rows per stage and thread in a session: six minutes at 25 FPS.
ROWS = 10_000
FEED_ROWS = 100  # rows for the decoders' spans; few, because only sums of the spans are read


def today() -> str:
    return format_day(time.time())


class EndOfDay(threading.Event):
    """An event that is set when the day ends or the run stops. ``day_ended`` tells which."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def is_set(self) -> bool:
        return super().is_set() or self._stop.is_set()

    @property
    def day_ended(self) -> bool:
        return super().is_set()


@dataclass(slots=True)
class Day:
    session: Session
    run: SourceRun
    end: EndOfDay
    name: str
    clock: RunClock = field(default_factory=RunClock)


def begin_day(options: LiveOptions, plan: RunPlan, path: str, stop: threading.Event) -> Day:
    from detector.core.session.outcome import SourceRun
    from detector.core.session.store import Session

    name = today()
    folder = Path(options.config.output.run_dir or Path("runs", FOLDER))
    session = Session.create_in(folder, name, or_temporary=options.config.output.run_dir is None)
    session.begin()  # removes an earlier run's files, so call it before anything is logged
    timeline = plan.loop.timeline(plan.loaded.natives, max_rows=ROWS, ring=True)
    return Day(session, SourceRun(path, timeline), EndOfDay(stop), name)


@dataclass(frozen=True, slots=True)
class DecodingSums:
    """Sums over all decoding threads. ``calls``: thread -> number of packets that it decoded."""

    calls: Mapping[str, int] = field(default_factory=dict)
    busy_ns: int = 0
    cpu_ns: int = 0

    @classmethod
    def so_far(cls, decoders: Timeline) -> DecodingSums:
        calls, busy, cpu = {}, 0, 0
        for name, track in list(decoders.tracks.items()):
            if (span := track.spans.get((READ, WORK))) is not None:
                calls[name] = span.calls
                busy += span.self_ns
                cpu += span.cpu_ns
        return cls(calls, busy, cpu)

    def since(self, before: DecodingSums) -> DecodingFigures:
        from detector.core.session.document import DecodingFigures

        calls = [count - before.calls.get(name, 0) for name, count in self.calls.items()]
        return DecodingFigures(
            threads=sum(count > 0 for count in calls),
            calls=sum(calls),
            busy_s=(self.busy_ns - before.busy_ns) / 1e9,
            cpu_s=(self.cpu_ns - before.cpu_ns) / 1e9,
        )


class DayFigures:
    def __init__(self, status: LiveStatus, decoders: Timeline, names: tuple[str, ...]) -> None:
        self._status, self._decoders, self._names = status, decoders, names
        self._reported = DecodingSums()  # the sums at the end of the previous day
        self.memory = MemoryWatch()

    def begin_day(self, timeline: Timeline | OffTimeline) -> None:
        self._status.begin_day(timeline)
        self.memory.begin_day()
        self.memory.sample()

    def finish(self, summary: Summary, router: Router) -> Summary:
        from detector.core.session.document import Verdict

        streams = self._status.summaries(self._names, router.paths, router.counts())
        dropped, written = sum(sum(one.dropped.values()) for one in streams), summary.frames.written
        tiles = max((Tiling.parse(one.tiles).inputs for one in streams), default=summary.tiles)
        counts = replace(summary.frames, read=written + dropped, dropped=dropped)
        # The next day counts from here, so that no packet is lost between days.
        before, self._reported = self._reported, DecodingSums.so_far(self._decoders)
        summary = replace(
            summary,
            frames=counts,
            tiles=tiles,
            decoding=self._reported.since(before),
            memory=self.memory.figures(),
        )
        load = self._status.load_of_day()
        if load is None:
            return replace(summary, streams=streams, capacity=None)
        verdict = Verdict(
            bottleneck=find_busiest_stage(load),
            sentence=sentence(load),
            cpu_share=round(load.cpu, 4),
        )
        return replace(summary, streams=streams, capacity=capacity(load), verdict=verdict)
