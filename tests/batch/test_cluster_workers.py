"""The workers of a cluster, without Ray: on nodes that come and go, hang, or are unfit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from detector.batch.cluster.messages import Hello, Load, Open, Turn
from detector.batch.cluster.workers import NO_MEMORY, NOT_INSTALLED, Workers, describe
from detector.batch.item import Task
from detector.batch.listing import version_of
from detector.batch.pool import Failed, Finished, Gone
from detector.batch.settings import digest_of
from detector.core.errors import ModelError
from tests.batch.clusters import Clock, FakeRay, node
from tests.batch.pools import FACTS
from tests.batch.storage import fake_store


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out/files").mkdir(parents=True)
    return tmp_path / "out"


class Made:
    def __init__(self, out: Path, *nodes, most=9, config=FACTS.config, workers=None, **options):
        self.clock = Clock()
        self.ray = FakeRay(out, self.clock, *nodes)
        self.out, self.most = out, most
        hello = Hello(place=str(out), token_file="token", token="abc")
        load = Load(
            config=config,
            place=str(out),
            pictures=[],
            resolves=True,
            gathers=False,
            item_timeout=None,
        )
        self.open = Open(
            address=None,
            cores=2,
            folder="",
            workers=workers,
            hello=replace(hello, **options.pop("hello", {})),
            load=replace(load, **options),
        )
        self.facts = None
        self._happened: list = []

    def load(self) -> Made:
        self.pool = Workers(
            self.ray, self.ray, self.ray, self.open, sleep=self.clock.sleep, clock=self.clock
        )
        while self.facts is None and not self._happened:
            turned = self.pool.turn(Turn(wait=0.5))
            self.facts, self._happened = turned.facts, turned.events
        return self

    def begin(self) -> Made:
        if self.facts is None:
            self.load()
        assert self.facts is not None
        self.pool.turn(Turn(wait=0, start=(self.facts.config, digest_of(self.facts), self.most)))
        return self

    def hand(self, name: str, tries: int = 1) -> Task:
        path = self.out / name
        path.write_bytes(b"x")
        self.until(self.pool.has_room)
        task = Task(name=name, path=str(path), version=version_of(path.stat()), tries=tries)
        self.pool.submit(task)
        return task

    def until(self, holds) -> None:
        for _ in range(20_000):
            if holds():
                return
            self._happened += self.pool.wait(0.5)
        raise AssertionError("it did not come about")

    def next(self, count: int = 1) -> list:
        self.until(lambda: len(self._happened) >= count)
        events, self._happened = self._happened[:count], self._happened[count:]
        return events

    def placed(self) -> list[str]:
        return sorted(one.state for one in self.pool.states() if one.state != "waiting")


def test_it_takes_what_there_is_room_for(out):
    made = Made(out, node("a", 5), node("b", 1), node("c", 2)).begin()
    made.until(lambda: made.placed() == ["idle"] * 3)
    assert {options["num_cpus"] for options in made.ray.placed} == {2}
    assert all(one["max_restarts"] == one["max_task_retries"] == 0 for one in made.ray.placed)
    assert made.pool.cores() == pytest.approx(6, rel=0.5)
    assert made.ray.loads[0].resolves
    assert not any(load.resolves for load in made.ray.loads[1:])
    assert {load.node_cpus for load in made.ray.loads} == {5.0, 2.0}


def test_items_are_done_and_counted(out):
    made = Made(out, node("a", 4)).begin()
    tasks = [made.hand(name) for name in ("x", "slow", "empty")]
    events = made.next(3)
    by_name = {event.task.name: event for event in events}
    assert isinstance(by_name["x"], Finished)
    assert isinstance(by_name["slow"], Finished)
    assert by_name["slow"].wall_s > by_name["x"].wall_s
    assert by_name["slow"].task is tasks[1]
    assert (by_name["empty"].lost, by_name["empty"].exit_code) == (False, 3)
    assert sum(report.items for report in made.pool.reports()) == 2
    assert [report.starts for report in made.pool.reports()] == [1, 1]
    made.pool.close()
    assert sorted(made.ray.closed) == [0, 1]
    assert made.ray.actors == {}


@pytest.mark.parametrize(
    ("cores", "asked", "each"),
    [
        (20, {"most": 2}, None),  # no more than items
        (8, {"workers": 2}, None),  # as many as are asked for
        (2, {"workers": 2}, {1}),  # one core each where two do not fit
    ],
)
def test_there_are_two_workers(out, cores, asked, each):
    made = Made(out, node("a", cores), **asked).begin()
    made.until(lambda: made.placed() == ["idle"] * 2)
    assert len(made.ray.placed) == 2
    assert each in (None, {load.cores for load in made.ray.loads})


def test_a_node_that_comes_is_used(out):
    made = Made(out, node("a")).begin()
    made.hand("endless")
    made.ray.found.append(node("b", 4))
    made.hand("slow2")
    made.hand("slow3")
    made.next(2)
    assert len(made.pool.reports()) == 3


def test_more_workers_are_asked_for_until_they_are_there(out):
    """An autoscaling cluster brings nodes for what waits."""
    made = Made(out, node("a"), workers=3).begin()
    made.hand("endless")
    made.until(lambda: len(made.ray.actors) == 3)
    made.ray.found += [node("b"), node("c")]
    made.hand("x")
    made.hand("y")
    assert {event.task.name for event in made.next(2)} == {"x", "y"}


def test_nothing_waits_for_a_node_where_workers_have_nothing_to_do(out):
    made = Made(out, node("a", 1), workers=3).begin()
    made.until(lambda: len(made.ray.actors) == 3 and made.placed() == ["idle"])
    made.until(lambda: len(made.ray.actors) == 1)
    assert [one.state for one in made.pool.states()] == ["idle"]
    assert made.pool.is_alive()


def test_room_that_others_have_is_not_asked_for_for_ever(out):
    """Ray reports what nodes have, not who uses it."""
    made = Made(out, node("a", 6)).load()
    made.ray.full = True
    made.begin()
    made.hand("endless")
    made.until(lambda: len(made.ray.actors) == 3)
    made.until(lambda: len(made.ray.actors) == 1)
    withdrawn = made.clock.now
    made.until(lambda: len(made.ray.actors) == 3)
    assert 250 < made.clock.now - withdrawn < 350


def test_a_lost_node_costs_a_try_and_a_worker_starts_elsewhere(out):
    made = Made(out, node("a"), node("b"), workers=1).begin()
    task = made.hand("slow")
    made.pool.wait(0.1)
    (actor,) = made.ray.actors.values()
    host = actor.node.id.removeprefix("id-")
    made.ray.lose(host)
    (event,) = made.next()
    assert isinstance(event, Failed)
    assert (event.task, event.lost, event.exit_code) == (task, True, 5)
    assert f"node {host}" in event.error
    made.hand("slow", tries=2)
    assert isinstance(made.next()[0], Finished)
    (report,) = made.pool.reports()
    assert report.starts == 2


def test_an_actor_that_dies_is_replaced(out):
    made = Made(out, node("a")).begin()
    made.hand("vanish")
    (event,) = made.next()
    assert event.lost
    made.hand("vanish", tries=2)
    assert isinstance(made.next()[0], Finished)


def test_an_actor_that_does_not_answer_is_killed(out):
    made = Made(out, node("a")).begin()
    made.hand("silent")
    (event,) = made.next()
    assert event.lost
    assert "did not respond" in event.error
    made.hand("x")
    assert isinstance(made.next()[0], Finished)
    assert list(made.ray.actors) == [1]


def test_a_place_whose_actors_do_not_load_is_given_up(out):
    made = Made(out, node("a"), node("b")).begin()
    made.until(lambda: made.placed() == ["idle"] * 2)
    made.hand("endless")
    made.ray.dies_loading = True
    made.ray.lose("b")
    made.ray.found.append(node("c"))
    (event,) = made.next()
    assert isinstance(event, Gone)
    assert made.pool.is_alive()  # the other one is
    made.until(lambda: made.clock.now > 200)
    assert len(made.ray.actors) == 1  # and no third is tried in its place


def test_workers_that_short_memory_ends_as_they_start_are_given_up(out):
    """They are not restarted for ten minutes until "no node gave a worker"."""
    made = Made(out, node("a")).begin()
    made.ray.dies_saying_hello = NO_MEMORY
    made.hand("crash")
    made.ray.actors[0].dead = NO_MEMORY
    failed, gone = made.next(2)
    assert failed.lost
    assert "memory" in failed.error
    assert isinstance(gone, Gone)
    assert "memory" in gone.error
    assert len(made.ray.placed) == 1 + 3
    assert not made.pool.is_alive()


def test_memory_is_given_a_moment_to_be_free_again(out):
    """The actor is gone at once, and the process that had the memory ends a little later."""
    made = Made(out, node("a")).begin()
    made.hand("endless")
    made.ray.actors[0].dead = NO_MEMORY
    made.next()
    ended = made.clock.now
    made.until(lambda: made.ray.actors)
    assert made.clock.now - ended >= 4


def test_a_worker_that_waits_may_lose_its_node_over_and_over(out):
    made = Made(out, node("a")).begin()
    made.ray.dies_saying_hello = "its node has died"
    made.ray.actors[0].dead = "its node has died"
    made.until(lambda: len(made.ray.placed) > 9)
    assert made.pool.is_alive()


def test_a_worker_that_gives_up_is_gone(out):
    made = Made(out, node("a")).begin()
    made.hand("gone")
    failed, gone = made.next(2)
    assert failed.lost
    assert isinstance(gone, Gone)
    assert not made.pool.is_alive()


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"version": "0.0.1"}, 5, "detect-video 0.0.1"),
        ({"sees": False}, 6, "cannot see"),
        ({"gathers": False}, 5, "pyarrow"),
        ({"unseen": [__file__]}, 5, __file__),
        ({"unseen": ["/not/here/either"]}, None, ""),
    ],
)
def test_unfit_node_ends_a_starting_job(out, change, code, says):
    made = Made(out, node("bad"), gathers=True)
    made.ray.welcome = lambda about: replace(about, **change)
    made.load()
    if code is None:
        assert made.facts is not None
        return
    (gone,) = made.next()
    assert gone.exit_code == code
    assert gone.error.startswith("node bad ")
    assert says in gone.error
    assert not made.pool.is_alive()


@pytest.mark.parametrize("gone", [False, True], ids=["for the node alone", "for all"])
def test_node_without_access_to_a_store_ends_the_job(out, monkeypatch, gone):
    store = fake_store(monkeypatch)
    store.pipe_file("/one/b.mp4", b"x")
    made = Made(out, node("bad"))
    barred = {"gs://one/b.mp4": "gs://one/b.mp4: wrong key; set X"}
    made.ray.welcome = lambda about: replace(about, barred=barred)
    if gone:
        store.rm_file("/one/b.mp4")
        assert made.load().facts is not None
        return
    made.load()
    (told,) = made.next()
    assert "gs://one/b.mp4" in told.error


def test_a_model_that_cannot_be_loaded_ends_a_job_that_begins(out):
    made = Made(out, node("a"))
    made.ray.refuses = ModelError("no such weights")
    made.load()
    (gone,) = made.next()
    assert (gone.error, gone.exit_code) == ("no such weights", 4)


def test_unfit_node_is_avoided_for_the_rest_of_the_job(out):
    made = Made(out, node("a"), node("bad", 4))
    made.ray.welcome = lambda about: (
        replace(about, version="0.0.1") if about.host == "bad" else about
    )
    made.begin()
    made.hand("endless")
    for gone in made.next(2):  # it has room for two
        assert "bad" in gone.error
    made.until(lambda: made.clock.now > 200)
    assert made.placed().count("idle") == 0
    made.ray.found.append(node("c"))
    made.until(lambda: made.placed().count("idle") == 1)
    assert made.ray.placed[-1]["label_selector"] == {"ray.io/node-id": "!in(id-bad)"}
    assert made.pool.is_alive()


def test_a_head_that_is_silent_for_long_is_a_lost_cluster(out):
    made = Made(out, node("a")).begin()
    made.hand("slow")
    made.ray.silent = 60.0  # it may come back
    assert isinstance(made.next()[0], Finished)
    made.hand("slow")
    made.ray.silent = 200.0
    failed, gone = made.next(2)
    assert "head" in failed.error
    assert isinstance(gone, Gone)


def test_a_cluster_without_room_is_not_waited_for_for_ever(out):
    made = Made(out).load()
    (gone,) = made.next()
    assert "2 cores" in gone.error
    assert 600 < made.clock.now - 100 < 700


def test_gpus_are_given_one_each_and_back_where_nothing_uses_them(out):
    runtime = FACTS.config["runtime"]
    asked = {**FACTS.config, "runtime": {**runtime, "device": "auto"}}
    made = Made(out, node("a", 8, 2), node("b", 2), config=asked).load()
    assert [(one["num_cpus"], one["num_gpus"]) for one in made.ray.placed] == [(4, 1)]
    settled = {**FACTS.config, "runtime": {**runtime, "device": "cpu"}}
    made.pool.turn(Turn(wait=0, start=(settled, "a digest", 9)))
    made.until(lambda: made.placed() == ["idle"] * 5)
    assert {(one["num_cpus"], one["num_gpus"]) for one in made.ray.placed[1:]} == {(2, 0)}


def test_node_without_detect_video_fails_once_with_the_reason(out):
    made = Made(out, node("a"))
    made.ray.dies_saying_hello = "No module named 'detector.batch.cluster'"
    made.load()
    (gone,) = made.next()
    assert gone.error.endswith(NOT_INSTALLED)
    assert len(made.ray.placed) == 1


def test_what_ray_says_is_a_line():
    assert describe(RuntimeError("a\n b")) == "a b"
    assert describe(RuntimeError()) == "RuntimeError"
    assert len(describe(RuntimeError("x" * 9999))) < 500
    error = RuntimeError("ray::Worker.load() (pid=1)\n Traceback ...")
    error.cause = ValueError("what it was")  # type: ignore[attr-defined]
    assert describe(error) == "ValueError: what it was"
    low = "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: "
    low += "127.0.0.1, ID: c3) was 4.05GB used / 23.54GB limit (0.17) OOM kill reason: " + "x" * 999
    assert describe(RuntimeError(low)).startswith(f"{NO_MEMORY} (4.05GB used / 23.54GB limit); ")
