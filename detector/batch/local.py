"""The pool of this machine: processes, each with its share of the cores and one engine.

A process that crashes, hangs or runs out of memory takes its item with it and nothing else; another
process takes its place. Two watchdogs end a process: an item that takes longer than the user
allows, and one that gives no frame for five minutes.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from detector.batch.documents import WorkerReport, WorkerState
from detector.batch.item import Task
from detector.batch.pool import Event, Failed, Finished, Gone
from detector.batch.settings import LoadedFacts, digest_of
from detector.batch.worker import Answer, Opening, Order, to_line
from detector.core.errors import EXIT_ENGINE, error_of_code
from detector.core.errors.text import counted
from detector.core.run.signals import Stop, Stopped
from detector.core.session import codec
from detector.core.session.codec import to_builtins

ROOT = Path(__file__).parents[2]
STALL_S = 300.0  # without a frame
LOADING_S = 3600.0  # an engine may build its own file first
GRACE_S = 5.0  # to leave in order before it is killed
TICK_S = 0.2
LAST_WORDS = 300  # characters of stderr in a message
MOST_FAILED_LOADS = 3  # in a row, then the place is given up
READ_BYTES = 1 << 20


def share_cores(cores: Sequence[int], workers: int) -> list[list[int]]:
    """The cores of each worker, next to each other. With more workers than cores nobody is bound to
    any, so all may use all."""
    if workers > len(cores):
        return [list(cores)] * workers
    bounds = [number * len(cores) // workers for number in range(workers + 1)]
    return [list(cores[a:b]) for a, b in pairwise(bounds)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds. ``item``: how long an item may take; None: as long as it gives frames."""

    item: float | None = None
    stall: float = STALL_S
    loading: float = LOADING_S


@dataclass(slots=True)
class _Place:
    """One place in the pool, and the process that has it now."""

    number: int
    cores: list[int]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    state: str = "gone"  # "loading", "idle", "working", "gone"
    since: float = 0.0  # of the state
    unread: bytes = b""
    task: Task | None = None
    frames: int = 0  # of the item under way
    moved: float = 0.0  # when the last frame came
    facts: LoadedFacts | None = None
    failed_loads: int = 0
    # Over all its processes:
    born: float = 0.0
    starts: int = 0
    items: int = 0
    done_frames: int = 0
    load_s: float = 0.0
    busy_s: float = 0.0
    ended: float | None = None


