"""CPU time of the threads that decoder, encoder and engine start themselves, per stage.

No system records who started a thread, so we infer it from time. A thread that is new when a
stage's part has been opened, or when the stage's first call returns, belongs to that stage. If two
stages were starting threads at once, the name decides: the loop's threads have names, and a thread
keeps its creator's name until somebody changes it. Any other thread remains unknown; its CPU time
is reported as such. Linux gives the times in /proc; a sandbox may hide them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from detector.core.errors.machine import usable_cores

TASKS = "/proc/self/task"
AT_ONCE_NS, LOOKS = 2_000_000, 4  # time to read all clocks of a process: 0.3 ms on an idle machine


class Times(NamedTuple):
    """A thread's times so far, nanoseconds. ``ready``: runnable, but not scheduled."""

    cpu: int
    ready: int


def task_ids() -> set[int]:
    """Return the ids of this process's threads; empty if the system does not list them."""
    try:
        return {int(name) for name in os.listdir(TASKS)}
    except OSError:
        return set()


def times_of(task: int | None = None) -> Times | None:
    """Return a thread's times, by default the calling one's, from its schedstat (Linux)."""
    place = "/proc/thread-self" if task is None else f"{TASKS}/{task}"
    try:
        with open(f"{place}/schedstat", "rb") as file:
            cpu, ready = file.read().split()[:2]
            return Times(int(cpu), int(ready))
    except (OSError, ValueError):
        return None


class RunQueue:
    """The time that the opening thread was runnable without a core: the second number of its
    schedstat (Linux, Documentation/scheduler/sched-stats.rst), in nanoseconds. It counts each time
    the thread gets a core, so the thread itself reads it exactly. The file stays open: a read takes
    1 us, opening it 10. Raises OSError if absent."""

    __slots__ = ("_file",)

    def __init__(self, place: str = "/proc/thread-self/schedstat") -> None:
        self._file = os.open(place, os.O_RDONLY)

    def read(self) -> int:
        return int(os.pread(self._file, 96, 0).split(b" ", 2)[1])

    def close(self) -> None:
        os.close(self._file)


def open_run_queue() -> RunQueue | None:
    """Open the count; None if the system has none."""
    try:
        queue = RunQueue()
    except OSError:
        return None
    try:
        queue.read()
    except (OSError, ValueError, IndexError):
        queue.close()
        return None
    return queue


def name_of(task: int | None = None) -> str:
    """Return the kernel's name of a thread, by default the calling one; "" if there is none."""
    try:
        with open(
            "/proc/thread-self/comm" if task is None else f"{TASKS}/{task}/comm", "rb"
        ) as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def give_name(name: str) -> None:
    """Name the calling thread for the kernel and tools such as ``top -H``; 15 bytes are kept."""
    with suppress(OSError), open("/proc/thread-self/comm", "wb") as file:
        file.write(name.encode()[:15])


def machine_busy_ns() -> int | None:
    """Return what all processes have used of this process's cores since the computer started."""
    try:
        cores = {f"cpu{core}".encode() for core in os.sched_getaffinity(0)}
        with open("/proc/stat", "rb") as file:
            rows = [line.split() for line in file if line.split()[0] in cores]
        # user, nice, system; idle, iowait (no work); irq, softirq, steal; guests are in user
        ticks = sum(int(row[at]) for row in rows for at in (1, 2, 3, 6, 7, 8))
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


@dataclass(slots=True)
class Mark:
    """A snapshot: the calls of each stage, and the time that every thread had used by then."""

    calls: dict[str, int]
    times: dict[int, Times]
    now_ns: int
    process_ns: int
    machine_ns: int | None


@dataclass(slots=True)
class StageThreads:
    """The threads of one stage between two marks, nanoseconds.

    ``busiest_ns``: CPU time of the thread that used most; ``ready_ns``: how long that thread was
    runnable but not scheduled. ``calls``: the stage's calls meanwhile.
    """

    calls: int = 0
    threads: int = 0
    cpu_ns: int = 0
    busiest_ns: int = 0
    ready_ns: int = 0


@dataclass(slots=True)
class Burnt:
    """The time used between two marks, nanoseconds.

    ``unknown_ns``: CPU time of this process that belongs neither to our threads nor to a stage.
    ``others_ns``: used by other processes on the same cores; None if unknown.
    """

    wall_ns: int = 0
    process_ns: int = 0
    unknown_ns: int = 0
    others_ns: int | None = None
    stages: dict[str, StageThreads] = field(default_factory=dict)


class _ByStage(dict[str, dict[int, str]]):
    """Threads by stage; a missing entry is listed by ``make`` and added."""

    def __init__(self, make: Callable[[str], dict[int, str]]) -> None:
        self._make = make

    def __missing__(self, stage: str) -> dict[int, str]:
        return self._make(stage)


