"""The pool of a cluster: how many workers there should be, what each is doing, and what becomes of
those that are lost. It knows no Ray (connection.py), only places, calls and their answers.

A place is one worker's. Its actor waits for a node with room, looks whether the node has what the
job needs, loads the model, and takes one item after the other: the next one when the record of the
last is there, since handing over takes milliseconds. A place whose actor or node is lost gets
another actor, wherever there is room. Nodes that come are used, and what no node has room for is
not asked for longer than some workers have nothing to do.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from detector import __version__
from detector.batch.cluster.connection import Cluster, ConnectionLostError
from detector.batch.cluster.messages import (
    NO_MEMORY,
    NOT_INSTALLED,
    ORIGIN,
    Begin,
    Call,
    Happened,
    Hello,
    Load,
    Loaded,
    NewActor,
    News,
    Node,
    Turn,
    Turned,
    Welcome,
    to_text,
)
from detector.batch.cluster.room import Need, need_of, room_of
from detector.batch.documents import WorkerReport, WorkerState
from detector.batch.item import Task
from detector.batch.listing import look_at
from detector.batch.local import LOADING_S, MOST_FAILED_LOADS
from detector.batch.pool import Event, Failed, Finished, Gone
from detector.batch.settings import LoadedFacts
from detector.core.errors import (
    EXIT_ENGINE,
    DetectVideoError,
    EngineError,
    OutputError,
    error_of_code,
)
from detector.core.errors.text import counted
from detector.core.run.signals import Stop, Stopped
from detector.core.session import codec
from detector.core.sources._addresses import is_address, parse_address

TICK_S = 0.2
BALANCE_S = 2.0  # between two looks at whether there should be more workers
IDLE_S = 2.0  # between two looks at a worker that has nothing to do
SILENT_S = 60.0  # for an answer that should come within a second
HEAD_S = 90.0  # for the cluster's head to answer again
WAITING_S = 60.0  # for room that others seem to have; then it is not asked for ...
AGAIN_S = 300.0  # ... for so long
NO_WORKER_S = 600.0  # without any node for any worker
CLOSING_S = 10.0
MOST_PATHS = 100  # that nodes are asked for
EVENTS: dict[str, type[Finished | Failed | Gone]] = {
    kind.__name__: kind for kind in (Finished, Failed, Gone)
}


@dataclass(slots=True)
class _Place:
    """One place in the pool, and the actor that has it now."""

    number: int
    state: str = "waiting"  # for a node; "loading", "idle", "working", "gone"
    since: float = 0.0
    doing: str = ""  # the call that is under way
    called: float = 0.0
    welcome: Welcome | None = None
    facts: LoadedFacts | None = None
    begun: bool = False
    task: Task | None = None
    given: bool = False  # the task is on its way
    taken: float = 0.0  # when it was handed over
    frames: int = 0  # of the item under way
    failed_loads: int = 0
    apart: bool = False  # given up for its node's sake: another place may do better
    # Over all its actors:
    items: int = 0
    done_frames: int = 0
    starts: int = 0
    processes: int = 0  # that this actor took
    spent: dict[str, float] = field(default_factory=dict)  # state -> seconds

    def stands(self) -> bool:
        return self.state != "gone"

    def where(self) -> str:
        return "a node" if self.welcome is None else f"node {self.welcome.host}"


@dataclass(slots=True)
class ClusterPool:
    """``place``: of the outputs, which all nodes see. ``token_name``: of a hidden file there, which
    shows that they do. ``workers``: None is as many as there is room for. ``stop``: ends the wait
    for a first worker."""

    cluster: Cluster
    place: str
    token_name: str = ".detect-video-cluster"
    workers: int | None = None
    item_timeout: float | None = None
    gathers: bool = False
    stop: Stop = field(default_factory=Stop)
    clock: Callable[[], float] = time.monotonic
    need: Need = field(default_factory=Need)
    _places: list[_Place] = field(default_factory=list)
    _nodes: list[Node] = field(default_factory=list)
    _avoid: set[str] = field(default_factory=set)  # nodes
    _orders: list[NewActor] = field(default_factory=list)  # of the next turn, as are these:
    _calls: list[Call] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _events: list[Event] = field(default_factory=list)
    _hello: str = ""
    _token: Path | None = None
    _load: Load | None = None
    _begin: Begin | None = None  # once the settings are known
    _most: int = 1  # workers that there is work for, as far as it is known
    _added: int = 0  # places, ever
    _began: float | None = None  # when the first worker had its node
    _balanced: float = float("-inf")
    _without: float = 0.0  # since when there is no worker on any node
    _sated: float = float("-inf")  # until then no more is asked for
    _room: int = 0
    _lost: bool = False  # the connection

    # ---- starting

    def load_first(
        self, config: dict[str, dict[str, Any]], pictures: Sequence[str], *, resolves: bool
    ) -> LoadedFacts:
        self.cluster.open()
        try:
            self._nodes = self._turn(0.0).nodes
        except ConnectionLostError as error:
            raise EngineError(str(error)) from error
        self.need = need_of(config, self._nodes, self.workers)
        self._hello = to_text(self._make_hello(config, pictures))
        self._load = Load(
            config=config,
            place=self.place,
            pictures=list(pictures),
            resolves=resolves,
            gathers=self.gathers,
            cores=self.need.cpus,
            node_cpus=0.0,
            item_timeout=self.item_timeout,
        )
        self._without = self.clock()
        first = self._add_place()
        while first.facts is None:
            if self.stop.is_set():
                assert self.stop.exit_code is not None
                raise Stopped(self.stop.exit_code)
            self._look(TICK_S)
            if not first.stands():
                gone = next(event for event in self._events if isinstance(event, Gone))
                self._events.clear()
                raise error_of_code(gone.exit_code)(gone.error)
        return first.facts

    def _make_hello(self, config: dict[str, dict[str, Any]], pictures: Sequence[str]) -> Hello:
        """What this machine sees every node should see: sources, and the model's files."""
        values = [value for group in config.values() for value in group.values()]
        named = [value for value in values if isinstance(value, str) and os.path.isabs(value)]
        paths = [path for path in [*pictures, *named] if os.path.exists(path)][:MOST_PATHS]
        addresses = list(
            {parse_address(one)[:2]: one for one in pictures if is_address(one)}.values()
        )
        if is_address(self.place):
            return Hello(place=self.place, paths=paths, addresses=addresses)
        self._token = Path(self.place, self.token_name)
        token = secrets.token_hex(16)
        try:
            self._token.write_text(token, encoding="ascii")
        except OSError as error:
            raise OutputError(f"{self._token}: cannot be written: {error.strerror}") from error
        return Hello(
            place=self.place,
            token_file=self._token.name,
            token=token,
            paths=paths,
            addresses=addresses,
        )

    def start(self, config: dict[str, dict[str, Any]], digest: str, most: int) -> None:
        assert self._load is not None
        self._begin = Begin(config=config, digest=digest)
        self._load = replace(self._load, config=config, pictures=[], resolves=False)
        self._most = most
        (first,) = [place for place in self._places if place.stands()]
        need = need_of(config, self._nodes, self.workers)
        if need != self.need:  # there is no GPU in what was asked for with auto
            self.need = need
            self._load = replace(self._load, cores=need.cpus)
            self._restart(first)
        self._balance(self.clock())

    def _add_place(self) -> _Place:
        place = _Place(self._added, since=self.clock())
        self._added += 1
        self._places.append(place)
        self._order(place)
        return place

    def _order(self, place: _Place) -> None:
        self._orders.append(
            NewActor(
                number=place.number,
                cpus=self.need.cpus,
                gpus=self.need.gpus,
                avoid=sorted(self._avoid),
            )
        )
        self._call(place, "hello", self._hello)

    def _call(self, place: _Place, method: str, text: str = "") -> None:
        place.doing, place.called = method, self.clock()
        self._calls.append(Call(number=place.number, method=method, text=text))

    def _enter(self, place: _Place, state: str) -> None:
        """Books the seconds of the state that ends."""
        now = self.clock()
        place.spent[place.state] = place.spent.get(place.state, 0.0) + now - place.since
        place.state, place.since = state, now

    # ---- work

    def has_room(self) -> bool:
        return any(_is_free(place) for place in self._places)

    def submit(self, task: Task) -> None:
        place = next(place for place in self._places if _is_free(place))
        place.task, place.given, place.frames = task, False, 0
        self._enter(place, "working")
        place.taken = place.since

    def wait(self, seconds: float) -> list[Event]:
        end, had_room = self.clock() + seconds, self.has_room()
        while not self._events and (had_room or not self.has_room()):
            left = end - self.clock()
            if left <= 0 or self._lost:
                break
            self._look(min(left, TICK_S))
        events, self._events = self._events, []
        return events

    def _look(self, seconds: float) -> None:
        """Asks what is to be asked, and takes the answers that come within so many seconds."""
        if self._lost:
            return
        now = self.clock()
        for place in self._places:
            if place.stands() and not place.doing:
                self._ask(place, now)
        try:
            turned = self._turn(seconds)
        except ConnectionLostError as error:
            self._collapse(f"the connection to Ray is lost: {error}")
            return
        self._nodes = turned.nodes
        by_number = {place.number: place for place in self._places}
        for reply in turned.replies:
            place = by_number[reply.number]
            doing, place.doing = place.doing, ""
            if reply.lost:
                self._lose(place, f"its worker on {place.where()} was lost: {reply.lost}")
            elif place.stands():
                self._hear(place, doing, reply.text)
        if turned.silent_s > HEAD_S:
            silent = f"{turned.silent_s:.0f} s"
            self._collapse(f"the head of the Ray cluster has not answered for {silent}")
            return
        now = self.clock()
        for place in self._places:
            if (limit := _limit(place)) is not None and now - place.called > limit:
                self._lose(place, f"its worker on {place.where()} did not answer for {limit:g} s")
        if now - self._balanced >= BALANCE_S:
            self._balance(now)

    def _turn(self, seconds: float) -> Turned:
        turn = Turn(wait=max(0.0, seconds), ends=self._ends, places=self._orders, calls=self._calls)
        self._ends, self._orders, self._calls = [], [], []
        return self.cluster.turn(turn)

    def _ask(self, place: _Place, now: float) -> None:
        """The next call, where one is due."""
        if place.facts is None:
            if place.welcome is not None and self._load is not None:
                self._call(place, "load", to_text(self._load_on(place.welcome)))
        elif not place.begun:
            if self._begin is not None:
                self._call(place, "begin", to_text(self._begin))
        elif place.task is not None and not place.given:
            place.given = True
            self._call(place, "work", to_text(place.task))
        elif place.state != "idle" or now - place.called >= IDLE_S:
            self._call(place, "look")

    def _load_on(self, welcome: Welcome) -> Load:
        assert self._load is not None
        cpus = next((node.cpus for node in self._nodes if node.id == welcome.node), 0.0)
        return replace(self._load, node_cpus=cpus)

    # ---- what actors say

    def _hear(self, place: _Place, doing: str, text: str) -> None:
        if doing == "hello":
            self._meet(place, codec.from_json(text, Welcome, ORIGIN))
        elif doing == "load":
            loaded = codec.from_json(text, Loaded, ORIGIN)
            if loaded.facts is None:
                self._give_up(place, loaded.error, loaded.exit_code)
            else:
                place.facts = codec.from_builtins(loaded.facts, LoadedFacts, ORIGIN)
        else:
            place.begun = True
            self._take_news(place, codec.from_json(text, News, ORIGIN))

    def _meet(self, place: _Place, welcome: Welcome) -> None:
        """The actor has a node. Refuses nodes on which items would fail, or come out otherwise."""
        place.welcome = welcome
        self._began = self.clock() if self._began is None else self._began
        self._enter(place, "loading")
        host = welcome.host
        error: type[DetectVideoError] = EngineError
        unseen = [path for path in welcome.unseen if os.path.exists(path)]
        if welcome.version != __version__:
            why = f"has detect-video {welcome.version}, and the job {__version__}: install that"
        elif not welcome.sees:
            error, why = OutputError, f"does not see {self.place}: put -o where all nodes can write"
        elif unseen:
            why = f"does not see {unseen[0]}: sources and models need one path on all nodes"
        elif barred := [one for one in welcome.barred if one == self.place or _is_open(one)]:
            error = OutputError if barred[0] == self.place else EngineError
            why = f"is of no use: {welcome.barred[barred[0]]}, in the environment of that node"
        elif self.gathers and not welcome.gathers:
            why = "has no pyarrow, as this machine has: pip install 'detect-video[batch]' there"
        else:
            return
        self._avoid.add(welcome.node)
        place.apart = True
        self._give_up(place, f"node {host} {why}", error.exit_code)

    def _take_news(self, place: _Place, news: News) -> None:
        place.starts += max(0, news.starts - place.processes)
        place.processes = news.starts
        place.frames = news.frames
        for happened in news.events:
            self._take_event(place, happened)
        if not place.stands():
            return
        # An item that was handed over makes a worker busy, also while its process starts anew.
        state = "working" if place.task is not None else news.state
        if state != place.state:
            self._enter(place, state)
        if state == "idle":
            place.failed_loads = 0

    def _take_event(self, place: _Place, happened: Happened) -> None:
        event = codec.from_builtins(happened.event, EVENTS[happened.kind], ORIGIN)
        if isinstance(event, Gone):
            self._give_up(place, f"{event.error} (on {place.where()})", event.exit_code)
            return
        task, place.task = place.task, None
        if task is None:
            return
        wall_s = self.clock() - place.taken
        if isinstance(event, Finished):
            place.items += 1
            place.done_frames += event.record.frames
        self._events.append(replace(event, task=task, worker=place.number, wall_s=wall_s))

    # ---- what goes wrong

    def _lose(self, place: _Place, why: str) -> None:
        """The actor is gone, or as good as gone. The item under way is told of, and another actor
        takes the place."""
        if not place.stands():
            return
        # One that waits for a node may lose it, over and over. Short memory is for all of them.
        loads = place.state == "loading" or NO_MEMORY in why
        if not self._drop_task(place, why) and loads:
            place.failed_loads += 1
        if place.failed_loads >= MOST_FAILED_LOADS or NOT_INSTALLED in why:
            self._give_up(place, why, EXIT_ENGINE)
        else:
            self._restart(place)

    def _drop_task(self, place: _Place, why: str) -> bool:
        task, place.task = place.task, None
        if task is None:
            return False
        wall_s = self.clock() - place.taken
        self._events.append(Failed(task, place.number, why, EXIT_ENGINE, True, wall_s))
        return True

    def _restart(self, place: _Place) -> None:
        """Another actor, which may have to wait for a node."""
        self._end_actor(place)
        self._enter(place, "waiting")
        self._order(place)

    def _end_actor(self, place: _Place) -> None:
        """Before the next one has the number: ends come first in a turn."""
        self._calls = [call for call in self._calls if call.number != place.number]
        self._orders = [order for order in self._orders if order.number != place.number]
        self._ends.append(place.number)
        place.doing, place.welcome, place.facts, place.begun = "", None, None, False
        place.processes = 0

    def _give_up(self, place: _Place, why: str, exit_code: int) -> None:
        self._drop_task(place, why)
        self._end_actor(place)
        self._enter(place, "gone")
        self._events.append(Gone(place.number, why, exit_code))

    def _collapse(self, why: str) -> None:
        """No cluster is left: what is under way is lost, and the job ends."""
        self._lost = True
        standing = [place for place in self._places if place.stands()]
        for place in standing:
            self._drop_task(place, why)
            self._enter(place, "gone")
        number = standing[0].number if standing else 0
        self._events.append(Gone(number, f"{why}; --resume goes on", EXIT_ENGINE))

    # ---- how many there should be

    def _balance(self, now: float) -> None:
        """Asks for more workers where there is room for them, and takes back what is asked for in
        vain. Workers that have a node are never sent away."""
        self._balanced = now
        standing = [place for place in self._places if place.stands()]
        waiting = [place for place in standing if place.state == "waiting"]
        placed = len(standing) - len(waiting)
        if placed:
            self._without = now
        elif now - self._without > NO_WORKER_S:
            self._collapse(
                f"no node gave a worker {_words(self.need)} for {NO_WORKER_S:.0f} s "
                f"({len(self._nodes)} nodes)"
            )
            return
        if self._begin is None:
            return
        surplus = len(standing) - self._wanted(now, len(standing))
        idle = any(p.state == "idle" and now - p.since > IDLE_S for p in standing)
        if idle:  # there is nothing left to hand out
            surplus = len(waiting)
        elif placed and self.workers is None and _waits_long(waiting, now):
            surplus, self._sated = len(waiting), now + AGAIN_S
        for place in waiting[::-1][: max(0, surplus)]:
            self._withdraw(place)
        if not idle:
            for _ in range(-surplus):
                self._add_place()

    def _wanted(self, now: float, standing: int) -> int:
        """With a number of workers that is asked for until there are so many: an autoscaling
        cluster brings nodes for them. Without, as many as the nodes that are there can hold. One
        at least, unless all were given up: it waits for a node that comes."""
        room = room_of(self.need, self._nodes, self._avoid)
        if room != self._room:  # a node has come, or is gone
            self._room, self._sated = room, float("-inf")
        failed = sum(not place.stands() and not place.apart for place in self._places)
        wanted = self.workers if self.workers is not None else max(1, room)
        wanted = min(wanted - failed, max(1, self._most))
        if now < self._sated:
            wanted = min(wanted, standing)
        return max(min(1, standing), wanted)

    def _withdraw(self, place: _Place) -> None:
        self._end_actor(place)
        self._enter(place, "gone")
        place.apart = True
        if not place.starts:
            self._places.remove(place)

    # ---- what is known

    def states(self) -> list[WorkerState]:
        return [self._state(place) for place in self._places]

    def _state(self, place: _Place) -> WorkerState:
        report = self._report(place)
        frames = place.frames if place.task is not None else 0
        all_frames = place.done_frames + frames
        return WorkerState(
            worker=place.number,
            state=place.state,
            item=None if place.task is None else place.task.label,
            frames=frames,
            done=place.items,
            fps=all_frames / report.busy_s if all_frames and report.busy_s > 0 else None,
            busy_share=report.utilisation,
        )

    def reports(self) -> list[WorkerReport]:
        """Of the places that ever had a node."""
        return [self._report(place) for place in self._places if place.starts or place.welcome]

    def _report(self, place: _Place) -> WorkerReport:
        return WorkerReport(
            worker=place.number,
            starts=place.starts,
            items=place.items,
            frames=place.done_frames,
            load_s=self._spent(place, "loading"),
            busy_s=self._spent(place, "working"),
            idle_s=self._spent(place, "idle"),
            cores=float(self.need.cpus),
        )

    def _spent(self, place: _Place, state: str) -> float:
        here = self.clock() - place.since if place.state == state else 0.0
        return place.spent.get(state, 0.0) + here

    def is_alive(self) -> bool:
        return not self._lost and any(place.stands() for place in self._places)

    def cores(self) -> float:
        """On the average since the first worker had its node: workers come and go."""
        passed = 0.0 if self._began is None else self.clock() - self._began
        if passed < BALANCE_S:
            return float(self.need.cpus * sum(p.welcome is not None for p in self._places))
        held = sum(
            self._spent(place, state)
            for place in self._places
            for state in ("loading", "working", "idle")
        )
        return self.need.cpus * held / passed

    # ---- the end

    def close(self) -> None:
        if not self._lost:
            self._close_workers()
        self._lost = True
        self.cluster.close()
        for place in self._places:
            if place.stands():
                self._enter(place, "gone")
        if self._token is not None:
            with suppress(OSError):
                self._token.unlink(missing_ok=True)

    def _close_workers(self) -> None:
        """Those that have a process end it themselves, so that nothing of an item under way stays.
        One that loads has written nothing, and ends with its actor."""
        closing = set()
        for place in self._places:
            if place.stands() and place.facts is not None:
                self._call(place, "close")
                closing.add(place.number)
        end = time.monotonic() + CLOSING_S
        with suppress(ConnectionLostError):
            while closing and time.monotonic() < end:
                for reply in self._turn(TICK_S).replies:
                    if not reply.text or reply.lost:  # news of an earlier call have text
                        closing.discard(reply.number)
            self._ends = [place.number for place in self._places if place.stands()]
            if self._ends:
                self._turn(0.0)


def _is_free(place: _Place) -> bool:
    return place.state == "idle" and not place.doing


def _is_open(address: str) -> bool:
    """To this machine. What is gone everywhere is no node's fault."""
    try:
        look_at(address)
    except DetectVideoError:
        return False
    return True


def _waits_long(waiting: Sequence[_Place], now: float) -> bool:
    return bool(waiting) and now - min(place.since for place in waiting) > WAITING_S


def _limit(place: _Place) -> float | None:
    """Seconds for the answer to the call that is under way."""
    if not place.stands() or place.doing in ("", "hello"):  # it may wait for a node
        return None
    return LOADING_S + SILENT_S if place.doing == "load" else SILENT_S


def _words(need: Need) -> str:
    return counted(need.cpus, "core") + (f" and {need.gpus} GPU" if need.gpus else "")
