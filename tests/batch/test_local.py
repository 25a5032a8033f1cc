"""The local pool of processes: crashes, hangs, failed loads, and closing."""

import errno
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from detector.batch import local, worker
from detector.batch.item import Task
from detector.batch.listing import version_of
from detector.batch.local import Limits, LocalPool, share_cores
from detector.batch.pool import MOST_FAILED_LOADS, Failed, Finished, Gone
from detector.batch.settings import digest_of
from detector.core.errors import EngineError
from detector.core.run.signals import Stop, Stopped
from tests.batch.pools import FACTS, worker_command
from tests.waiting import wait_for


@pytest.fixture
def pool(tmp_path, monkeypatch):
    flag = tmp_path / "flag"
    monkeypatch.setattr(local, "_command_line", worker_command(tmp_path / "out", flag))
    (tmp_path / "out/files").mkdir(parents=True)
    (tmp_path / "pool").mkdir()
    pools: list[LocalPool] = []

    def make(workers: int = 1, most: int = 9, **limits: float) -> LocalPool:
        pool = LocalPool(
            tmp_path / "pool", str(tmp_path / "out"), [[0]] * workers, Limits(**limits)
        )
        pools.append(pool)
        facts = pool.load_first(FACTS.config, [], resolves=True)
        pool.start(facts.config, digest_of(facts), most)
        return pool

    yield make
    for one in pools:
        one.close()
        assert all(place.child is None for place in one._places)


def task(tmp_path: Path, name: str) -> Task:
    path = tmp_path / name
    path.write_bytes(b"x")
    return Task(name=name, path=str(path), version=version_of(path.stat()))


def events(pool: LocalPool, count: int = 1) -> list:
    received: list = []
    wait_for(lambda: received.extend(pool.wait(1.0)) or len(received) >= count, what="an event")
    return received


def submit(pool: LocalPool, item: Task) -> None:
    wait_for(lambda: pool.has_room() or (pool.wait(0.2) == [] and pool.has_room()), what="room")
    pool.submit(item)


def test_workers_get_adjacent_cores():
    assert share_cores([0, 1, 2, 3], 2) == [[0, 1], [2, 3]]
    assert share_cores([0, 1, 2, 3, 4], 2) == [[0, 1], [2, 3, 4]]
    assert share_cores([4], 1) == [[4]]
    assert share_cores([0, 1], 3) == [[0, 1]] * 3  # too few cores, so all workers share them


@pytest.mark.parametrize(
    ("error", "code", "broken"),
    [(OSError(errno.ENOSPC, "full"), 6, False), (MemoryError(), 5, True), (ValueError(), 1, True)],
)
def test_unexpected_error_is_sent_with_its_exit_code(error, code, broken, monkeypatch):
    monkeypatch.setattr(worker, "_ItemWorker", Mock(side_effect=error))
    orders, sent = [SimpleNamespace(do="close"), SimpleNamespace(do="open", opening=0)], []
    worker._serve(orders.pop, SimpleNamespace(send=sent.append))
    assert [(one.kind, one.exit_code, one.broken) for one in sent] == [("error", code, broken)]


@pytest.mark.slow
def test_one_process_handles_many_items(pool, tmp_path):
    made = pool()
    (process,) = [place.child.process.pid for place in made._places]
    for name in ("a", "b", "c"):
        submit(made, task(tmp_path, name))
        (event,) = events(made)
        assert isinstance(event, Finished)
        assert event.record.name == name
    assert [place.child.process.pid for place in made._places] == [process]
    (report,) = made.reports()
    assert (report.items, report.starts, report.frames) == (3, 1, 3)
    life = report.load_s + report.busy_s + report.idle_s
    assert report.busy_s <= life
    made.close()
    made.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("crash", "SIGSEGV.*my last words", 5),
        ("quit", "status 9", 5),
        ("engine", "the engine failed", 5),
        ("empty", "no frame", 3),
    ],
)
def test_worker_is_replaced_unless_only_its_item_failed(pool, tmp_path, name, message, code):
    made = pool()
    submit(made, task(tmp_path, name))
    (event,) = events(made)
    assert isinstance(event, Failed)
    assert (event.lost, event.exit_code) == (code == 5, code)
    assert re.search(message, event.error)
    submit(made, task(tmp_path, "a"))
    assert isinstance(events(made)[0], Finished)
    assert made.reports()[0].starts == 1 + event.lost


@pytest.mark.slow
def test_pool_has_at_most_as_many_workers_as_items(pool, tmp_path):
    made = pool(3, most=2)
    assert len(made.states()) == 2
    assert {one.state for one in made.states()} <= {"loading", "idle"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "message"), [({"item": 0.3}, "--item-timeout 0.3"), ({"stall": 0.3}, "no frame")]
)
def test_hanging_worker_is_killed_at_its_time_limit(pool, tmp_path, limits, message):
    made = pool(**limits)
    submit(made, task(tmp_path, "hang"))
    process = made._places[0].child.process.pid
    (event,) = events(made)
    assert isinstance(event, Failed)
    assert event.lost
    assert message in event.error
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.slow
def test_killed_idle_worker_is_replaced(pool, tmp_path):
    made = pool()
    wait_for(made.has_room)
    os.kill(made._places[0].child.process.pid, signal.SIGKILL)
    wait_for(lambda: made.wait(0.2) == [] and made.reports()[0].starts == 2)
    submit(made, task(tmp_path, "a"))
    assert isinstance(events(made)[0], Finished)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "error", "loads"),
    [("dies", "SIGKILL", MOST_FAILED_LOADS), ("other", "has changed", 1)],
)
def test_worker_is_not_replaced_after_failed_loads_or_if_the_model_changed(
    pool, tmp_path, flag, error, loads
):
    made = pool()
    (tmp_path / f"flag.{flag}").touch()
    submit(made, task(tmp_path, "crash"))
    failed, gone = events(made, 2)
    assert isinstance(failed, Failed)
    assert isinstance(gone, Gone)
    assert error in gone.error
    assert made.reports()[0].starts == 1 + loads
    assert not made.is_alive()


@pytest.mark.slow
def test_job_ends_if_its_first_worker_fails_to_load(pool, tmp_path):
    (tmp_path / "flag.dies").touch()
    with pytest.raises(EngineError, match="SIGKILL"):
        pool()


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_the_first_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_command_line", lambda *_: ["sleep", "1000"])
    (tmp_path / "pool").mkdir()
    stop = Stop()
    stop.exit_code = 130
    stop.set()
    made = LocalPool(tmp_path / "pool", str(tmp_path), [[0]], stop=stop)
    with pytest.raises(Stopped):
        made.load_first(FACTS.config, [], resolves=True)
    process = made._places[0].child.process
    made.close()
    assert process.returncode is not None
