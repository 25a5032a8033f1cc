"""Measure the CPU time of the native threads that each stage's decoder, encoder or engine starts.

No system records who started a thread, so we infer it from time. If a thread starts while a
stage's decoder, encoder or engine is opened, or during the stage's first call, it belongs to that
stage. If two stages were starting threads at once, the name decides: the loop's threads have names,
and a thread keeps its creator's name until a program changes it. The CPU time of any other thread
is reported as unknown. Linux shows the times in /proc; a sandbox may hide them.
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
# Reading all clocks takes 0.3 ms on an idle machine. Above QUICK_READING_NS, we read them again.
QUICK_READING_NS, MAX_READINGS = 2_000_000, 4


class Times(NamedTuple):
    """A thread's times so far, in nanoseconds. ``ready``: runnable, but not scheduled."""

    cpu: int
    ready: int


def task_ids() -> set[int]:
    """Return the ids of this process's threads; empty if the system does not list them."""
    try:
        return {int(name) for name in os.listdir(TASKS)}
    except OSError:
        return set()


def times_of(task: int | None = None) -> Times | None:
    """Return the times of a thread (default: the calling thread) from its schedstat (Linux)."""
    folder = "/proc/thread-self" if task is None else f"{TASKS}/{task}"
    try:
        with open(f"{folder}/schedstat", "rb") as file:
            cpu, ready = file.read().split()[:2]
            return Times(int(cpu), int(ready))
    except (OSError, ValueError):
        return None


class RunQueue:
    """Reads how long the thread that opened it was runnable without a core, in nanoseconds: the
    second number of schedstat (Linux, Documentation/scheduler/sched-stats.rst). The kernel updates
    this number when the thread gets a core. So the number is exact if the thread itself reads it.
    The file stays open: reading takes 1 us, opening 10 us. Raises OSError if there is no file."""

    __slots__ = ("_file",)

    def __init__(self, path: str = "/proc/thread-self/schedstat") -> None:
        self._file = os.open(path, os.O_RDONLY)

    def read(self) -> int:
        return int(os.pread(self._file, 96, 0).split(b" ", 2)[1])

    def close(self) -> None:
        os.close(self._file)


def open_run_queue() -> RunQueue | None:
    """Open the calling thread's ``RunQueue``; return None if the system has no such count."""
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
    """Return the kernel's name of a thread (default: the calling thread); "" if it has none."""
    try:
        folder = "/proc/thread-self" if task is None else f"{TASKS}/{task}"
        with open(f"{folder}/comm", "rb") as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def give_name(name: str) -> None:
    """Name the calling thread for the kernel and tools such as ``top -H``; 15 bytes are kept."""
    with suppress(OSError), open("/proc/thread-self/comm", "wb") as file:
        file.write(name.encode()[:15])


def machine_busy_ns() -> int | None:
    """Return the CPU time of all processes on this process's cores since boot, in nanoseconds."""
    try:
        cores = {f"cpu{core}".encode() for core in os.sched_getaffinity(0)}
        with open("/proc/stat", "rb") as file:
            fields = [line.split() for line in file if line.split()[0] in cores]
        # user, nice, system, irq, softirq, steal, but not idle and iowait; user includes guests
        ticks = sum(int(row[at]) for row in fields for at in (1, 2, 3, 6, 7, 8))
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


@dataclass(slots=True)
class Mark:
    """A snapshot of the calls of each stage and of the times of every thread."""

    calls: dict[str, int]
    times: dict[int, Times]
    now_ns: int
    process_ns: int
    machine_ns: int | None


@dataclass(slots=True)
class StageThreads:
    """The threads of one stage between two marks, and how often the stage was called.
    ``busiest_ns``: CPU time of the thread that used most; ``ready_ns``: how long that thread was
    runnable but not scheduled."""

    calls: int = 0
    threads: int = 0
    cpu_ns: int = 0
    busiest_ns: int = 0
    ready_ns: int = 0


@dataclass(slots=True)
class Burnt:
    """The time used between two marks, in nanoseconds. ``unknown_ns``: CPU time of this process
    that belongs neither to our threads nor to a stage. ``others_ns``: CPU time that other processes
    used on the same cores; None if unknown."""

    wall_ns: int = 0
    process_ns: int = 0
    unknown_ns: int = 0
    others_ns: int | None = None
    stages: dict[str, StageThreads] = field(default_factory=dict)


