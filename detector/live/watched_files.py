"""Shows on the page how a run on files progresses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detector.core.run.detect import Live
from detector.core.session.document import AgeFigures
from detector.core.timeline.spans import INFER, WORK
from detector.core.types import Detections, Frame, SourceInfo
from detector.live.base import LiveFigures, StreamFigures
from detector.live.hub import Hub
from detector.live.sources.cameras import unique_name
from detector.live.zone_counts import ZoneCounts

LIVE, ENDED = "live", "ended"
NO_AGES = AgeFigures(p50=None, p90=None, p99=None, max=None)
RATES_OVER_S = 5.0  # window of rates and shares
INTERVAL_S = 0.5  # figures are computed at most this often
MOST_ENDED = 64  # finished files that are still shown


@dataclass(slots=True)
class _FileProgress:
    at_s: float
    read: int
    written: int
    inferred: int  # written pictures that were inferred
    work_ns: dict[str, int]  # stage -> busy time, over all threads
    inferring_ns: int  # time with at least one request in the engine
    cpu_s: float


@dataclass(slots=True)
class _RunningFile:
    name: str
    info: SourceInfo
    progress: Any
    timeline: Any
    expected: int | None
    began_s: float


class WatchedFiles:
    def __init__(
        self,
        hub: Hub,
        line: Live | None = None,
        cores: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._hub, self._line, self._cores, self._clock = hub, line, cores, clock
        self._lock = threading.Lock()
        self._began_s = clock()
        self._running: _RunningFile | None = None
        self._zones = ZoneCounts()
        self._name = ""
        self._ended: list[StreamFigures] = []
        self._names: set[str] = set()
        self._samples: list[_FileProgress] = []
        self._inferred = (0, clock())  # ns spent in inference, and when that last changed
        self._last: tuple[float, LiveFigures] | None = None
        hub.figures_from(self.figures)

    def start(self, info: SourceInfo, progress: Any, timeline: Any, frames: int | None) -> None:
        name = make_stream_name(info.path, self._names)
        declared = info.frames_declared
        expected = min(frames, declared) if frames and declared else frames or declared
        with self._lock:
            self._names.add(name.casefold())
            self._name = name
            self._running = _RunningFile(name, info, progress, timeline, expected, self._clock())
            self._samples, self._last = [], None
            began_s = time.time()
            # This clock stands still, so that counts do not restart at midnight.
            self._zones = ZoneCounts(clock=lambda: began_s)
            self._inferred = (0, self._clock())
        if self._line is not None:
            self._line.start(info, progress, timeline, frames)

    def stop(self) -> None:
        if self._line is not None:
            self._line.stop()
        with self._lock:
            if self._running is not None:
                self._zones.end(self._name)
                self._ended.append(self._stream(self._running, ENDED, None))
                del self._ended[:-MOST_ENDED]
            self._running, self._last = None, None

    def wants_pictures(self, camera: str = "") -> bool:
        """Return whether to draw. ``camera`` is ignored: there is one file at a time."""
        return self._hub.wants_pictures(self._name)

    def show(self, frame: Frame, detections: Detections) -> None:
        if detections.scene is not None:
            self._zones.count_frame(self._name, detections.scene)
        self._hub.keep(self._name, frame, time.time(), len(detections))

    def figures(self) -> LiveFigures:
        with self._lock:
            at_s = self._clock()
            if self._last is None or at_s - self._last[0] >= INTERVAL_S:
                self._last = (at_s, self._compute(at_s))
            return self._last[1]

    def _compute(self, at_s: float) -> LiveFigures:
        running_file, uptime_s = self._running, at_s - self._began_s
        if running_file is None:
            return LiveFigures(tuple(self._ended), uptime_s, None, None)
        sample = _take_sample(running_file, at_s)
        self._samples.append(sample)
        while len(self._samples) > 2 and at_s - self._samples[0].at_s > RATES_OVER_S:
            del self._samples[0]
        if sample.work_ns.get(INFER, 0) != self._inferred[0]:
            self._inferred = (sample.work_ns.get(INFER, 0), at_s)
        first = self._samples[0]
        passed_s = at_s - first.at_s
        running = self._stream(running_file, LIVE, _rate(sample.written - first.written, passed_s))
        if passed_s <= 0:
            return LiveFigures((*self._ended, running), uptime_s, None, None)
        busy = {
            stage: min(1.0, (ns - first.work_ns.get(stage, 0)) / passed_s / 1e9)
            for stage, ns in sample.work_ns.items()
        }
        inferring_s = (sample.inferring_ns - first.inferring_ns) / 1e9
        return LiveFigures(
            streams=(*self._ended, running),
            uptime_s=uptime_s,
            inference_fps=_rate(sample.inferred - first.inferred, inferring_s),
            end_to_end_fps=running.processed_fps,
            busy=busy,
            cpu_share=min(1.0, (sample.cpu_s - first.cpu_s) / passed_s / self._cores),
            bottleneck=_sentence(busy),
            engine_age_s=at_s - self._inferred[1],
        )

    def _stream(self, running_file: _RunningFile, state: str, rate: float | None) -> StreamFigures:
        return StreamFigures(
            name=running_file.name,
            url=running_file.info.path,
            state=state,
            since_s=self._clock() - running_file.began_s,
            received=running_file.progress.read,
            processed=running_file.progress.written,
            dropped={},
            reconnects=0,
            stalls=0,
            age_ms=NO_AGES,
            processed_fps=rate,
            size=f"{running_file.info.width}x{running_file.info.height}",
            kind="file",
            expected=running_file.expected,
            zones=self._zones.figures(running_file.name),
        )


def make_stream_name(path: str, taken: set[str]) -> str:
    last = path.rstrip("/").rpartition("/")[2]
    return unique_name(last.rpartition(".")[0] or last, taken, "file")


def _take_sample(running_file: _RunningFile, at_s: float) -> _FileProgress:
    work: dict[str, int] = {}
    for track in list(running_file.timeline.tracks.values()):
        for (stage, kind), span in list(track.spans.items()):
            if kind == WORK:
                work[stage] = work.get(stage, 0) + span.self_ns
    meter = getattr(running_file.timeline, "meters", {}).get(INFER)
    inferring_ns = 0 if meter is None else meter.so_far(running_file.timeline.clock())
    progress = running_file.progress
    inferred = progress.written - progress.reused - progress.coasted
    return _FileProgress(
        *(at_s, progress.read, progress.written, inferred, work, inferring_ns, time.process_time())
    )


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 and count > 0 else None


def _sentence(busy: dict[str, float]) -> str:
    if not busy:
        return ""
    stage = max(busy, key=lambda name: busy[name])
    return f"{stage} is the busiest stage: busy {busy[stage]:.0%} of the last seconds."
