"""Computes the figures of a live run, at any time and at the end of a day.

The writer's thread counts each picture, the monitor samples all counters twice a second, and any
thread may read ``figures``. Rates are means over the last seconds. Cameras that are not live have
no rate, so averages exclude outages.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from detector.core.run.tiling import NONE
from detector.core.session.document import StreamSummary
from detector.core.timeline.native import machine_busy_ns
from detector.core.timeline.order import INFERENCE, group_of
from detector.core.timeline.spans import INFER, WORK
from detector.core.timeline.timeline import OffTimeline, Timeline
from detector.core.types import Detections, Frame
from detector.live.ages import FrameAges
from detector.live.base import LiveFigures, StreamFigures, count_drops
from detector.live.capacity import Usage, capacity, sentence
from detector.live.sources.base import (
    CORRUPT,
    LAG,
    LIVE,
    NEWER,
    NO_KEY,
    RATE,
    STOPPED,
    UNDECODED,
    FeedFacts,
)
from detector.live.sources.collect import Collector, Member
from detector.live.zone_counts import ZoneCounts

SAMPLES_NS = 5_000_000_000  # rates are means over this time
SECOND = 1_000_000_000  # ns
NO_TIME = (NEWER, UNDECODED, LAG)  # drops for these reasons would not happen on a faster machine
NOT_WANTED = (RATE, CORRUPT, STOPPED, NO_KEY)  # the other reasons


@dataclass(slots=True)
class CameraTally:
    """The counts of one camera. Times are nanoseconds."""

    ages: FrameAges
    processed: int = 0
    found: Counter[int] = field(default_factory=Counter)  # class id -> objects, today
    live_ns: int = 0  # time today in which the camera was live or its pictures were processed
    rate_ns: float = 0.0  # integral of the camera's rate over ``rated_ns``
    rated_ns: int = 0  # today's time with a known rate
    # The run's (counts, drops) when the day began, and when the day's summary was made.
    before: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))
    at_summary: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))


@dataclass(slots=True)
class Counters:
    at_ns: int
    cpu_ns: int
    computer_ns: int | None  # CPU time of all programs
    decoding_ns: int
    written: int
    received: int
    undecoded: int  # received pictures that were skipped before decoding to save CPU time
    wanted: int  # received pictures that should be detected
    dropped: int  # wanted pictures that were dropped for lack of time
    stages_ns: dict[str, int]
    workers: int
    infer_ns: int
    processed: dict[str, int]


@dataclass(slots=True)
class UsageSums:
    """Differences between two samples, or sums of many differences. Times are nanoseconds."""

    passed_ns: int = 0
    cpu_ns: int = 0
    others_ns: int = 0  # CPU time of other programs
    decoding_ns: int = 0
    written: int = 0
    received: int = 0
    undecoded: int = 0
    wanted: int = 0
    dropped: int = 0
    stages_ns: Counter[str] = field(default_factory=Counter)
    workers: int = 1
    infer_ns: int = 0
    cameras_ns: int = 0  # time, summed over live cameras

    def add(self, first: Counters, last: Counters, live: int) -> None:
        passed = last.at_ns - first.at_ns
        self.passed_ns += passed
        own = last.cpu_ns - first.cpu_ns
        self.cpu_ns += own
        if first.computer_ns is not None and last.computer_ns is not None:
            # May be negative, because the system counts in ticks of 10 ms.
            self.others_ns += last.computer_ns - first.computer_ns - own
        for name in ("decoding_ns", "written", "received", "undecoded", "wanted", "dropped"):
            more = getattr(last, name) - getattr(first, name)
            setattr(self, name, getattr(self, name) + more)
        for stage, ns in last.stages_ns.items():
            self.stages_ns[stage] += ns - first.stages_ns.get(stage, 0)
        self.workers = last.workers
        self.infer_ns += last.infer_ns - first.infer_ns
        self.cameras_ns += passed * live

    def load(self, cores: int) -> Usage | None:
        """Return shares of the time; None if no time has passed."""
        if not self.passed_ns:
            return None
        stages = {
            stage: ns / self.passed_ns / (self.workers if group_of(stage) == INFERENCE else 1)
            for stage, ns in self.stages_ns.items()
        }
        return Usage(
            cameras=round(self.cameras_ns / self.passed_ns),
            stages=stages,
            cpu=min(1.0, self.cpu_ns / self.passed_ns / cores),
            decoding=self.decoding_ns / self.passed_ns / cores,
            decoded=1 - self.undecoded / self.received if self.received > 0 else 1.0,
            processed=min(1.0, self.written / self.wanted) if self.wanted > 0 else 0.0,
            dropped=min(1.0, self.dropped / self.wanted) if self.wanted > 0 else 0.0,
            # Other programs and a VM's host used at most the time that this program did not use.
            others=max(0.0, min(self.others_ns, cores * self.passed_ns - self.cpu_ns))
            / self.passed_ns
            / cores,
        )


class LiveStatus:
    """The counters of a run. ``clock``: ns, see ``Arrival``. ``decoding``: the feeds' CPU time, ns.
    ``machine_clock``: CPU time of all programs. ``tiles``: for cameras that set none."""

    def __init__(
        self,
        collector: Collector,
        cores: int,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu_clock: Callable[[], int] = time.process_time_ns,
        decoding: Callable[[], int] = lambda: 0,
        machine_clock: Callable[[], int | None] = machine_busy_ns,
        tiles: str = NONE,
        zones: ZoneCounts | None = None,
    ) -> None:
        self._collector, self._cores = collector, cores
        self._clock, self._cpu_clock, self._decoding = clock, cpu_clock, decoding
        self._machine_clock, self._tiles = machine_clock, tiles
        self.zones = zones or ZoneCounts()
        self._started_ns = clock()
        self._lock = threading.Lock()
        self._tallies: dict[str, CameraTally] = {}
        self._timeline: Timeline | OffTimeline = OffTimeline()
        self._samples: deque[Counters] = deque()
        self._sampled_ns: int | None = None
        # When the engine gave its last result, and when it was last idle.
        self._inferred_ns = self._idle_ns = self._started_ns
        self._day_sums = UsageSums()  # sums of today, over the time with a live camera
        self.live_ns = 0  # today's time with a live camera

    def begin_day(self, timeline: Timeline | OffTimeline) -> None:
        with self._lock:
            self._timeline = timeline
            self._samples.clear()
            self.live_ns, self._day_sums = 0, UsageSums()
            for member in self._all_members():
                tally = self._tally(member.camera.name)
                tally.ages.reset()
                tally.found, tally.live_ns = Counter(), 0
                tally.rate_ns, tally.rated_ns = 0.0, 0
                tally.before = tally.at_summary

    def note(
        self, frame: Frame, detections: Detections, outputs: Mapping[str, int], written_ns: int
    ) -> None:
        """Count a detected picture. ``outputs``: output -> when it received the picture, in ns."""
        arrival = frame.arrival
        assert arrival is not None
        with self._lock:
            tally = self._tally(arrival.camera)
            tally.processed += 1
            tally.found.update(detections.found().class_ids.tolist())
            self._inferred_ns = max(self._inferred_ns, arrival.inferred_ns)
        tally.ages.add(arrival, outputs, written_ns)

    def sample(self) -> None:
        now = self._clock()
        with self._lock:
            passed = 0 if self._sampled_ns is None else now - self._sampled_ns
            self._sampled_ns, live, wanted, dropped = now, 0, 0, 0
            received = undecoded = 0
            if self._in_flight() <= 0:
                self._idle_ns = now
            before = self._samples[-1].processed if self._samples else {}
            for member in self._all_members():
                facts, tally = member.facts(), self._tally(member.camera.name)
                received += facts.received
                undecoded += facts.dropped.get(UNDECODED, 0)
                wanted += facts.received - sum(facts.dropped.get(why, 0) for why in NOT_WANTED)
                dropped += sum(facts.dropped.get(why, 0) for why in NO_TIME)
                live += facts.state == LIVE
                if facts.state == LIVE or tally.processed > before.get(member.camera.name, 0):
                    tally.live_ns += passed
                if facts.state == LIVE and facts.fps:
                    tally.rate_ns += facts.fps * passed
                    tally.rated_ns += passed
            working = sum(one.processed for one in self._tallies.values()) > sum(before.values())
            self.live_ns += passed if live or working else 0
            stages, workers, infer_ns = self._stages()
            processed = {name: tally.processed for name, tally in self._tallies.items()}
            sample = Counters(
                *(now, self._cpu_clock(), self._machine_clock(), self._decoding()),
                *(sum(processed.values()), received, undecoded, wanted, dropped),
                *(stages, workers, infer_ns, processed),
            )
            if live and self._samples:
                self._day_sums.add(self._samples[-1], sample, live)
            self._samples.append(sample)
            while len(self._samples) > 2 and now - self._samples[0].at_ns > SAMPLES_NS:
                self._samples.popleft()

    def figures(self) -> LiveFigures:
        now = self._clock()
        with self._lock:
            first, last = (self._samples[0], self._samples[-1]) if self._samples else (None, None)
            members = self._collector.members()
            streams = tuple(self._stream(member, now, first, last) for member in members)
            live = sum(stream.state == LIVE for stream in streams)
            since = max(self._inferred_ns, self._idle_ns)
            engine_age = (now - since) / SECOND if self._in_flight() > 0 else 0.0
        used = UsageSums()
        if first is not None and last is not None:
            used.add(first, last, live)
        load = used.load(self._cores)
        return LiveFigures(
            streams=streams,
            uptime_s=(now - self._started_ns) / SECOND,
            inference_fps=_rate(used.written, used.infer_ns / SECOND),
            end_to_end_fps=_rate(used.written, used.passed_ns / SECOND) if live else None,
            busy={} if load is None else dict(load.stages),
            cpu_share=None if load is None else load.cpu,
            computer_share=self._computer_share(first, last),
            capacity=None if load is None else capacity(load),
            bottleneck="" if load is None else sentence(load),
            engine_age_s=engine_age,
        )

    def _computer_share(self, first: Counters | None, last: Counters | None) -> float | None:
        if first is None or last is None or last.at_ns <= first.at_ns:
            return None
        if first.computer_ns is None or last.computer_ns is None:
            return None
        # The system counts in ticks of 10 ms, so it may report less than this program used.
        used = max(last.computer_ns - first.computer_ns, last.cpu_ns - first.cpu_ns)
        return min(1.0, used / (last.at_ns - first.at_ns) / self._cores)

    def load_of_day(self) -> Usage | None:
        with self._lock:
            return self._day_sums.load(self._cores)

    def summaries(
        self,
        names: tuple[str, ...],
        outputs: Mapping[str, Mapping[str, str]],
        counts: Mapping[str, Mapping[str, Mapping[str, int]]] | None = None,
    ) -> list[StreamSummary]:
        """Return today's summaries of all cameras, including removed ones. ``outputs``: camera ->
        kind -> path; ``counts``: camera -> kind -> counts."""
        with self._lock:
            return [
                self._summary(
                    member,
                    names,
                    outputs.get(member.camera.name, {}),
                    (counts or {}).get(member.camera.name, {}),
                )
                for member in self._all_members()
            ]

    def _summary(
        self,
        member: Member,
        names: tuple[str, ...],
        outputs: Mapping[str, str],
        counts: Mapping[str, Mapping[str, int]],
    ) -> StreamSummary:
        tally, facts = self._tally(member.camera.name), member.facts()
        tally.at_summary = counted, dropped = self._counts(member)
        counts_before, dropped_before = tally.before
        counts_today = {key: count - counts_before.get(key, 0) for key, count in counted.items()}
        dropped_today = {
            reason: more
            for reason, count in sorted(dropped.items())
            if (more := count - dropped_before.get(reason, 0))
        }
        received = counts_today["processed"] + sum(dropped_today.values())
        live_s = tally.live_ns / SECOND
        return StreamSummary(
            name=member.camera.name,
            url=member.camera.address.shown,
            state=facts.state,
            received=received,
            processed=counts_today["processed"],
            dropped=dropped_today,
            dropped_share=count_drops(dropped_today, received)[1],
            reconnects=counts_today["reconnects"],
            stalls=counts_today["stalls"],
            live_s=live_s,
            camera_fps=tally.rate_ns / tally.rated_ns if tally.rated_ns else None,
            processed_fps=_rate(counts_today["processed"], live_s),
            size=_size(facts),
            tiles=member.camera.tiles or self._tiles,
            codec=facts.codec,
            frozen=facts.frozen,
            error=facts.error,
            age_ms=tally.ages.result(),
            parts_ms=tally.ages.parts(),
            output_age_ms=tally.ages.outputs(),
            camera_age_ms=tally.ages.camera(),
            detections=_count_by_name(tally.found, names),
            outputs=dict(outputs),
            output_counts={kind: dict(one) for kind, one in counts.items()},
        )

    # Callers of these methods hold the lock.

    def _in_flight(self) -> int:
        """Return the number of pictures that the loop took but has not finished."""
        done = sum(tally.processed for tally in self._tallies.values())
        return sum(one.handed for one in self._all_members()) - done

    def _all_members(self) -> list[Member]:
        return [*self._collector.members(), *self._collector.gone.values()]

    def _tally(self, name: str) -> CameraTally:
        if name not in self._tallies:
            self._tallies[name] = CameraTally(FrameAges(self._clock()))
        return self._tallies[name]

    def _counts(self, member: Member) -> tuple[dict[str, int], dict[str, int]]:
        """Return counts of the run, and drops by reason. Pictures in flight count as stopped."""
        facts, tally = member.facts(), self._tally(member.camera.name)
        dropped = Counter(facts.dropped)
        dropped[STOPPED] += max(0, member.handed - tally.processed)
        counts = {
            "processed": tally.processed,
            "reconnects": facts.reconnects,
            "stalls": facts.stalls,
        }
        return counts, dict(dropped)

    def _stages(self) -> tuple[dict[str, int], int, int]:
        """Return stages' busy times, the number of workers, and how long at least one inferred."""
        if isinstance(self._timeline, OffTimeline):
            return {}, 1, 0
        stages: dict[str, int] = {}
        workers = 0
        for track in list(self._timeline.tracks.values()):
            for (stage, kind), span in list(track.spans.items()):
                if kind == WORK:
                    stages[stage] = stages.get(stage, 0) + span.self_ns
                    workers += stage == INFER
        return stages, max(1, workers), self._timeline.meters[INFER].total_ns

    def _stream(
        self, member: Member, now: int, first: Counters | None, last: Counters | None
    ) -> StreamFigures:
        facts, name = member.facts(), member.camera.name
        tally = self._tally(name)
        recent, parts = tally.ages.recent(now)
        return StreamFigures(
            name=name,
            url=member.camera.address.shown,
            state=facts.state,
            since_s=max(0, now - facts.since_ns) / SECOND,
            received=facts.received,
            processed=tally.processed,
            dropped=facts.dropped,
            reconnects=facts.reconnects,
            stalls=facts.stalls,
            age_ms=recent,
            parts_ms=parts,
            camera_fps=facts.fps,
            processed_fps=_recent_rate(name, facts, first, last),
            size=_size(facts),
            tiles=member.camera.tiles or self._tiles,
            zones=self.zones.figures(name),
            frozen=facts.frozen,
            error=facts.error,
            next_try_s=(
                None if facts.next_try_ns is None else max(0, facts.next_try_ns - now) / SECOND
            ),
        )


def _recent_rate(
    name: str, facts: FeedFacts, first: Counters | None, last: Counters | None
) -> float | None:
    """Return the rate over the last seconds; None if the camera has not been live long enough."""
    if facts.state != LIVE or first is None or last is None:
        return None
    since = max(first.at_ns, facts.since_ns)
    done = last.processed.get(name, 0) - first.processed.get(name, 0)
    return done * SECOND / (last.at_ns - since) if last.at_ns - since > SECOND // 2 else None


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count and seconds > 0 else None


def _size(facts: FeedFacts) -> str | None:
    return f"{facts.width}x{facts.height}" if facts.width else None


def _count_by_name(found: Counter[int], names: tuple[str, ...]) -> dict[str, int]:
    named = {names[i] if i < len(names) else str(i): count for i, count in found.items()}
    return dict(sorted(named.items(), key=lambda item: (-item[1], item[0])))
