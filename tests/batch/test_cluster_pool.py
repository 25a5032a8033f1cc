"""The pool of a cluster, without Ray: workers on nodes that come and go, hang, or are no good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from detector.batch.cluster.messages import NO_MEMORY
from detector.batch.cluster.pool import ClusterPool
from detector.batch.item import Task
from detector.batch.listing import version_of
from detector.batch.pool import Failed, Finished, Gone
from detector.batch.settings import digest_of
from detector.core.errors import EngineError, OutputError
from detector.core.run.signals import Stop, Stopped
from tests.batch.clusters import Clock, FakeCluster, node
from tests.batch.pools import FACTS
from tests.batch.storage import fake_store


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out/files").mkdir(parents=True)
    return tmp_path / "out"


class Made:
    """A pool, its cluster, and its clock."""

    def __init__(self, out: Path, *nodes, most: int = 9, **options) -> None:
        self.clock = Clock()
        self.cluster = FakeCluster(out, self.clock, *nodes)
        self.pool = ClusterPool(self.cluster, str(out), clock=self.clock, **options)
        self.out, self.most = out, most
        self._happened: list = []

    def load(self, config=FACTS.config):
        return self.pool.load_first(config, [], resolves=True)

    def begin(self) -> Made:
        facts = self.load()
        self.pool.start(facts.config, digest_of(facts), self.most)
        return self

    def hand(self, name: str, tries: int = 1) -> Task:
        path = self.out / name
        path.write_bytes(b"x")
        self.until(self.pool.has_room)
        task = Task(name=name, path=str(path), version=version_of(path.stat()), tries=tries)
        self.pool.submit(task)
        return task

    def until(self, holds) -> None:
        """Lets the clock's time go by until it holds."""
        for _ in range(20_000):
            if holds():
                return
            self._happened += self.pool.wait(0.5)
        raise AssertionError("it did not come about")

    def next(self, count: int = 1) -> list:
        """What happened that nobody has asked for yet, in its order."""
        self.until(lambda: len(self._happened) >= count)
        events, self._happened = self._happened[:count], self._happened[count:]
        return events

    def placed(self) -> list[str]:
        return sorted(one.state for one in self.pool.states() if one.state != "waiting")


def test_it_takes_what_there_is_room_for(out):
    made = Made(out, node("a", 5), node("b", 1), node("c", 2)).begin()
    made.until(lambda: made.placed() == ["idle"] * 3)
    assert {place.cpus for place in made.cluster.placed} == {2}
    assert made.pool.cores() == pytest.approx(6, rel=0.5)
    assert made.cluster.loads[0].resolves
    assert not any(load.resolves for load in made.cluster.loads[1:])
    assert {load.node_cpus for load in made.cluster.loads} == {5.0, 2.0}


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
    assert sorted(made.cluster.closed) == [0, 1]
    assert made.cluster.left == 1
    assert not (out / made.pool.token_name).exists()


def test_there_are_no_more_workers_than_items(out):
    made = Made(out, node("a", 20), most=2).begin()
    made.until(lambda: made.placed() == ["idle"] * 2)
    assert len(made.cluster.placed) == 2


def test_so_many_workers_as_are_asked_for(out):
    made = Made(out, node("a", 8), workers=2).begin()
    made.until(lambda: made.placed() == ["idle"] * 2)
    assert len(made.cluster.placed) == 2


def test_workers_take_one_core_where_two_each_do_not_fit(out):
    made = Made(out, node("a", 2), workers=2).begin()
    made.until(lambda: made.placed() == ["idle"] * 2)
    assert {load.cores for load in made.cluster.loads} == {1}


def test_a_node_that_comes_is_used(out):
    made = Made(out, node("a")).begin()
    made.hand("endless")
    made.cluster.nodes.append(node("b", 4))
    made.hand("slow2")
    made.hand("slow3")
    made.next(2)
    assert len(made.pool.reports()) == 3


def test_more_workers_are_asked_for_until_they_are_there(out):
    """An autoscaling cluster brings nodes for what waits."""
    made = Made(out, node("a"), workers=3).begin()
    made.hand("endless")
    made.until(lambda: len(made.cluster.actors) == 3)
    made.cluster.nodes += [node("b"), node("c")]
    made.hand("x")
    made.hand("y")
    assert {event.task.name for event in made.next(2)} == {"x", "y"}


