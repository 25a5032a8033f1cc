"""Stub stages for the loop. A test decides how long they take and when they fail."""

import threading
import time
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np

from detector.core.loop.parts import Parts
from detector.core.timeline.spans import WORK
from detector.core.timeline.timeline import Timeline
from detector.core.types import Candidates, Detections, Frame, Letterbox, SourceInfo

INFO = SourceInfo("stub", "video", 8, 8, Fraction(25), Fraction(1, 25))


class FakeClock:
    """A clock that only ``sleep`` advances. Only one thread may use it."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now

    def sleep(self, ns: int) -> None:
        self.now += ns


class Notes:
    """Thread-safe record of work: stub's name -> list of (start, end), in ns of the real clock."""

    def __init__(self) -> None:
        self.spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._lock = threading.Lock()

    def work(self, name: str, seconds: float) -> None:
        start = time.perf_counter_ns()
        if seconds:
            time.sleep(seconds)
        with self._lock:
            self.spans[name].append((start, time.perf_counter_ns()))

    def total_ns(self, name: str) -> int:
        return sum(end - start for start, end in self.spans[name])

    def union_ns(self, name: str) -> int:
        total, reached = 0, 0
        for start, end in sorted(self.spans[name]):
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        return total


class StubSource:
    """A source of frames whose pixels all equal the frame's index."""

    def __init__(self, frames: int, work=lambda: None, fail_at: int | None = None) -> None:
        self.info = INFO
        self._left = iter(range(frames))
        self._work = work
        self._fail_at = fail_at
        self.buffers: set[int] = set()

    def read(self, into=None):
        index = next(self._left, None)
        if index is None:
            return None
        self._work()
        if index == self._fail_at:
            raise RuntimeError("read failed")
        image = np.zeros((8, 8, 3), np.uint8) if into is None else into
        self.buffers.add(id(image))
        image[:] = index % 256
        return Frame(index, index, index / 25, image)


class StubRequest:
    """A request whose "network" returns the first byte of each row, which reveals mixed-up rows."""

    device_ms: float | None = None

    def __init__(self, batch: int, work=lambda: None, fail_at: int | None = None) -> None:
        self.slot = np.zeros((batch, 8, 8, 3), np.uint8)
        self._out = np.zeros((batch, 1), np.float32)
        self._work = work
        self._fail_at = fail_at
        self.inside = 0

    def infer(self, n):
        self.inside += 1
        assert self.inside == 1, "two calls of infer overlap on one request"
        self._out[:] = -1
        self._work()
        if self._fail_at is not None and (self.slot[:n, 0, 0, 0] == self._fail_at).any():
            raise RuntimeError("infer failed")
        self._out[:n, 0] = self.slot[:n, 0, 0, 0]
        self.inside -= 1
        return [self._out[:n]]


class StubSink:
    def __init__(self, work=lambda: None, fail_at: int | None = None) -> None:
        # frame index, picture's value, detection's score
        self.rows: list[tuple[int, int, float]] = []
        self._work = work
        self._fail_at = fail_at

    def write(self, frame, detections):
        self._work()
        if frame.index == self._fail_at:
            raise RuntimeError("write failed")
        self.rows.append((frame.index, int(frame.image[0, 0, 0]), float(detections.scores[0])))


def copy_in(image, row):
    row[:] = image
    return Letterbox(1, 1, 0, 0, 8, 8)


def head(outputs):
    assert outputs[0].shape == (1, 1)
    return Candidates(np.zeros((1, 4), np.float32), outputs[0][0].copy(), np.zeros(1, np.int64))


def stub_parts(
    frames: int = 10,
    batch: int = 1,
    requests: int = 4,
    concurrency: int = 1,
    work=lambda name: None,
    fail: dict[str, int] | None = None,
    **more,
) -> Parts:
    """Build stages that call ``work(name)``. ``fail``: stage -> frame at which the stage raises."""
    fail = fail or {}

    def stage(name, function):
        def call(*arguments):
            work(name)
            if name in fail and fail[name] == call.calls:
                raise RuntimeError(f"{name} failed")
            call.calls += 1
            return function(*arguments)

        call.calls = 0
        return call

    if "track" in fail:
        more["between"] = {"track": stage("track", lambda frame, found: found)}
    return Parts(
        source=StubSource(frames, lambda: work("read"), fail.get("read")),
        requests=[
            StubRequest(batch, lambda: work("infer"), fail.get("infer")) for _ in range(requests)
        ],
        concurrency=concurrency,
        preprocess=stage("preprocess", copy_in),
        head=stage("head", head),
        nms=stage("nms", lambda found: Detections(found.boxes, found.scores, found.class_ids)),
        annotate=stage("annotate", lambda frame, detections: None),
        sinks=[StubSink(lambda: work("write"), fail.get("write"))],
        **more,
    )


def work_calls(timeline: Timeline) -> Counter[str]:
    """Return how often each stage worked, over all tracks."""
    calls: Counter[str] = Counter()
    for track in timeline.tracks.values():
        for (stage, kind), span in track.spans.items():
            calls[stage] += span.calls if kind == WORK else 0
    return calls
