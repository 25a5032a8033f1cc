"""Make a table of CUDA calls like nvprof's: how long each call, kernel and copy was on the critical
path of its process, and how long each call waited for the GPU.

The path is walked backwards. A waiting call leads to the GPU work that it waited for. GPU work
leads to the previous work of its stream or to its launch, whichever ended last. Any other call
leads to the previous call of its thread. Gaps have their own rows (``OTHER``, ``HAND_OVER``).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from detector.lab.session.nsys import CudaCall, DeviceWork
from detector.lab.session.profile import CallRow

OTHER, HAND_OVER = "<other>", "<hand-over to the GPU>"
PHASES = ("start-up", "steady state", "tear-down")
WAITS = re.compile(r"Synchronize|^cu(da)?Memcpy(?!.*Async)|^cu(da)?Memset(?!.*Async)")

Ended = TypeVar("Ended", CudaCall, DeviceWork)
Piece = tuple[str, int, int]
"""Name, start, end: a stretch of the path."""


def call_rows(
    calls: Sequence[CudaCall], works: Sequence[DeviceWork], edges: Sequence[int]
) -> list[CallRow]:
    """Return each phase's rows, sorted by time on the path. ``edges``: the 4 bounds of 3 phases."""
    if not calls:
        return []
    walk = _Walk(_drop_nested(calls), works)
    on_path: dict[int, Counter[str]] = defaultdict(Counter)
    for name, start, end in walk.pieces(edges[0], edges[-1]):
        for phase, (begin, until) in enumerate(pairwise(edges)):
            if (ns := min(end, until) - max(start, begin)) > 0:
                on_path[phase][name] += ns
    waited: dict[int, Counter[str]] = defaultdict(Counter)
    for call in walk.calls:
        if not edges[0] <= call.start <= edges[-1]:
            continue
        if (work := walk.find_awaited(call, call.end)) is not None:
            phase = min(bisect_right(edges, call.start) - 1, len(PHASES) - 1)
            waited[phase][call.name] += work.end - call.start
    rows = []
    for phase, name in enumerate(PHASES):
        path, waits = on_path[phase], waited[phase]
        total = sum(path.values()) or 1
        rows += [
            CallRow(name, one, path[one] / total, path[one] / 1e9, waits[one] / 1e9)
            for one in sorted({*path, *waits}, key=lambda one: (-path[one], -waits[one], one))
        ]
    return rows


def _drop_nested(calls: Iterable[CudaCall]) -> list[CudaCall]:
    """Return the outermost calls. The CUDA runtime calls the driver inside its own calls."""
    outermost: list[CudaCall] = []
    ends: dict[int, int] = {}
    for call in sorted(calls, key=lambda one: (one.thread, one.start, -one.end)):
        until = ends.get(call.thread)
        if until is None or call.end > until or call.start >= until:
            outermost.append(call)
            ends[call.thread] = call.end if until is None else max(until, call.end)
    return outermost


class _Walk:
    def __init__(self, calls: Sequence[CudaCall], works: Sequence[DeviceWork]) -> None:
        self.calls = sorted(calls, key=attrgetter("end"))
        self._works = sorted(works, key=attrgetter("end"))
        self._launches = {one.correlation: one for one in self.calls if one.correlation}
        self._of_thread: dict[int, list[CudaCall]] = defaultdict(list)
        for call in self.calls:
            self._of_thread[call.thread].append(call)
        self._of_stream: dict[int, list[DeviceWork]] = defaultdict(list)
        for work in self._works:
            self._of_stream[work.stream].append(work)

    def find_awaited(self, call: CudaCall, until: int) -> DeviceWork | None:
        """Return the last GPU work that the call waited for and that ended by ``until``."""
        work = _find_last(self._works, until)
        while work is not None and work.end > call.start:
            launch = self._launches.get(work.correlation)
            if launch is call or (
                WAITS.search(call.name) and (launch is None or launch.start < call.start)
            ):
                return work
            work = _find_last(self._works, work.end - 1)
        return None

    def pieces(self, begin: int, end: int) -> Iterator[Piece]:
        """Yield the pieces of the path between two times, the last piece first, without gaps."""
        now, node = end, self._find_latest(end)
        visited: set[CudaCall | DeviceWork] = set()
        while node is not None and now > begin and node not in visited:
            visited.add(node)
            if node.end < now:
                yield OTHER, node.end, now
                now = node.end
            if isinstance(node, DeviceWork):
                yield node.name, node.start, now
                now = min(now, node.start)
                node, launch = self._find_previous_of_work(node)
                if launch is not None:
                    if launch.end < now:
                        yield HAND_OVER, launch.end, now
                    now = min(now, launch.end)
                    yield launch.name, launch.start, now
                    now = min(now, launch.start)
                    node = self._find_previous_call(launch, now)
                continue
            work = self.find_awaited(node, min(now, node.end))
            if work is not None and work not in visited:
                yield node.name, work.end, now
                now, node = work.end, work
                continue
            yield node.name, node.start, now
            now = min(now, node.start)
            node = self._find_previous_call(node, now)
        if now > begin:
            yield OTHER, begin, now

    def _find_latest(self, end: int) -> CudaCall | DeviceWork | None:
        ended = [one for one in (_find_last(self.calls, end), _find_last(self._works, end)) if one]
        return max(ended, key=attrgetter("end"), default=None)

    def _find_previous_call(self, call: CudaCall, now: int) -> CudaCall | None:
        return _find_last(self._of_thread[call.thread], now) or _find_last(self.calls, now)

    def _find_previous_of_work(
        self, work: DeviceWork
    ) -> tuple[CudaCall | DeviceWork | None, CudaCall | None]:
        """Return (what ``work`` waited for, None) or, if its launch ended last, (None, launch)."""
        launch = self._launches.get(work.correlation)
        before = _find_last(self._of_stream[work.stream], work.start)
        before = None if before is work else before
        if launch is None:
            ended = [one for one in (before, _find_last(self.calls, work.start)) if one is not None]
            return max(ended, key=attrgetter("end"), default=None), None
        if before is not None and before.end >= launch.end:
            return before, None
        return None, launch


def _find_last(ordered: Sequence[Ended], until: int) -> Ended | None:
    """Return the last item that ended by ``until``. ``ordered`` is sorted by end."""
    at = bisect_right(ordered, until, key=attrgetter("end"))
    return ordered[at - 1] if at else None