def test_nothing_waits_for_a_node_where_workers_have_nothing_to_do(out):
    made = Made(out, node("a", 1), workers=3).begin()
    made.until(lambda: len(made.cluster.actors) == 3 and made.placed() == ["idle"])
    made.until(lambda: len(made.cluster.actors) == 1)
    assert [one.state for one in made.pool.states()] == ["idle"]
    assert made.pool.is_alive()


def test_room_that_others_have_is_not_asked_for_for_ever(out):
    """Ray tells what nodes have, not who uses it."""
    made = Made(out, node("a", 6))
    facts = made.load()
    made.cluster.full = True
    made.pool.start(facts.config, digest_of(facts), made.most)
    made.hand("endless")
    made.until(lambda: len(made.cluster.actors) == 3)
    made.until(lambda: len(made.cluster.actors) == 1)
    withdrawn = made.clock.now
    made.until(lambda: len(made.cluster.actors) == 3)
    assert 250 < made.clock.now - withdrawn < 350


def test_a_lost_node_costs_a_try_and_a_worker_starts_elsewhere(out):
    made = Made(out, node("a"), node("b"), workers=1).begin()
    task = made.hand("slow")
    made.pool.wait(0.1)
    (actor,) = made.cluster.actors.values()
    made.cluster.lose(actor.node.host)
    (event,) = made.next()
    assert isinstance(event, Failed)
    assert (event.task, event.lost, event.exit_code) == (task, True, 5)
    assert actor.node.host in event.error
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
    assert "did not answer" in event.error
    made.hand("x")
    assert isinstance(made.next()[0], Finished)
    assert made.cluster.ended == [0]


def test_a_place_whose_actors_do_not_load_is_given_up(out):
    made = Made(out, node("a"), node("b")).begin()
    made.until(lambda: made.placed() == ["idle"] * 2)
    made.hand("endless")
    made.cluster.dies_loading = True
    made.cluster.lose("b")
    made.cluster.nodes.append(node("c"))
    (event,) = made.next()
    assert isinstance(event, Gone)
    assert made.pool.is_alive()  # the other one is
    made.until(lambda: made.clock.now > 200)
    assert len(made.cluster.actors) == 1  # and no third is tried in its place


def test_workers_that_short_memory_ends_as_they_start_are_given_up(out):
    """Not one after the other for ten minutes, and then "no node gave a worker"."""
    made = Made(out, node("a")).begin()
    made.cluster.dies_saying_hello = NO_MEMORY
    made.hand("crash")
    made.cluster.actors[0].dead = NO_MEMORY
    failed, gone = made.next(2)
    assert failed.lost
    assert "memory" in failed.error
    assert isinstance(gone, Gone)
    assert "memory" in gone.error
    assert len(made.cluster.placed) == 1 + 3
    assert not made.pool.is_alive()


def test_a_worker_that_waits_may_lose_its_node_over_and_over(out):
    made = Made(out, node("a")).begin()
    made.cluster.dies_saying_hello = "its node has died"
    made.cluster.actors[0].dead = "its node has died"
    made.until(lambda: len(made.cluster.placed) > 9)
    assert made.pool.is_alive()


def test_a_worker_that_gives_up_is_gone(out):
    made = Made(out, node("a")).begin()
    made.hand("gone")
    failed, gone = made.next(2)
    assert failed.lost
    assert isinstance(gone, Gone)
    assert not made.pool.is_alive()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"version": "0.0.1"}, EngineError, "detect-video 0.0.1"),
        ({"sees": False}, OutputError, "does not see"),
        ({"gathers": False}, EngineError, "pyarrow"),
    ],
)
def test_a_node_that_is_no_good_ends_a_job_that_begins(out, change, error, says):
    made = Made(out, node("bad"), gathers=True)
    made.cluster.welcome = lambda about: replace(about, **change)
    with pytest.raises(error, match=says) as raised:
        made.begin()
    assert "bad" in str(raised.value)
    made.pool.close()
    assert not (out / made.pool.token_name).exists()


def test_a_node_that_does_not_see_a_source_is_no_good(out, tmp_path):
    clip = tmp_path / "clip.mp4"
    clip.touch()
    made = Made(out, node("bad"))
    made.cluster.welcome = lambda about: replace(about, unseen=[str(clip)])
    with pytest.raises(EngineError, match="clip"):
        made.pool.load_first(FACTS.config, [str(clip)], resolves=True)


