"""The workers of a cluster, with a fake Ray whose nodes join, vanish, hang or are unfit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from detector.batch.cluster.messages import Hello, Open, Turn
from detector.batch.cluster.workers import NO_MEMORY, NOT_INSTALLED, Workers, describe
from detector.batch.item import Task
from detector.batch.listing import version_of
from detector.batch.pool import Failed, Finished, Gone
from detector.batch.settings import digest_of
from detector.core.errors import ModelError
from tests.batch.clusters import Clock, FakeRay, node
from tests.batch.pools import FACTS, load_of
from tests.batch.storage import fake_store


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out/files").mkdir(parents=True)
    return tmp_path / "out"


class ClusterJob:
    def __init__(self, out: Path, *nodes, most=9, config=FACTS.config, workers=None, **options):
        self.clock = Clock()
        self.ray = FakeRay(out, self.clock, *nodes)
        self.out, self.most = out, most
        hello = Hello(place=str(out), token_file="token", token="abc")
        load = replace(load_of(out), config=config)
        self.open = Open(
            address=None,
            cores=2,
            folder="",
            workers=workers,
            hello=replace(hello, **options.pop("hello", {})),
            load=replace(load, **options),
        )
        self.facts = None
        self._events: list = []

    def load(self) -> ClusterJob:
        self.pool = Workers(
            self.ray, self.ray, self.ray, self.open, sleep=self.clock.sleep, clock=self.clock
        )
        while self.facts is None and not self._events:
            turned = self.pool.turn(Turn(wait=0.5))
            self.facts, self._events = turned.facts, turned.events
        return self

    def begin(self) -> ClusterJob:
        if self.facts is None:
            self.load()
        assert self.facts is not None
        self.pool.turn(Turn(wait=0, start=(self.facts.config, digest_of(self.facts), self.most)))
        return self

    def submit(self, name: str, tries: int = 1) -> Task:
        path = self.out / name
        path.write_bytes(b"x")
        self.wait_until(self.pool.has_room)
        task = Task(name=name, path=str(path), version=version_of(path.stat()), tries=tries)
        self.pool.submit(task)
        return task

    def wait_until(self, holds) -> None:
        for _ in range(20_000):
            if holds():
                return
            self._events += self.pool.wait(0.5)
        raise AssertionError("the condition was not met")

    def next(self, count: int = 1) -> list:
        self.wait_until(lambda: len(self._events) >= count)
        events, self._events = self._events[:count], self._events[count:]
        return events

    def states(self) -> list[str]:
        return sorted(one.state for one in self.pool.states() if one.state != "waiting")


def test_workers_fill_the_room_of_all_nodes(out):
    job = ClusterJob(out, node("a", 5), node("b", 1), node("c", 2)).begin()
    job.wait_until(lambda: job.states() == ["idle"] * 3)
    assert {options["num_cpus"] for options in job.ray.placed} == {2}
    assert all(one["max_restarts"] == one["max_task_retries"] == 0 for one in job.ray.placed)
    assert job.pool.cores() == pytest.approx(6, rel=0.5)
    assert job.ray.loads[0].resolves
    assert not any(load.resolves for load in job.ray.loads[1:])
    assert {load.node_cpus for load in job.ray.loads} == {5.0, 2.0}


def test_finished_and_failed_items_are_reported(out):
    job = ClusterJob(out, node("a", 4)).begin()
    tasks = [job.submit(name) for name in ("x", "slow", "empty")]
    events = job.next(3)
    by_name = {event.task.name: event for event in events}
    assert isinstance(by_name["x"], Finished)
    assert isinstance(by_name["slow"], Finished)
    assert by_name["slow"].wall_s > by_name["x"].wall_s
    assert by_name["slow"].task is tasks[1]
    assert (by_name["empty"].lost, by_name["empty"].exit_code) == (False, 3)
    assert sum(report.items for report in job.pool.reports()) == 2
    assert [report.starts for report in job.pool.reports()] == [1, 1]
    job.pool.close()
    assert sorted(job.ray.closed) == [0, 1]
    assert job.ray.actors == {}


@pytest.mark.parametrize(
    ("cores", "asked", "each"),
    [
        (20, {"most": 2}, None),  # at most one worker per item
        (8, {"workers": 2}, None),  # as many workers as requested
        (2, {"workers": 2}, {1}),  # one core per worker, since the node has only two
    ],
)
def test_numbers_of_workers_and_of_their_cores_are_limited(out, cores, asked, each):
    job = ClusterJob(out, node("a", cores), **asked).begin()
    job.wait_until(lambda: job.states() == ["idle"] * 2)
    assert len(job.ray.placed) == 2
    assert each in (None, {load.cores for load in job.ray.loads})


def test_node_that_joins_later_gets_workers(out):
    job = ClusterJob(out, node("a")).begin()
    job.submit("endless")
    job.ray.found.append(node("b", 4))
    job.submit("slow2")
    job.submit("slow3")
    job.next(2)
    assert len(job.pool.reports()) == 3


def test_requested_workers_start_on_nodes_that_join_later(out):
    """An autoscaling cluster adds nodes for waiting actors."""
    job = ClusterJob(out, node("a"), workers=3).begin()
    job.submit("endless")
    job.wait_until(lambda: len(job.ray.actors) == 3)
    job.ray.found += [node("b"), node("c")]
    job.submit("x")
    job.submit("y")
    assert {event.task.name for event in job.next(2)} == {"x", "y"}


def test_waiting_actors_are_withdrawn_if_other_workers_are_idle(out):
    job = ClusterJob(out, node("a", 1), workers=3).begin()
    job.wait_until(lambda: len(job.ray.actors) == 3 and job.states() == ["idle"])
    job.wait_until(lambda: len(job.ray.actors) == 1)
    assert [one.state for one in job.pool.states()] == ["idle"]
    assert job.pool.is_alive()


def test_waiting_actors_are_withdrawn_and_requested_again_after_five_minutes(out):
    """Ray reports the cores of a node, but not how many of them other jobs use."""
    job = ClusterJob(out, node("a", 6)).load()
    job.ray.full = True
    job.begin()
    job.submit("endless")
    job.wait_until(lambda: len(job.ray.actors) == 3)
    job.wait_until(lambda: len(job.ray.actors) == 1)
    withdrawn = job.clock.now
    job.wait_until(lambda: len(job.ray.actors) == 3)
    assert 250 < job.clock.now - withdrawn < 350


def test_item_of_a_lost_node_fails_and_a_worker_starts_on_another_node(out):
    job = ClusterJob(out, node("a"), node("b"), workers=1).begin()
    task = job.submit("slow")
    job.pool.wait(0.1)
    (actor,) = job.ray.actors.values()
    host = actor.node.id.removeprefix("id-")
    job.ray.lose(host)
    (event,) = job.next()
    assert isinstance(event, Failed)
    assert (event.task, event.lost, event.exit_code) == (task, True, 5)
    assert f"node {host}" in event.error
    job.submit("slow", tries=2)
    assert isinstance(job.next()[0], Finished)
    (report,) = job.pool.reports()
    assert report.starts == 2


@pytest.mark.parametrize(
    ("name", "error"), [("vanish", "its node has died"), ("silent", "did not respond")]
)
def test_actor_that_dies_or_does_not_respond_is_replaced(out, name, error):
    job = ClusterJob(out, node("a")).begin()
    job.submit(name)
    (event,) = job.next()
    assert event.lost
    assert error in event.error
    job.submit("x")
    assert isinstance(job.next()[0], Finished)
    assert list(job.ray.actors) == [1]


def test_lost_worker_is_not_replaced_after_failed_loads(out):
    job = ClusterJob(out, node("a"), node("b")).begin()
    job.wait_until(lambda: job.states() == ["idle"] * 2)
    job.submit("endless")
    job.ray.dies_loading = True
    job.ray.lose("b")
    job.ray.found.append(node("c"))
    (event,) = job.next()
    assert isinstance(event, Gone)
    assert job.pool.is_alive()  # the other worker still runs
    job.wait_until(lambda: job.clock.now > 200)
    assert len(job.ray.actors) == 1  # no replacement is started


def test_worker_is_not_replaced_if_new_workers_run_out_of_memory_at_start(out):
    job = ClusterJob(out, node("a")).begin()
    job.ray.dies_in_hello = NO_MEMORY
    job.submit("crash")
    job.ray.actors[0].dead = NO_MEMORY
    failed, gone = job.next(2)
    assert failed.lost
    assert "memory" in failed.error
    assert isinstance(gone, Gone)
    assert "memory" in gone.error
    assert len(job.ray.placed) == 1 + 3
    assert not job.pool.is_alive()


def test_restart_waits_for_memory_to_be_released(out):
    """The actor ends immediately; the process that uses the memory ends a little later."""
    job = ClusterJob(out, node("a")).begin()
    job.submit("endless")
    job.ray.actors[0].dead = NO_MEMORY
    job.next()
    ended = job.clock.now
    job.wait_until(lambda: job.ray.actors)
    assert job.clock.now - ended >= 4


def test_job_goes_on_however_often_an_idle_worker_is_lost(out):
    job = ClusterJob(out, node("a")).begin()
    job.ray.dies_in_hello = "its node has died"
    job.ray.actors[0].dead = "its node has died"
    job.wait_until(lambda: len(job.ray.placed) > 9)
    assert job.pool.is_alive()


def test_pool_ends_if_its_only_worker_gives_up(out):
    job = ClusterJob(out, node("a")).begin()
    job.submit("gone")
    failed, gone = job.next(2)
    assert failed.lost
    assert isinstance(gone, Gone)
    assert not job.pool.is_alive()


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"version": "0.0.1"}, 5, "detect-video 0.0.1"),
        ({"sees": False}, 6, "cannot see"),
        ({"gathers": False}, 5, "pyarrow"),
        ({"unseen": [__file__]}, 5, __file__),
        ({"unseen": ["/not/here/either"]}, None, ""),
    ],
)
def test_unfit_node_ends_a_starting_job(out, change, code, message):
    job = ClusterJob(out, node("bad"), gathers=True)
    job.ray.welcome = lambda welcome: replace(welcome, **change)
    job.load()
    if code is None:
        assert job.facts is not None
        return
    (gone,) = job.next()
    assert gone.exit_code == code
    assert gone.error.startswith("node bad ")
    assert message in gone.error
    assert not job.pool.is_alive()


@pytest.mark.parametrize("gone", [False, True], ids=["access denied", "object deleted"])
def test_node_that_cannot_read_an_existing_object_ends_the_job(out, monkeypatch, gone):
    store = fake_store(monkeypatch)
    store.pipe_file("/one/b.mp4", b"x")
    job = ClusterJob(out, node("bad"))
    barred = {"gs://one/b.mp4": "gs://one/b.mp4: wrong key; set X"}
    job.ray.welcome = lambda welcome: replace(welcome, barred=barred)
    if gone:
        store.rm_file("/one/b.mp4")
        assert job.load().facts is not None
        return
    job.load()
    (event,) = job.next()
    assert "gs://one/b.mp4" in event.error


def test_model_that_cannot_be_loaded_ends_the_job(out):
    job = ClusterJob(out, node("a"))
    job.ray.refuses = ModelError("no such weights")
    (gone,) = job.load().next()
    assert (gone.error, gone.exit_code) == ("no such weights", 4)


def test_unfit_node_is_avoided_for_the_rest_of_the_job(out):
    job = ClusterJob(out, node("a"), node("bad", 4))
    job.ray.welcome = lambda welcome: (
        replace(welcome, version="0.0.1") if welcome.host == "bad" else welcome
    )
    job.begin()
    job.submit("endless")
    for gone in job.next(2):  # the node had room for two workers
        assert "bad" in gone.error
    job.wait_until(lambda: job.clock.now > 200)
    assert job.states().count("idle") == 0
    job.ray.found.append(node("c"))
    job.wait_until(lambda: job.states().count("idle") == 1)
    assert job.ray.placed[-1]["label_selector"] == {"ray.io/node-id": "!in(id-bad)"}
    assert job.pool.is_alive()


def test_job_ends_if_the_head_node_is_silent_for_too_long(out):
    job = ClusterJob(out, node("a")).begin()
    job.submit("slow")
    job.ray.silent = 60.0  # within the time limit
    assert isinstance(job.next()[0], Finished)
    job.submit("slow")
    job.ray.silent = 200.0
    failed, gone = job.next(2)
    assert "head" in failed.error
    assert isinstance(gone, Gone)


def test_cluster_without_room_ends_the_job_after_ten_minutes(out):
    job = ClusterJob(out).load()
    (gone,) = job.next()
    assert "2 cores" in gone.error
    assert 600 < job.clock.now - 100 < 700


def test_each_worker_gets_a_gpu_unless_the_device_is_cpu(out):
    runtime = FACTS.config["runtime"]
    asked = {**FACTS.config, "runtime": {**runtime, "device": "auto"}}
    job = ClusterJob(out, node("a", 8, 2), node("b", 2), config=asked).load()
    assert [(one["num_cpus"], one["num_gpus"]) for one in job.ray.placed] == [(4, 1)]
    settled = {**FACTS.config, "runtime": {**runtime, "device": "cpu"}}
    job.pool.turn(Turn(wait=0, start=(settled, "a digest", 9)))
    job.wait_until(lambda: job.states() == ["idle"] * 5)
    assert {(one["num_cpus"], one["num_gpus"]) for one in job.ray.placed[1:]} == {(2, 0)}


def test_node_without_our_package_fails_once_with_the_reason(out):
    job = ClusterJob(out, node("a"))
    job.ray.dies_in_hello = "No module named 'detector.batch.cluster'"
    job.load()
    (gone,) = job.next()
    assert gone.error.endswith(NOT_INSTALLED)
    assert len(job.ray.placed) == 1


def test_errors_of_ray_are_described_in_one_line():
    assert describe(RuntimeError("a\n b")) == "a b"
    assert describe(RuntimeError()) == "RuntimeError"
    assert len(describe(RuntimeError("x" * 9999))) < 500
    error = RuntimeError("ray::Worker.load() (pid=1)\n Traceback ...")
    error.cause = ValueError("what it was")  # type: ignore[attr-defined]
    assert describe(error) == "ValueError: what it was"
    low = "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: "
    low += "127.0.0.1, ID: c3) was 4.05GB used / 23.54GB limit (0.17) OOM kill reason: " + "x" * 999
    assert describe(RuntimeError(low)).startswith(f"{NO_MEMORY} (4.05GB used / 23.54GB limit); ")