class Natives:
    """The native threads of this process. Tests fake ``ids``, ``times`` and ``names``."""

    def __init__(
        self,
        ids: Callable[[], set[int]] = task_ids,
        times: Callable[[int], Times | None] = times_of,
        names: Callable[[int | None], str] = name_of,
    ) -> None:
        self._ids, self._times, self._names = ids, times, names
        self._lock = threading.Lock()
        # thread -> stages that may have created it -> whether it has the name of their thread
        self._claims: dict[int, dict[str, bool]] = {}
        self._makers: dict[int, str] = {}  # thread -> the name inherited from its creator
        self._tasks = _ByStage(self._listed)  # until a claim changes
        self._ours: set[int] = set()
        self._left: dict[
            int, Times
        ] = {}  # read when one of our threads ended; that one and others may be gone since

    def forget_gone(self) -> None:
        """Forget ended threads. Call it before a run: the system reuses their numbers."""
        alive = self._ids()
        with self._lock:
            self._claims = {task: stages for task, stages in self._claims.items() if task in alive}
            self._makers = {task: name for task, name in self._makers.items() if task in alive}
            self._ours &= alive
            self._tasks.clear()
            self._left.clear()

    @contextmanager
    def book_threads(self, stage: str) -> Iterator[None]:
        """Book threads that appear inside, and are not Python's, to the stage."""
        before = self._ids()
        try:
            yield
        finally:
            new, name = self._ids() - before, self._names(None)
            with self._lock:
                self._ours |= _python_threads()
                self._tasks.clear()
                for task in new - self._ours:
                    stages = self._claims.setdefault(task, {})
                    if named := self._names(task) == name:
                        self._makers[task] = name
                    stages[stage] = stages.get(stage, False) or named

    def tasks_of(self, stage: str) -> Callable[[], Mapping[int, str]]:
        """Return a function that returns the stage's threads, each with the name of the thread that
        created it; "" if unknown. The mapping is another object if the threads changed.

        It is called twice per inference, and is not Python code: 0.1 us.
        """
        return partial(self._tasks.__getitem__, stage)

    def _listed(self, stage: str) -> dict[int, str]:
        with self._lock:
            return self._tasks.setdefault(
                stage,
                {
                    task: self._makers.get(task, "")
                    for task, stages in self._claims.items()
                    if _maker(stages) == stage
                },
            )

    def left(self) -> None:
        """Call this from one of our threads about to end, while its times can still be read."""
        with self._lock:
            self._ours.add(threading.get_native_id())
            self._left |= self._all_times()

    def _all_times(self) -> dict[int, Times]:
        found = ((task, self._times(task)) for task in self._ids())
        return {task: times for task, times in found if times is not None}

    def mark(self, calls: Mapping[str, int]) -> Mark:
        """Read all clocks, again if that took long: the caller lost its core meanwhile, and the CPU
        time of that moment would belong to no thread. The quickest reading counts."""
        looks = [self._look(calls)]
        while looks[-1][0] > AT_ONCE_NS and len(looks) < LOOKS:
            looks.append(self._look(calls))
        return min(looks, key=lambda look: look[0])[1]

    def _look(self, calls: Mapping[str, int]) -> tuple[int, Mark]:
        """Return the nanoseconds that reading the clocks took, and the mark."""
        began = time.perf_counter_ns()
        machine, process = machine_busy_ns(), time.process_time_ns()
        with self._lock:
            self._ours |= _python_threads()
            times = self._left | self._all_times()
        now = time.perf_counter_ns()
        return now - began, Mark(dict(calls), times, now, process, machine)

    def between(self, first: Mark, last: Mark) -> Burnt:
        with self._lock:
            ours = set(self._ours)
            makers = {
                task: maker
                for task, stages in self._claims.items()
                if (maker := _maker(stages)) is not None
            }
        process, machine = last.process_ns - first.process_ns, None
        if first.machine_ns is not None and last.machine_ns is not None:
            # A virtual machine's core clock can jump; limit the use to the time available.
            there = (last.now_ns - first.now_ns) * usable_cores()
            machine = max(0, min(last.machine_ns - first.machine_ns, there) - process)
        found = Burnt(last.now_ns - first.now_ns, process, process, machine)
        for task, times in last.times.items():
            start = first.times.get(task, Times(0, 0))
            cpu, ready = times.cpu - start.cpu, times.ready - start.ready
            if cpu <= 0 or (task not in ours and task not in makers):
                continue
            found.unknown_ns -= cpu
            if task not in ours:
                stage = found.stages.setdefault(makers[task], StageThreads())
                stage.threads, stage.cpu_ns = stage.threads + 1, stage.cpu_ns + cpu
                if cpu > stage.busiest_ns:
                    stage.busiest_ns, stage.ready_ns = cpu, ready
        found.unknown_ns = max(0, found.unknown_ns)  # the clocks are not read at one instant
        for name, stage in found.stages.items():
            stage.calls = last.calls.get(name, 0) - first.calls.get(name, 0)
        return found


def _maker(claims: Mapping[str, bool]) -> str | None:
    """Return the only stage that could have created a thread, or the only one whose name it has."""
    likely = [stage for stage, named in claims.items() if named or len(claims) == 1]
    return likely[0] if len(likely) == 1 else None


def _python_threads() -> set[int]:
    return {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}
