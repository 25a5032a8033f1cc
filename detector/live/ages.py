"""The age of pictures at every output, split into its parts.

    arrived ── decoding ── decoded ── waiting ── inference began ── inference ── result ── writing
                                queues, conversion, letterbox    infer, head, nms

The age of a result is the sum of decoding, waiting and inference. Writing is the time from the
result until every output has received the picture.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Mapping

from detector.core.session.document import AgeFigures
from detector.core.timeline.histogram import Histogram
from detector.core.types import Arrival

DECODING, WAITING, INFERENCE, WRITING = "decoding", "waiting", "inference", "writing"
PARTS = (DECODING, WAITING, INFERENCE, WRITING)
RECENT_NS = 10_000_000_000  # length of a window; recent ages cover the two newest windows
PENDING = 64  # samples are added to the histogram in batches of this size


def split_age(arrival: Arrival, written_ns: int) -> dict[str, int]:
    """Return the nanoseconds of each part; their sum is ``written_ns`` minus the arrival time."""
    decoded = arrival.decoded_ns or arrival.arrived_ns
    began = max(decoded, arrival.began_ns)
    result = max(began, arrival.result_ns)
    return {
        DECODING: decoded - arrival.arrived_ns,
        WAITING: began - decoded,
        INFERENCE: result - began,
        WRITING: max(0, written_ns - result),
    }


class Samples:
    __slots__ = ("_histogram", "_pending")

    def __init__(self) -> None:
        self._histogram, self._pending = Histogram(), array("q")

    def add(self, ns: int) -> None:
        self._pending.append(max(0, ns))
        if len(self._pending) >= PENDING:
            self.flush()

    def flush(self) -> Histogram:
        self._histogram.add_many(self._pending)
        self._pending = array("q")
        return self._histogram


def ages(histogram: Histogram) -> AgeFigures:
    values = map(histogram.percentile, (50, 90, 99))
    p50, p90, p99 = (None if ns is None else ns / 1e6 for ns in values)
    longest = histogram.maximum / 1e6 if histogram.count else None
    return AgeFigures(p50=p50, p90=p90, p99=p99, max=longest)


class AgeSums:
    def __init__(self) -> None:
        self.result = Samples()
        self.parts = {part: Samples() for part in PARTS}
        self.outputs: dict[str, Samples] = {}
        self.camera: Samples | None = None  # ages by the camera's timestamps, if it sends any

    def add(self, arrival: Arrival, outputs: Mapping[str, int], written_ns: int) -> None:
        """Count one picture. ``outputs``: name of an output -> when it got the picture, in ns."""
        self.result.add(arrival.result_ns - arrival.arrived_ns)
        for part, ns in split_age(arrival, written_ns).items():
            self.parts[part].add(ns)
        for name, moment in outputs.items():
            self.outputs.setdefault(name, Samples()).add(moment - arrival.arrived_ns)
        if arrival.captured_s is not None:
            self.camera = self.camera or Samples()
            transit_s = arrival.utc_s - arrival.captured_s
            self.camera.add(int(transit_s * 1e9) + arrival.result_ns - arrival.arrived_ns)


class FrameAges:
    """One camera's ages, over the session and the last 10 to 20 seconds. Thread-safe."""

    def __init__(self, now_ns: int | None = None) -> None:
        self._lock = threading.Lock()
        self._whole = AgeSums()
        self._recent, self._before = AgeSums(), AgeSums()
        self._since_ns = time.perf_counter_ns() if now_ns is None else now_ns

    def add(self, arrival: Arrival, outputs: Mapping[str, int], written_ns: int) -> None:
        with self._lock:
            self._rotate(written_ns)
            self._whole.add(arrival, outputs, written_ns)
            self._recent.add(arrival, outputs, written_ns)

    def _rotate(self, now_ns: int) -> None:
        past = now_ns - self._since_ns
        if past >= RECENT_NS:
            self._before = self._recent if past < 2 * RECENT_NS else AgeSums()
            self._recent, self._since_ns = AgeSums(), now_ns

    def recent(self, now_ns: int) -> tuple[AgeFigures, dict[str, AgeFigures]]:
        with self._lock:
            self._rotate(now_ns)
            both = (self._before, self._recent)
            parts = {part: ages(_merge(*(one.parts[part] for one in both))) for part in PARTS}
            return ages(_merge(*(one.result for one in both))), parts

    def result(self) -> AgeFigures:
        with self._lock:
            return ages(self._whole.result.flush())

    def parts(self) -> dict[str, AgeFigures]:
        with self._lock:
            return {part: ages(one.flush()) for part, one in self._whole.parts.items()}

    def outputs(self) -> dict[str, AgeFigures]:
        with self._lock:
            return {name: ages(one.flush()) for name, one in self._whole.outputs.items()}

    def camera(self) -> AgeFigures | None:
        with self._lock:
            return None if self._whole.camera is None else ages(self._whole.camera.flush())

    def reset(self) -> None:
        with self._lock:
            self._whole = AgeSums()


def _merge(*samples: Samples) -> Histogram:
    merged = Histogram()
    for part in samples:
        merged.merge(part.flush())
    return merged
