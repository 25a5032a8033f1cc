"""The cost per frame of the timeline and NVTX: each step's cost times the number of its runs.

We do not compare whole runs with and without instruments, because the difference would be noise:
to pass a lock to another thread takes longer if that thread happens to sleep. Counts do not depend
on the load of the machine. Costs hardly do: each is the minimum of many tries over some seconds.
"""

from __future__ import annotations

import _thread
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from measuring.rounds import ROOT, machine

FRAME_MS = 5.0
AIM = 0.005  # largest share of FRAME_MS that the instruments may take
TRIES, CALLS = 30, 1000
PAUSE_S = 0.2  # pause per try, so that the tries outlast another program's burst of load
FRAMES = 200
LONG_S = 2e-4  # length of a stage's call: long enough for the timeline to read the CPU clock
STAGES = ("read", "preprocess", "infer", "head", "nms", "annotate", "write")
SLEEPING = ("read", "infer", "write")
STEPS = (
    "span",
    "span of infer",
    "wait",
    "look at the CPU clock",
    "look at the run queue",
    "booking of the engine's threads",
)


@click.command()
@click.option("--mode", type=click.Choice(["plain", "tool"]), hidden=True)
def instruments(mode: str | None) -> None:
    """Measure the cost of the timeline and NVTX in the threaded loop: steps are counted and timed.

    Steps are counted in two runs. In the usual run, reading, inference and writing sleep, as if
    libraries' threads worked for them, and the other stages compute. In the second run every stage
    sleeps; then the timeline reads all clocks, as on a busy machine. The cost of a step is measured
    twice: without a profiler, and with an NVTX tool that does nothing.
    """
    if mode:
        click.echo(json.dumps(_costs()))
        return
    click.echo(machine())
    runs = {"usual": _count_steps(SLEEPING), "every stage sleeps": _count_steps(STAGES)}
    for name, counts in runs.items():
        click.echo(f"{name}: steps per frame: {_listed(counts, '.1f')}")
    click.echo(f"plain loop: the timeline's calls per frame: {_listed(_count_calls(), '.1f')}")
    for title, environment in (("no profiler", {}), ("NVTX tool that does nothing", _tool())):
        costs = _in_process(environment)
        click.echo(f"{title}: cost of each step in us: {_listed(costs, '.2f')}")
        for name, counts in runs.items():
            total_us = sum(counts[step] * costs[step] for step in STEPS)
            share = total_us / 1e3 / FRAME_MS
            click.echo(
                f"{title}, {name}: {total_us:.1f} us per frame = {share:.2%} of {FRAME_MS:g} ms"
                f" ({'within' if share < AIM else 'ABOVE'} {AIM:.1%})"
            )


def _listed(figures: dict[str, float], form: str) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in figures.items())


def _in_process(environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, str(ROOT / "scripts/bench"), "instruments", "--mode", "plain"]
    completed = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    costs: dict[str, float] = json.loads(completed.stdout)
    return costs


def _tool() -> dict[str, str]:
    library = Path(tempfile.mkdtemp()) / "probe.so"
    source = ROOT / "tests/nvtx_probe.c"
    flags = ["-O1", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", library, source, "-lpthread"], check=True)
    return {"NVTX_INJECTION64_PATH": str(library), "NVTX_PROBE_LOG": "none"}


@contextmanager
def _checkout_on_path() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT))
    try:
        yield
    finally:
        sys.path.pop(0)


