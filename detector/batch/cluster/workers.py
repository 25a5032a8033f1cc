"""The workers of a job on a cluster: their number, their calls, and the replacement of lost ones.

Ray places an actor on a node with room, or lets it wait. Ray runs the actor's calls and reports
which were lost and why. Ray's own restarts and retries are off, for two reasons. First,
with ``max_restarts`` above 0, Ray 2.60 reports a lost call only as "the actor was restarted", not
with the cause, such as low memory (``scripts/cluster_check memory`` shows this). Second, the job
itself counts the tries of a lost item, puts it last in the queue, and checks for existing results.
We replace a lost actor by a new one. Each actor has one call at a time, so it never has two items.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from detector.batch.cluster.messages import ORIGIN, Load, News, Open, Turn, Turned, Welcome, to_text
from detector.batch.cluster.room import Need, Node, need_of, room_of
from detector.batch.item import Task
from detector.batch.listing import look_at
from detector.batch.local import LOADING_S
from detector.batch.pool import MOST_FAILED_LOADS, Failed, Finished, Gone, Place, Places
from detector.core import __version__
from detector.core.errors import EXIT_ENGINE, DetectVideoError, EngineError, OutputError
from detector.core.errors.text import counted
from detector.core.session import codec

BALANCE_S = 2.0  # time between adjustments of the number of workers
IDLE_S = 2.0  # interval of calls to an idle worker
SILENT_S = 60.0  # time limit of a call that should return within a second
HEAD_S = 90.0  # time limit for the cluster's head to answer
WAITING_S = 60.0  # if no node has had room for this long, waiting actors are withdrawn ...
AGAIN_S = 300.0  # ... and new ones are requested only after this time
NO_WORKER_S = 600.0  # the job ends after this time without any worker on a node
MEMORY_S = 5.0  # pause after Ray killed a worker for its memory, which may be freed with a delay
CLOSING_S = 10.0
LIMITS = {"load": LOADING_S + SILENT_S, "work": SILENT_S, "look": SILENT_S}

NO_MEMORY = "Ray killed it because its node ran low on memory"
NOT_INSTALLED = "detect-video is not installed on the node, or is too old"
NOT_THERE = "No module named 'detector"
RAN_LOW = "running low on memory"
USED = re.compile(r"[\d.]+ ?\w?B used / [\d.]+ ?\w?B limit")
LONGEST = 400  # characters of Ray's text that a message quotes


class Nodes(Protocol):
    found: Sequence[Node]

    def silent_s(self) -> float: ...


@dataclass(slots=True, kw_only=True)
class _Place(Place):
    actor: Any = None
    due: float = 0.0  # earliest time for a new actor, in seconds
    doing: str = ""  # the actor's method that is being called
    answer: Any = None  # Ray's reference to that call's result
    called: float = 0.0
    welcome: Welcome | None = None
    load: Load | None = None  # the last order sent
    given: bool = False  # whether the task was sent
    processes: int = 0  # number of processes started by this actor
    apart: bool = False  # withdrawn, or on an unusable node; does not count as failed

    def is_free(self) -> bool:
        return self.state == "idle" and not self.doing

    def where(self) -> str:
        return "a node" if self.welcome is None else f"node {self.welcome.host}"


@dataclass(slots=True)
class Workers(Places[_Place]):
    """A job's actors. ``actor``: ``ray.remote(Worker)``. ``wanted``: the job's request."""

    ray: Any
    actor: Any
    nodes: Nodes
    wanted: Open
    sleep: Callable[[float], None] = time.sleep
    need: Need = field(init=False)
    _load: Load = field(init=False)
    _avoid: set[str] = field(default_factory=set)  # ids of nodes that were given up
    _most: int = 1  # how many workers can have a task
    _added: int = 0  # number of places so far, including removed ones
    _began: float | None = None  # when the first worker got a node
    _balanced: float = float("-inf")
    _without: float = 0.0  # the last time when a worker had a node
    _sated: float = float("-inf")  # no more workers are requested before this time
    _room: int = 0

    def __post_init__(self) -> None:
        """Add a first place, whose worker resolves ``auto``."""
        self._load = self.wanted.load
        self.need = need_of(self._load.config, self.nodes.found, self.wanted.workers)
        self._without = self.clock()
        self._add_place()

    def turn(self, turn: Turn) -> Turned:
        if turn.closes:
            self.close()
        if turn.start is not None:
            self._start(*turn.start)
        for task in turn.tasks:
            self.submit(task)
        return Turned(
            events=self.wait(turn.wait),
            states=self.states(),
            reports=self.reports(),
            facts=next((place.facts for place in self._places if place.facts is not None), None),
            room=sum(place.is_free() for place in self._places),
            alive=self.is_alive(),
            cores=self.cores(),
        )

    def _start(self, config: dict[str, dict[str, Any]], digest: str, most: int) -> None:
        self._most = most
        self._load = replace(self._load, config=config, digest=digest, pictures=[], resolves=False)
        need = need_of(config, self.nodes.found, self.wanted.workers)
        if need != self.need:  # ``auto`` was resolved to another device
            self.need = need
            for place in self._standing():
                self._restart(place)
        self._balance(self.clock())

    def _standing(self) -> list[_Place]:
        return [place for place in self._places if place.is_open()]

    def _add_place(self) -> None:
        place = _Place(number=self._added, since=self.clock())
        self._added += 1
        self._places.append(place)

    def _new_actor(self, place: _Place) -> None:
        options: dict[str, Any] = {
            "num_cpus": self.need.cpus,
            "num_gpus": self.need.gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if self._avoid:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(self._avoid))})"}
        place.actor = self.actor.options(**options).remote()
        self._call(place, "hello", to_text(self.wanted.hello))

    def _call(self, place: _Place, method: str, *given: Any) -> None:
        place.doing, place.called = method, self.clock()
        place.answer = getattr(place.actor, method).remote(*given)

    def _hand(self, place: _Place, task: Task) -> None:
        place.given = False  # the next ``_look`` sends it

    def _look(self, seconds: float) -> None:
        now = self.clock()
        for place in self._standing():
            if place.actor is None and now >= place.due:
                self._new_actor(place)
            elif not place.doing and place.actor is not None:
                self._ask(place, now)
        for place in self._answered(seconds):
            self._hear(place)
        if self.nodes.silent_s() > HEAD_S:
            silent = f"{self.nodes.silent_s():.0f} s"
            self._collapse(f"the head of the Ray cluster has not responded for {silent}")
            return
        now = self.clock()
        for place in self._standing():
            limit = LIMITS.get(place.doing)  # none for "hello", which may wait for a node
            if limit is not None and now - place.called > limit:
                self._lose(place, f"the worker on {place.where()} did not respond for {limit:g} s")
        if now - self._balanced >= BALANCE_S:
            self._balance(now)

    def _ask(self, place: _Place, now: float) -> None:
        if place.load is not self._load:
            assert place.welcome is not None
            place.load, id = self._load, place.welcome.node
            cpus = next((node.cpus for node in self.nodes.found if node.id == id), 0.0)
            self._call(place, "load", replace(self._load, cores=self.need.cpus, node_cpus=cpus))
        elif self._load.digest is None:
            return  # the settings are not resolved yet
        elif place.task is not None and not place.given:
            place.given = True
            self._call(place, "work", place.task)
        elif place.state != "idle" or now - place.called >= IDLE_S:
            self._call(place, "look")

    def _answered(self, seconds: float) -> Iterator[_Place]:
        awaited = {place.answer: place for place in self._places if place.doing}
        if not awaited:
            self.sleep(seconds)
            return
        ready, _ = self.ray.wait(list(awaited), num_returns=1, timeout=seconds)
        if ready:  # other answers may be ready, too
            ready, _ = self.ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
        yield from (awaited[answer] for answer in ready)

    def _hear(self, place: _Place) -> None:
        doing, place.doing = place.doing, ""
        try:
            result = self.ray.get(place.answer)
        except DetectVideoError as error:
            cause = getattr(error, "cause", error)  # the text of Ray's own error has a traceback
            self._give_up(place, str(cause), error.exit_code)
        except Exception as error:
            self._lose(place, f"the worker on {place.where()} was lost: {describe(error)}")
        else:
            if doing == "hello":
                self._meet(place, codec.from_json(result, Welcome, ORIGIN))
            elif doing == "load":
                place.facts = result
            else:
                self._take_news(place, result)

    def _meet(self, place: _Place, welcome: Welcome) -> None:
        """Record the node. Give it up if items would fail or get other results there."""
        place.welcome, now = welcome, self.clock()
        self._began = now if self._began is None else self._began
        place.enter("loading", now)
        error: type[DetectVideoError] = EngineError
        out = self.wanted.hello.place
        unseen = [path for path in welcome.unseen if os.path.exists(path)]
        if welcome.version != __version__:
            why = f"has detect-video {welcome.version}, but the job needs {__version__}"
        elif not welcome.sees:
            error = OutputError
            why = f"cannot see {out}: give -o a folder that all nodes can write to"
        elif unseen:
            why = f"cannot see {unseen[0]}: sources and models need the same path on all nodes"
        elif barred := [
            one for one in welcome.barred if one == self.wanted.hello.place or _is_open(one)
        ]:
            error = OutputError if barred[0] == out else EngineError
            why = f"cannot be used: in its environment, {welcome.barred[barred[0]]}"
        elif self._load.gathers and not welcome.gathers:
            why = "lacks pyarrow, unlike this machine; run there: pip install 'detect-video[batch]'"
        else:
            return
        self._avoid.add(welcome.node)
        place.apart = True
        self._give_up(place, f"node {welcome.host} {why}", error.exit_code)

    def _take_news(self, place: _Place, news: News) -> None:
        place.starts += max(0, news.starts - place.processes)
        place.processes = news.starts
        place.frames = news.frames
        for event in news.events:
            if isinstance(event, Finished):
                self._finish_task(place, event.record)
            elif isinstance(event, Failed):
                self._fail_task(place, event.error, event.exit_code, lost=event.lost)
            else:
                self._give_up(place, f"{event.error} (on {place.where()})", event.exit_code)
                return
        # A worker with an item is busy, also while its process restarts.
        state = "working" if place.task is not None else news.state
        if state != place.state:
            place.enter(state, self.clock())
        if state == "idle":
            place.failed_loads = 0

    def _lose(self, place: _Place, why: str) -> None:
        """An actor is gone or silent: report its item as failed, and start another actor."""
        # The loss counts as a failed load if the actor was loading, or ran out of memory. It does
        # not count if the actor still waited for a node.
        loads = place.state == "loading" or NO_MEMORY in why
        if not self._fail_task(place, why) and loads:
            place.failed_loads += 1
        if place.failed_loads >= MOST_FAILED_LOADS or NOT_INSTALLED in why:
            self._give_up(place, why, EXIT_ENGINE)
        else:
            self._restart(place, MEMORY_S if NO_MEMORY in why else 0.0)

    def _restart(self, place: _Place, pause_s: float = 0.0) -> None:
        self._end_actor(place)
        place.enter("waiting", self.clock())
        place.due = place.since + pause_s

    def _end_actor(self, place: _Place) -> None:
        with suppress(Exception):
            self.ray.kill(place.actor, no_restart=True)
        place.actor = place.answer = place.welcome = place.facts = place.load = None
        place.doing, place.processes = "", 0

    def _give_up(self, place: _Place, why: str, exit_code: int) -> None:
        self._fail_task(place, why)
        self._end_actor(place)
        self._abandon(place, why, exit_code)

    def _collapse(self, why: str) -> None:
        for place in self._standing():
            self._fail_task(place, why)
            place.enter("gone", self.clock())
        self._events.append(Gone(0, f"{why}; continue with --resume", EXIT_ENGINE))

    def _balance(self, now: float) -> None:
        """Request more workers, or withdraw some of those that still wait for a node."""
        self._balanced = now
        standing = self._standing()
        waiting = [place for place in standing if place.state == "waiting"]
        placed = len(standing) - len(waiting)
        if placed:
            self._without = now
        elif now - self._without > NO_WORKER_S:
            self._collapse(
                f"for {NO_WORKER_S:.0f} s, no node had room for a worker of {_words(self.need)} "
                f"(nodes: {len(self.nodes.found)})"
            )
            return
        if self._load.digest is None:
            return
        surplus = len(standing) - self._wanted(now, len(standing))
        idle = any(p.state == "idle" and now - p.since > IDLE_S for p in standing)
        first = min((place.since for place in waiting), default=now)
        if idle:  # a worker has waited for an item, so the queue is empty
            surplus = len(waiting)
        elif placed and self.wanted.workers is None and now - first > WAITING_S:
            surplus, self._sated = len(waiting), now + AGAIN_S
        for place in waiting[::-1][: max(0, surplus)]:
            self._withdraw(place)
        if not idle:
            for _ in range(-surplus):
                self._add_place()

    def _wanted(self, now: float, standing: int) -> int:
        """Return the number of workers to have. With --workers N it is N, even if fewer fit now: a
        cluster may add nodes. Otherwise it is as many as fit on the nodes, but at least one.
        Workers that could not load are not replaced."""
        room = room_of(self.need, self.nodes.found, self._avoid)
        if room != self._room:  # the number of nodes has changed
            self._room, self._sated = room, float("-inf")
        failed = sum(not place.is_open() and not place.apart for place in self._places)
        wanted = self.wanted.workers or max(1, room)
        wanted = min(wanted - failed, max(1, self._most))
        if now < self._sated:
            wanted = min(wanted, standing)
        return max(min(1, standing), wanted)

    def _withdraw(self, place: _Place) -> None:
        self._end_actor(place)
        place.enter("gone", self.clock())
        place.apart = True
        if not place.starts:
            self._places.remove(place)

    def _cores_each(self) -> float:
        return float(self.need.cpus)

    def cores(self) -> float:
        """Return the mean number of cores that workers have held since the first got a node."""
        now = self.clock()
        passed = 0.0 if self._began is None else now - self._began
        if passed < BALANCE_S:
            return float(self.need.cpus * sum(p.welcome is not None for p in self._places))
        states = ("loading", "working", "idle")
        held = sum(place.seconds(state, now) for place in self._places for state in states)
        return self.need.cpus * held / passed

    def close(self) -> None:
        """Stop all actors. Each ends its process and removes unfinished work."""
        closing = [place for place in self._standing() if place.facts is not None]
        for place in closing:
            with suppress(Exception):
                place.answer, place.doing = place.actor.close.remote(), "close"
        with suppress(Exception):
            answers = [place.answer for place in closing]
            self.ray.wait(answers, num_returns=len(answers), timeout=CLOSING_S)
        for place in self._standing():
            self._end_actor(place)
            place.enter("gone", self.clock())


def describe(error: Exception) -> str:
    text = str(error)
    if NOT_THERE in text:
        return NOT_INSTALLED
    if RAN_LOW in text:
        used = USED.search(text)
        return (
            f"{NO_MEMORY}{f' ({used[0]})' if used else ''}; use fewer --workers, or nodes with "
            "more memory (Ray kills tasks above RAY_memory_usage_threshold)"
        )
    cause = getattr(error, "cause", None)  # the error that was raised in an actor
    if isinstance(cause, Exception):
        text = f"{type(cause).__name__}: {cause}"
    words = " ".join(text.split()) or type(error).__name__
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} ..."


def _is_open(address: str) -> bool:
    """Return whether this machine can open the address. If not, the node is not at fault."""
    try:
        look_at(address)
    except DetectVideoError:
        return False
    return True


def _words(need: Need) -> str:
    return counted(need.cpus, "core") + (f" and {need.gpus} GPU" if need.gpus else "")