class _ByStage(dict[str, dict[int, str]]):
    """The threads of each stage. If a stage is missing, ``make`` returns its threads."""

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
        # thread -> (stage that may have created it -> whether the stage's thread has the same name)
        self._claims: dict[int, dict[str, bool]] = {}
        self._creators: dict[int, str] = {}  # thread -> the name inherited from its creator
        self._tasks = _ByStage(self._list_threads)  # cleared when a claim changes
        self._ours: set[int] = set()
        # All threads' times, read whenever a thread of ours ends: the system forgets ended threads.
        self._times_at_ends: dict[int, Times] = {}

    def forget_gone(self) -> None:
        """Forget ended threads. Call it before a run: the system reuses their numbers."""
        alive = self._ids()
        with self._lock:
            self._claims = {task: stages for task, stages in self._claims.items() if task in alive}
            self._creators = {task: name for task, name in self._creators.items() if task in alive}
            self._ours &= alive
            self._tasks.clear()
            self._times_at_ends.clear()

    @contextmanager
    def book_threads(self, stage: str) -> Iterator[None]:
        """Claim for the stage all threads that start inside the ``with`` block, except Python's."""
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
                        self._creators[task] = name
                    stages[stage] = stages.get(stage, False) or named

    def tasks_of(self, stage: str) -> Callable[[], Mapping[int, str]]:
        """Return the ``tasks`` of a ``Booking``: a function that returns the stage's threads. It is
        called twice per inference, so it runs no Python code once they are listed (0.1 us)."""
        return partial(self._tasks.__getitem__, stage)

    def _list_threads(self, stage: str) -> dict[int, str]:
        with self._lock:
            return self._tasks.setdefault(
                stage,
                {
                    task: self._creators.get(task, "")
                    for task, stages in self._claims.items()
                    if _find_creator(stages) == stage
                },
            )

    def note_thread_end(self) -> None:
        """Read the times of all threads. A thread of ours calls this just before it ends."""
        with self._lock:
            self._ours.add(threading.get_native_id())
            self._times_at_ends |= self._all_times()

    def _all_times(self) -> dict[int, Times]:
        readings = ((task, self._times(task)) for task in self._ids())
        return {task: times for task, times in readings if times is not None}

    def mark(self, calls: Mapping[str, int]) -> Mark:
        """Read all clocks and return the quickest reading. A slow reading is repeated: the caller
        lost its core during it. The clocks read later include CPU time that the others miss."""
        readings = [self._read_clocks(calls)]
        while readings[-1][0] > QUICK_READING_NS and len(readings) < MAX_READINGS:
            readings.append(self._read_clocks(calls))
        return min(readings, key=lambda reading: reading[0])[1]

    def _read_clocks(self, calls: Mapping[str, int]) -> tuple[int, Mark]:
        """Return the nanoseconds that reading the clocks took, and the mark."""
        began = time.perf_counter_ns()
        machine, process = machine_busy_ns(), time.process_time_ns()
        with self._lock:
            self._ours |= _python_threads()
            times = self._times_at_ends | self._all_times()
        now = time.perf_counter_ns()
        return now - began, Mark(dict(calls), times, now, process, machine)

    def between(self, first: Mark, last: Mark) -> Burnt:
        with self._lock:
            ours = set(self._ours)
            creators = {
                task: creator
                for task, stages in self._claims.items()
                if (creator := _find_creator(stages)) is not None
            }
        process, machine = last.process_ns - first.process_ns, None
        if first.machine_ns is not None and last.machine_ns is not None:
            # A virtual machine's CPU times can jump, so limit the time used to the time available.
            available = (last.now_ns - first.now_ns) * usable_cores()
            machine = max(0, min(last.machine_ns - first.machine_ns, available) - process)
        burnt = Burnt(last.now_ns - first.now_ns, process, process, machine)
        for task, times in last.times.items():
            start = first.times.get(task, Times(0, 0))
            cpu, ready = times.cpu - start.cpu, times.ready - start.ready
            if cpu <= 0 or (task not in ours and task not in creators):
                continue
            burnt.unknown_ns -= cpu
            if task not in ours:
                stage = burnt.stages.setdefault(creators[task], StageThreads())
                stage.threads, stage.cpu_ns = stage.threads + 1, stage.cpu_ns + cpu
                if cpu > stage.busiest_ns:
                    stage.busiest_ns, stage.ready_ns = cpu, ready
        burnt.unknown_ns = max(0, burnt.unknown_ns)  # can be negative: clocks are read in turn
        for name, stage in burnt.stages.items():
            stage.calls = last.calls.get(name, 0) - first.calls.get(name, 0)
        return burnt


def _find_creator(claims: Mapping[str, bool]) -> str | None:
    """Return the stage that created a thread: the only stage that may have created it, or the only
    one whose own thread has the same name."""
    likely = [stage for stage, named in claims.items() if named or len(claims) == 1]
    return likely[0] if len(likely) == 1 else None


def _python_threads() -> set[int]:
    return {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}