def _count_steps(sleeping: Container[str]) -> dict[str, float]:
    """Return step -> runs per frame in the threaded loop. Stages not in ``sleeping`` compute."""
    with _checkout_on_path():
        from detector.core.loop.overlapped import frames_overlapped
        from detector.core.loop.parts import Progress
        from detector.core.timeline.native import RunQueue
        from detector.core.timeline.spans import INFER, WORK
        from detector.core.timeline.timeline import Timeline
        from tests.loop.stubs import stub_parts

    looks, reads = [0], [0]

    def clock() -> int:
        looks[0] += 1
        return time.thread_time_ns()

    class Counted(RunQueue):
        def read(self) -> int:
            reads[0] += 1
            return super().read()

    def work(name: str) -> None:
        until = time.perf_counter() + LONG_S
        if name in sleeping:
            time.sleep(LONG_S)
        while time.perf_counter() < until:
            pass

    with _sleeping_threads() as natives:
        timeline = Timeline(cpu_clock=clock, run_queue=Counted, natives=natives)
        for _ in frames_overlapped(stub_parts(FRAMES, work=work), timeline, Progress()):
            pass
    counts = dict.fromkeys(STEPS, 0.0)
    for track in timeline.tracks.values():
        for (stage, kind), span in track.spans.items():
            name = "wait" if kind != WORK else "span of infer" if stage == INFER else "span"
            counts[name] += span.calls
            if span.is_booked:
                counts["booking of the engine's threads"] += span.calls
    counts["look at the CPU clock"] = looks[0]
    counts["look at the run queue"] = reads[0]
    return {name: count / FRAMES for name, count in counts.items()}


def _count_calls() -> dict[str, float]:
    """Return how many function calls per frame the timeline adds to the plain loop."""
    with _checkout_on_path():
        from detector.core.loop.parts import Progress
        from detector.core.loop.sync import frames_in_turn
        from detector.core.timeline.timeline import OffTimeline, Timeline
        from tests.loop.stubs import stub_parts

    def calls(timeline: Any) -> dict[str, int]:
        counts = {"call": 0, "c_call": 0}

        def note(frame: Any, event: str, argument: Any) -> None:
            if event in counts:
                counts[event] += 1

        loop = frames_in_turn(stub_parts(FRAMES), timeline, Progress())
        sys.setprofile(note)
        try:
            for _ in loop:
                pass
        finally:
            sys.setprofile(None)
        return counts

    on, off = calls(Timeline()), calls(OffTimeline())
    names = {"call": "of Python functions", "c_call": "of built-in functions"}
    return {title: (on[name] - off[name]) / FRAMES for name, title in names.items()}


def _costs() -> dict[str, float]:
    """Return CPU microseconds of each step, the minimum of many tries."""
    with _checkout_on_path():
        from detector.core.timeline.booking import Booking
        from detector.core.timeline.native import RunQueue
        from detector.core.timeline.spans import INFER, WAIT_INPUT, WORK, WRITE
        from detector.core.timeline.timeline import Timeline

    timeline = Timeline()
    with _sleeping_threads() as natives, timeline.track("writer") as track:

        def span(stage: str, kind: str) -> Callable[[], None]:
            def one() -> None:
                with track.span(stage, 7, kind):
                    pass

            return one

        queue = RunQueue()
        owner = track.other
        worker = Booking(natives.tasks_of(INFER)).worker("worker")
        steps: dict[str, Callable[[], Any]] = {
            "span": span(WRITE, WORK),
            "span of infer": span(INFER, WORK),
            "wait": span("result", WAIT_INPUT),
            # This track has no run queue, so this is the cost of the CPU clock only.
            "look at the CPU clock": lambda: track.check_clocks(owner, 0),
            "look at the run queue": queue.read,
            "booking of the engine's threads": lambda: (worker.enter(), worker.leave()),
        }
        tries = [[_cost(step) for step in steps.values()] for _ in range(TRIES)]
        queue.close()
    return dict(zip(steps, map(min, *tries), strict=True))


@contextmanager
def _sleeping_threads() -> Iterator[Any]:
    """Start a sleeping thread per core, like the threads that an engine's library starts."""
    with _checkout_on_path():
        from detector.core.timeline.native import Natives
        from detector.core.timeline.spans import INFER

    natives, over = Natives(), _thread.allocate_lock()
    over.acquire()

    def sleep() -> None:
        with over:
            pass

    try:
        with natives.book_threads(INFER):  # threads unknown to ``threading`` count as native
            for _ in range(os.cpu_count() or 1):
                _thread.start_new_thread(sleep, ())
        yield natives
    finally:
        over.release()


def _cost(step: Callable[[], Any]) -> float:
    start = time.thread_time_ns()
    for _ in range(CALLS):
        step()
    used_ns = time.thread_time_ns() - start
    time.sleep(PAUSE_S / len(STEPS))
    return used_ns / CALLS / 1e3