@dataclass(slots=True)
class LocalPool:
    """``folder``: for temporary files, of this process alone; it is removed by whoever ends last.
    ``place``: of the outputs. ``stop``: ends waits for a first worker."""

    folder: Path
    place: str
    shares: list[list[int]]
    limits: Limits = field(default_factory=Limits)
    gathers: bool = False
    stop: Stop = field(default_factory=Stop)
    clock: Callable[[], float] = time.monotonic
    _places: list[_Place] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _events: list[Event] = field(default_factory=list)
    _opening: Opening | None = None
    _digest: str | None = None  # of the settings, once they are known

    # ---- starting

    def load_first(
        self, config: dict[str, dict[str, Any]], pictures: Sequence[str], *, resolves: bool
    ) -> LoadedFacts:
        self._opening = Opening(
            config=config,
            place=self.place,
            pictures=list(pictures),
            resolves=resolves,
            gathers=self.gathers,
        )
        first = self._add_place(0)
        self._launch(first)
        while first.facts is None:
            if self.stop.is_set():
                assert self.stop.exit_code is not None
                raise Stopped(self.stop.exit_code)
            self._look(TICK_S)
            if first.state == "gone":
                (gone,) = [event for event in self._events if isinstance(event, Gone)]
                self._events.clear()
                raise error_of_code(gone.exit_code)(gone.error)
        return first.facts

    def start(self, config: dict[str, dict[str, Any]], digest: str, most: int) -> None:
        assert self._opening is not None
        self._digest = digest
        self._opening = Opening(
            config=config, place=self.place, pictures=[], resolves=False, gathers=self.gathers
        )
        (first,) = self._places
        if first.facts is None or first.facts.config != config or digest_of(first.facts) != digest:
            self._end([first])
            self._launch(first)
        for number in range(1, min(most, len(self.shares))):
            self._launch(self._add_place(number))

    def _add_place(self, number: int) -> _Place:
        place = _Place(number, self.shares[number], self.folder / f"worker-{number}")
        place.born = self.clock()
        self._places.append(place)
        return place

    def _launch(self, place: _Place) -> None:
        """A new process in this place, which begins to load."""
        assert self._opening is not None
        shutil.rmtree(place.folder, ignore_errors=True)  # of one that was killed
        place.folder.mkdir()
        with open(place.folder / "stderr.txt", "ab") as stderr:
            place.process = subprocess.Popen(
                _command_line(self.folder, place.cores),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the parent
                env={**os.environ, "TMPDIR": str(place.folder)},
            )
        assert place.process.stdout is not None
        os.set_blocking(place.process.stdout.fileno(), False)
        self._selector.register(place.process.stdout, selectors.EVENT_READ, place)
        place.unread, place.facts, place.task = b"", None, None
        place.starts += 1
        self._enter(place, "loading")
        self._send(place, Order(do="open", opening=self._opening))

    def _enter(self, place: _Place, state: str) -> None:
        """Books the seconds of the state that ends."""
        now = self.clock()
        if place.state == "loading":
            place.load_s += now - place.since
        elif place.state == "working":
            place.busy_s += now - place.since
        place.state, place.since = state, now
        if state == "gone":
            place.ended = now

    def _send(self, place: _Place, order: Order) -> None:
        assert place.process is not None
        assert place.process.stdin is not None
        with suppress(BrokenPipeError):  # its death is noticed where it is read
            place.process.stdin.write(to_line(order).encode())
            place.process.stdin.flush()

    # ---- work

    def has_room(self) -> bool:
        return any(place.state == "idle" for place in self._places)

    def submit(self, task: Task) -> None:
        place = next(place for place in self._places if place.state == "idle")
        place.task, place.frames = task, 0
        self._enter(place, "working")
        place.moved = place.since
        self._send(place, Order(do="item", task=to_builtins(task)))

    def wait(self, seconds: float) -> list[Event]:
        end, had_room = self.clock() + seconds, self.has_room()
        while not self._events and (had_room or not self.has_room()):
            left = end - self.clock()
            if left <= 0:
                break
            self._look(min(left, TICK_S))
        events, self._events = self._events, []
        return events

    def _look(self, seconds: float) -> None:
        """Reads what workers say, for so long, and ends those that hang."""
        for key, _ in self._selector.select(seconds) if self._selector.get_map() else ():
            self._read(key.data)
        now = self.clock()
        for place in self._places:
            if (why := self._why_hanging(place, now)) is not None:
                self._kill(place)
                self._bury(place, why)

    def _read(self, place: _Place) -> None:
        assert place.process is not None
        assert place.process.stdout is not None
        try:
            data = os.read(place.process.stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._kill(place)
            self._bury(place, self._describe_death(place))
            return
        *lines, place.unread = (place.unread + data).split(b"\n")
        for line in lines:
            if place.state == "gone":
                return
            self._hear(place, codec.from_json(line, Answer, "a worker of batch"))

    def _hear(self, place: _Place, answer: Answer) -> None:
        if answer.kind == "frames":
            place.frames, place.moved = answer.frames, self.clock()
        elif answer.kind == "loaded":
            self._take_loaded(place, answer)
        elif place.task is None:
            self._fail_load(place, answer.error, answer.exit_code, final=self._digest is None)
        else:
            self._take_result(place, place.task, answer)

    def _take_loaded(self, place: _Place, answer: Answer) -> None:
        facts = codec.from_builtins(answer.facts, LoadedFacts, "a worker of batch")
        if self._digest is not None and digest_of(facts) != self._digest:
            text = f"{facts.model}: the model's file is another one now than when the job began"
            self._fail_load(place, text, EXIT_ENGINE, final=True)
            return
        place.facts, place.failed_loads = facts, 0
        self._enter(place, "idle")

    def _take_result(self, place: _Place, task: Task, answer: Answer) -> None:
        wall_s = self.clock() - place.since
        place.task = None
        self._enter(place, "idle")
        if answer.record is not None:
            place.items += 1
            place.done_frames += answer.record.frames
            self._events.append(Finished(task, place.number, answer.record, wall_s))
            return
        self._events.append(
            Failed(task, place.number, answer.error, answer.exit_code, answer.broken, wall_s)
        )
        if answer.broken:
            self._end([place])
            self._launch(place)

    # ---- what goes wrong

    def _why_hanging(self, place: _Place, now: float) -> str | None:
        if place.process is None:
            return None
        limits = self.limits
        if place.state == "loading" and now - place.since > limits.loading:
            return f"it did not load in {limits.loading:g} s"
        if place.state != "working":
            return None
        if limits.item is not None and now - place.since > limits.item:
            return f"it took longer than --item-timeout {limits.item:g}"
        if now - place.moved > limits.stall:
            return f"it gave no frame for {limits.stall:g} s"
        return None

    def _describe_death(self, place: _Place) -> str:
        assert place.process is not None
        code = place.process.wait()
        doing = (
            "while it loaded" if place.task is None else f"after {counted(place.frames, 'frame')}"
        )
        if code >= 0:
            text = f"its worker ended with status {code} {doing}"
        else:
            text = f"its worker was ended by signal {-code} ({_signal_name(-code)}) {doing}"
        if code == -signal.SIGKILL:
            text += "; the system may have killed it for lack of memory"
        with suppress(OSError):
            said = (place.folder / "stderr.txt").read_text(encoding="utf-8", errors="replace")
            if words := " ".join(said.split()):
                text += f"; the last that it printed: {words[-LAST_WORDS:]}"
        return text

    def _bury(self, place: _Place, why: str) -> None:
        """Its process is dead. The item under way is told of, and another process starts."""
        task, place.task = place.task, None
        self._forget_process(place)
        if task is None:
            self._fail_load(place, why, EXIT_ENGINE)
            return
        wall_s = self.clock() - place.since
        self._events.append(Failed(task, place.number, why, EXIT_ENGINE, True, wall_s))
        self._launch(place)

    def _fail_load(self, place: _Place, why: str, exit_code: int, *, final: bool = False) -> None:
        """Tries again, but not for ever. ``final``: another process would say the same."""
        if place.state != "idle":  # an idle worker that dies is no failed load
            place.failed_loads += 1
        self._end([place])
        if final or place.failed_loads >= MOST_FAILED_LOADS:
            self._enter(place, "gone")
            self._events.append(Gone(place.number, why, exit_code))
        else:
            self._launch(place)

    def _kill(self, place: _Place) -> None:
        """Ends the process now, and whatever it has started."""
        if place.process is not None:
            _signal_group(place.process, signal.SIGKILL)
            place.process.wait()

    def _forget_process(self, place: _Place) -> None:
        process, place.process = place.process, None
        if process is None:
            return
        with suppress(KeyError, ValueError):
            assert process.stdout is not None
            self._selector.unregister(process.stdout)
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _end(self, places: Sequence[_Place]) -> None:
        """Ends processes in order, and kills those that do not."""
        running = [place.process for place in places if place.process is not None]
        for process in running:
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _signal_group(process, signal.SIGKILL)  # and what it may have started itself
            process.wait()
        for place in places:
            self._forget_process(place)

    # ---- what is known

    def states(self) -> list[WorkerState]:
        return [self._state(place) for place in self._places]

    def _state(self, place: _Place) -> WorkerState:
        report = self._report(place)
        return WorkerState(
            worker=place.number,
            state=place.state,
            item=None if place.task is None else place.task.label,
            frames=place.frames if place.task is not None else 0,
            done=place.items,
            fps=_rate(place.done_frames + place.frames * (place.task is not None), report.busy_s),
            busy_share=report.utilisation,
        )

    def reports(self) -> list[WorkerReport]:
        return [self._report(place) for place in self._places]

    def _report(self, place: _Place) -> WorkerReport:
        now = self.clock() if place.ended is None else place.ended
        here = now - place.since
        load_s = place.load_s + (here if place.state == "loading" else 0.0)
        busy_s = place.busy_s + (here if place.state == "working" else 0.0)
        return WorkerReport(
            worker=place.number,
            starts=place.starts,
            items=place.items,
            frames=place.done_frames,
            load_s=load_s,
            busy_s=busy_s,
            idle_s=max(0.0, now - place.born - load_s - busy_s),
            cores=self.cores() / max(1, len(self._places)),
        )

    def is_alive(self) -> bool:
        return any(place.state != "gone" for place in self._places)

    def cores(self) -> float:
        return float(len({core for place in self._places for core in place.cores}))

    def close(self) -> None:
        idle = [place for place in self._places if place.state == "idle"]
        for place in idle:
            self._send(place, Order(do="close"))
            with suppress(OSError, AttributeError):
                place.process.stdin.close()  # type: ignore[union-attr]
        for place in idle:
            with suppress(subprocess.TimeoutExpired, AttributeError):
                place.process.wait(GRACE_S)  # type: ignore[union-attr]
        self._end(self._places)
        for place in self._places:
            if place.state != "gone":
                self._enter(place, "gone")


def _command_line(shared: Path, cores: Sequence[int]) -> list[str]:
    """It takes its cores and asks to end with this process before it imports anything that takes a
    while: libraries start as many threads as they see cores."""
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); "
        f"hasattr(os, 'sched_setaffinity') and os.sched_setaffinity(0, {list(cores)!r}); "
        "from detector.core.run.signals import end_with_parent; "
        f"end_with_parent({os.getpid()}, {str(shared)!r}); "
        "from detector.batch.worker import main; main()"
    )
    # -P: a folder called detector in the current directory must not be taken for this package.
    return [sys.executable, "-P", "-c", code]


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """To the whole process group, which lives as long as any process of it does."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count and seconds > 0 else None
