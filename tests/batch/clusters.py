"""A cluster without Ray, for tests of its pool: nodes with cores, actors that answer at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from detector import __version__
from detector.batch.cluster.connection import ConnectionLostError
from detector.batch.cluster.messages import (
    ORIGIN,
    Begin,
    Happened,
    Hello,
    Load,
    Loaded,
    NewActor,
    News,
    Node,
    Reply,
    Turn,
    Turned,
    Welcome,
    to_text,
)
from detector.batch.item import Task
from detector.batch.places import open_outputs
from detector.batch.pool import Event, Failed, Finished, Gone
from detector.batch.settings import LoadedFacts
from detector.core.session import codec
from detector.core.session.codec import to_builtins
from tests.batch.pools import FACTS, place_results


def node(name: str, cpus: float = 2, gpus: float = 0) -> Node:
    return Node(id=f"id-{name}", host=name, cpus=cpus, gpus=gpus)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeActor:
    """``fake``: the cluster. What an item's name holds decides what becomes of it."""

    place: NewActor
    fake: FakeCluster
    node: Node | None = None
    digest: str = ""
    task: Task | None = None
    looks: int = 0
    dead: str = ""  # why
    loads: list[Load] = field(default_factory=list)

    def answer(self, method: str, text: str) -> Reply | None:
        """None while there is no answer yet."""
        number = self.place.number
        if self.dead:
            return Reply(number=number, lost=self.dead)
        if self.node is None or '"name": "silent' in text:
            return None
        said = getattr(self, method)(text)
        return (
            Reply(number=number, lost=self.dead) if self.dead else Reply(number=number, text=said)
        )

    def hello(self, text: str) -> str:
        if self.fake.dies_saying_hello:
            self.dead = self.fake.dies_saying_hello
            return ""
        assert self.node is not None
        hello = codec.from_json(text, Hello, ORIGIN)
        self.fake.hellos.append(hello)
        seen = Path(hello.place, hello.token_file)
        about = Welcome(
            version=__version__,
            host=self.node.host,
            node=self.node.id,
            sees=seen.read_text() == hello.token,
            gathers=True,
        )
        return to_text(self.fake.welcome(about))

    def load(self, text: str) -> str:
        load = codec.from_json(text, Load, ORIGIN)
        self.loads.append(load)
        self.fake.loads.append(load)
        if self.fake.dies_loading:
            self.dead = "it died while it loaded"
        facts = replace(self.fake.facts, config=load.config)
        return to_text(Loaded(facts=to_builtins(facts)))

    def begin(self, text: str) -> str:
        self.digest = codec.from_json(text, Begin, ORIGIN).digest
        return self.news()

    def work(self, text: str) -> str:
        self.task, self.looks = codec.from_json(text, Task, ORIGIN), 0
        return self.look("")

    def look(self, text: str) -> str:
        if self.task is None:
            return self.news()
        task, self.looks = self.task, self.looks + 1
        if "vanish" in task.name and task.tries == 1:
            self.dead = "its node has died"
            return ""
        if "endless" in task.name or ("slow" in task.name and self.looks < 4):
            return self.news()
        self.task = None
        if "crash" in task.name:
            return self.news(Failed(task, 0, "it crashed", 5, True, 0.1))
        if "empty" in task.name:
            return self.news(Failed(task, 0, "no frame could be read", 3, False, 0.1))
        if "gone" in task.name:
            return self.news(
                Failed(task, 0, "it crashed", 5, True, 0.1), Gone(0, "it does not load", 5)
            )
        record = place_results(task, open_outputs(self.fake.out), self.digest)
        return self.news(Finished(task, 0, record, 0.1))

    def close(self, text: str) -> str:
        self.fake.closed.append(self.place.number)
        return ""

    def news(self, *events: Event) -> str:
        happened = [Happened(kind=type(one).__name__, event=to_builtins(one)) for one in events]
        state = "idle" if self.task is None else "working"
        return to_text(News(state=state, frames=self.looks, starts=1, events=happened))


class FakeCluster:
    def __init__(self, out: Path, clock: Clock, *nodes: Node) -> None:
        self.out, self.clock, self.nodes = str(out), clock, list(nodes)
        self.facts: LoadedFacts = FACTS
        self.welcome: Callable[[Welcome], Welcome] = lambda about: about
        self.dies_loading = False
        self.dies_saying_hello = ""  # why
        self.actors: dict[int, FakeActor] = {}
        self.calls: dict[int, tuple[str, str]] = {}
        self.hellos: list[Hello] = []
        self.loads: list[Load] = []
        self.placed: list[NewActor] = []
        self.ended: list[int] = []
        self.closed: list[int] = []
        self.opened = self.left = 0
        self.silent_s = 0.0
        self.gone = False
        self.full = False  # others have what room there is

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.left += 1

    def turn(self, turn: Turn) -> Turned:
        if self.gone:
            raise ConnectionLostError("its process was killed")
        self.clock.now += max(turn.wait, 0.01)
        for number in turn.ends:
            self.ended.append(number)
            self.actors.pop(number, None)
            self.calls.pop(number, None)
        for place in turn.places:
            assert place.number not in self.actors
            self.actors[place.number] = FakeActor(place, self)
            self.placed.append(place)
        for call in turn.calls:
            assert call.number not in self.calls, "one call at a time"
            self.calls[call.number] = (call.method, call.text)
        self._find_room()
        replies = []
        for number, call in list(self.calls.items()):
            if (reply := self.actors[number].answer(*call)) is not None:
                del self.calls[number]
                replies.append(reply)
        return Turned(replies=replies, nodes=self.nodes, silent_s=self.silent_s)

    def _find_room(self) -> None:
        for actor in self.actors.values():
            for one in [] if self.full else self.nodes:
                if actor.node is None and one.id not in actor.place.avoid:
                    used = [a.place for a in self.actors.values() if a.node == one]
                    cpus = sum(place.cpus for place in used) + actor.place.cpus
                    gpus = sum(place.gpus for place in used) + actor.place.gpus
                    if cpus <= one.cpus and gpus <= one.gpus:
                        actor.node = one

    def lose(self, name: str) -> None:
        """A node dies, and all that is on it."""
        self.nodes = [one for one in self.nodes if one.host != name]
        for actor in self.actors.values():
            if actor.node is not None and actor.node.host == name:
                actor.dead = "its node has died"