@pytest.mark.parametrize("gone", [False, True], ids=["for the node alone", "for all"])
def test_a_node_that_does_not_open_a_store_is_no_good(out, monkeypatch, gone):
    store = fake_store(monkeypatch)
    for bucket in ("one", "two"):
        for name in ("a.mp4", "b.mp4"):
            store.pipe_file(f"/{bucket}/{name}", b"x")
    sources = [f"gs://{bucket}/{name}" for bucket in ("one", "two") for name in ("a.mp4", "b.mp4")]
    made = Made(out, node("bad"))
    barred = {"gs://one/b.mp4": "gs://one/b.mp4: wrong key; set X"}
    made.cluster.welcome = lambda about: replace(about, barred=barred)
    if gone:
        store.rm_file("/one/b.mp4")
        made.pool.load_first(FACTS.config, sources, resolves=True)
    else:
        with pytest.raises(EngineError, match=r"node bad .*: wrong key; set X, in") as raised:
            made.pool.load_first(FACTS.config, sources, resolves=True)
        assert "gs://one/b.mp4" in str(raised.value)
    (hello,) = made.cluster.hellos
    assert hello.addresses == ["gs://one/b.mp4", "gs://two/b.mp4"]  # one of each bucket
    made.pool.close()


def test_a_node_that_is_no_good_is_avoided_from_then_on(out):
    made = Made(out, node("a"), node("bad", 4))
    made.cluster.welcome = lambda about: (
        replace(about, version="0.0.1") if about.host == "bad" else about
    )
    made.begin()
    made.hand("endless")
    for gone in made.next(2):  # it has room for two
        assert "bad" in gone.error
    made.until(lambda: made.clock.now > 200)
    assert made.placed().count("idle") == 0
    made.cluster.nodes.append(node("c"))
    made.until(lambda: made.placed().count("idle") == 1)
    assert "id-bad" in made.cluster.placed[-1].avoid
    assert made.pool.is_alive()


def test_a_connection_that_is_lost_loses_all(out):
    made = Made(out, node("a", 4)).begin()
    made.hand("slow")
    made.hand("slow2")
    made.pool.wait(0.1)
    made.cluster.gone = True
    events = made.next(3)
    assert [type(event) for event in events] == [Failed, Failed, Gone]
    assert all(event.lost for event in events[:2])
    assert "--resume" in events[2].error
    assert not made.pool.is_alive()
    assert not made.pool.has_room()
    made.pool.close()


def test_a_head_that_is_silent_for_long_is_a_lost_cluster(out):
    made = Made(out, node("a")).begin()
    made.hand("slow")
    made.cluster.silent_s = 60.0  # it may come back
    assert isinstance(made.next()[0], Finished)
    made.hand("slow")
    made.cluster.silent_s = 200.0
    failed, gone = made.next(2)
    assert "head" in failed.error
    assert isinstance(gone, Gone)


def test_a_cluster_without_room_is_not_waited_for_for_ever(out):
    made = Made(out)
    with pytest.raises(EngineError, match="2 cores"):
        made.begin()
    assert 600 < made.clock.now - 100 < 700


def test_a_signal_ends_the_wait_for_a_node(out):
    stop = Stop()
    stop.exit_code = 130
    stop.set()
    made = Made(out, stop=stop)
    with pytest.raises(Stopped):
        made.begin()
    made.pool.close()


def test_gpus_are_given_one_each_and_back_where_nothing_uses_them(out):
    made = Made(out, node("a", 8, 2), node("b", 2))
    made.cluster.facts = FACTS
    config = {**FACTS.config, "runtime": {**FACTS.config["runtime"], "device": "auto"}}
    facts = made.load(config)
    assert [(place.cpus, place.gpus) for place in made.cluster.placed] == [(4, 1)]
    settled = {**facts.config, "runtime": {**facts.config["runtime"], "device": "cpu"}}
    made.pool.start(settled, "a digest", 9)
    made.until(lambda: made.placed() == ["idle"] * 5)
    assert {(place.cpus, place.gpus) for place in made.cluster.placed[1:]} == {(2, 0)}
