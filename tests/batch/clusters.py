"""A fake Ray for tests of a cluster's workers: nodes with cores, and actors that answer at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from detector.batch.cluster.messages import ORIGIN, Hello, Load, News, Welcome, to_text
from detector.batch.cluster.room import Node
from detector.batch.item import Task
from detector.batch.places import open_outputs
from detector.batch.pool import Event, Failed, Finished, Gone
from detector.batch.settings import LoadedFacts
from detector.core import __version__
from detector.core.session import codec
from tests.batch.pools import FACTS, place_results


def node(name: str, cpus: float = 2, gpus: float = 0) -> Node:
    return Node(id=f"id-{name}", cpus=cpus, gpus=gpus)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)


@dataclass
class FakeActor:
    """An actor of the fake Ray. The name of an item decides how the item ends."""

    number: int
    options: dict[str, Any]
    ray: FakeRay
    node: Node | None = None
    digest: str | None = None
    task: Task | None = None
    looks: int = 0
    dead: str = ""  # why it died; "" while it lives
    is_hung: bool = False
    loads: list[Load] = field(default_factory=list)

    def __getattr__(self, method: str) -> Any:
        if method not in ("hello", "load", "work", "look", "close"):
            raise AttributeError(method)
        return SimpleCall(self, method)

    def do_hello(self, text: str) -> str:
        if self.ray.dies_in_hello:
            self.dead = self.ray.dies_in_hello
        assert self.node is not None
        hello = codec.from_json(text, Hello, ORIGIN)
        welcome = Welcome(
            version=__version__,
            host=self.node.id.removeprefix("id-"),
            node=self.node.id,
            sees=hello.token == "abc",
            gathers=True,
        )
        return to_text(self.ray.welcome(welcome))

    def do_load(self, load: Load) -> LoadedFacts:
        self.loads.append(load)
        self.ray.loads.append(load)
        if self.ray.dies_loading:
            self.dead = "it died while it loaded"
        if self.ray.refuses is not None:
            raise self.ray.refuses
        self.digest = load.digest
        return replace(self.ray.facts, config=load.config)

    def do_work(self, task: Task) -> News:
        self.task, self.looks = task, 0
        self.is_hung = "silent" in task.name
        return self.do_look()

    def do_look(self) -> News:
        if self.task is None:
            return self.news()
        task, self.looks = self.task, self.looks + 1
        if "vanish" in task.name and task.tries == 1:
            self.dead = "its node has died"
            return self.news()
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
        assert self.digest is not None
        record = place_results(task, open_outputs(self.ray.out), self.digest)
        return self.news(Finished(task, 0, record, 0.1))

    def do_close(self) -> None:
        self.ray.closed.append(self.number)

    def news(self, *events: Event) -> News:
        state = "idle" if self.task is None else "working"
        return News(state=state, frames=self.looks, starts=1, events=list(events))


@dataclass
class SimpleCall:
    actor: FakeActor
    method: str

    def remote(self, *arguments: Any) -> Answer:
        return Answer(self.actor, self.method, arguments)


@dataclass(eq=False)
class Answer:
    """The pending result of a call. Polling it computes the result if the actor has a node."""

    actor: FakeActor
    method: str
    arguments: tuple[Any, ...]
    result: Any = None
    is_ready: bool = False

    def poll(self) -> bool:
        actor = self.actor
        if not self.is_ready and not actor.dead:
            if actor.node is None or actor.is_hung:
                return False
            try:
                self.result = getattr(actor, f"do_{self.method}")(*self.arguments)
            except Exception as error:
                self.result = error
            if actor.is_hung:
                return False
        self.is_ready = True
        return True


class FakeRay:
    """Stands in for ``ray``, ``ray.remote(Worker)`` and a cluster. ``full``: no core is free."""

    def __init__(self, out: Path, clock: Clock, *nodes: Node) -> None:
        self.out, self.clock = str(out), clock
        self.found: list[Node] = list(nodes)
        self.facts: LoadedFacts = FACTS
        self.welcome: Callable[[Welcome], Welcome] = lambda welcome: welcome
        self.dies_loading = False
        self.dies_in_hello = ""  # if not empty, actors die in hello for this reason
        self.refuses: Exception | None = None
        self.actors: dict[int, FakeActor] = {}
        self.loads: list[Load] = []
        self.placed: list[dict[str, Any]] = []  # options of all actors so far
        self.closed: list[int] = []
        self.silent = 0.0
        self.full = False
        self._options: dict[str, Any] = {}

    def silent_s(self) -> float:
        return self.silent

    def options(self, **options: Any) -> FakeRay:
        self._options = options
        return self

    def remote(self) -> FakeActor:
        actor = FakeActor(len(self.placed), self._options, self)
        self.placed.append(self._options)
        self.actors[actor.number] = actor
        return actor

    def kill(self, actor: FakeActor, no_restart: bool) -> None:
        assert no_restart
        del self.actors[actor.number]

    def wait(
        self, answers: Sequence[Answer], num_returns: int, timeout: float
    ) -> tuple[list[Answer], list[Answer]]:
        assert len({id(one.actor) for one in answers}) == len(answers), "two calls of one actor"
        if timeout:
            self.clock.sleep(timeout)
        self._find_room()
        return [one for one in answers if one.poll()], []

    def get(self, answer: Answer) -> Any:
        if answer.actor.dead:
            raise RuntimeError(answer.actor.dead)
        if isinstance(answer.result, Exception):
            raise answer.result
        return answer.result

    def _find_room(self) -> None:
        for actor in self.actors.values():
            excluded = actor.options.get("label_selector", {}).get("ray.io/node-id", "")
            for one in [] if self.full else self.found:
                if actor.node is None and one.id not in excluded:
                    used = [a.options for a in self.actors.values() if a.node == one]
                    cpus = sum(options["num_cpus"] for options in [*used, actor.options])
                    gpus = sum(options["num_gpus"] for options in [*used, actor.options])
                    if cpus <= one.cpus and gpus <= one.gpus:
                        actor.node = one

    def lose(self, name: str) -> None:
        self.found = [one for one in self.found if one.id != f"id-{name}"]
        for actor in self.actors.values():
            if actor.node is not None and actor.node.id == f"id-{name}":
                actor.dead = "its node has died"
