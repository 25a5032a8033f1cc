"""The pool of a cluster, the loss of the process that talks to Ray, and the option --on."""

import importlib.util
import os
import pickle
import socket
import sys
from pathlib import Path

import pytest

from detector.batch.cluster import pool as module
from detector.batch.cluster.messages import Turned
from detector.batch.cluster.pool import ClusterPool, address_of, check_on, last_words
from detector.batch.item import Task
from detector.batch.pool import Failed, Gone
from detector.core.errors import EngineError, OutputError, UsageError
from detector.core.run.parent import ROOT
from detector.core.run.signals import Stop, Stopped
from tests.batch.pools import FACTS
from tests.batch.storage import fake_store
from tests.waiting import PATIENCE_S

TASK = Task(name="a", path="/a", version="1-1")
LOADED = Turned(facts=FACTS, room=1)
BAD = Turned(events=[Gone(0, "node bad does not see it", 6)], alive=False)
# Replaces the process that talks to Ray. It replies to each message with the next of ANSWERS.
CHILD = """
import os, pickle, sys, time
from multiprocessing.connection import Connection
job = Connection(PIPE)
for answer in pickle.loads(ANSWERS):
    job.recv()
    if answer == "hang":
        time.sleep(1000)
    if answer == "die":
        print("its last words", file=sys.stderr)
        os._exit(7)
    job.send(answer)
try:
    while True:
        job.recv()
        job.send(None)
except EOFError:
    pass
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "out").mkdir()
    pools: list[ClusterPool] = []

    def make(*answers: object, stop: Stop | None = None, place: str = "") -> ClusterPool:
        def command(folder: Path, pipe: int) -> list[str]:
            head = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            head += f"PIPE, ANSWERS = {pipe}, {pickle.dumps(answers)!r}\n"
            return [sys.executable, "-c", head + CHILD]

        # Do not wait long for a process that hangs on purpose.
        hangs = "hang" in answers
        monkeypatch.setattr(module, "CLOSING_S", 0.2 if hangs else PATIENCE_S)
        place = place or str(tmp_path / "out")
        pools.append(ClusterPool("ray", tmp_path, place, stop=stop or Stop(), command=command))
        return pools[-1]

    yield make
    for one in pools:
        one.close()


def load(one: ClusterPool, pictures=()) -> ClusterPool:
    one.load_first(FACTS.config, pictures, resolves=True)
    return one


@pytest.mark.slow
def test_pool_has_the_state_of_the_last_reply_and_removes_its_files_on_close(pool):
    one = load(pool(None, Turned(), LOADED, LOADED, Turned(room=0, cores=2.0)))
    rays, token = one._rays, one._token
    assert rays.is_dir()
    assert token.exists()
    one.start(FACTS.config, "a digest", 1)
    assert one.has_room()
    one.submit(TASK)
    assert not one.has_room()
    assert one.wait(0.1) == []
    assert (one.cores(), one.is_alive()) == (2.0, True)
    process = one._child.process
    one.close()
    one.close()
    assert process.returncode == 0
    assert not rays.exists()
    assert not token.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (EngineError("no head"), EngineError, "no head"),
        (BAD, OutputError, "does not see it"),
        ("die", EngineError, r"status 7.*last words"),
    ],
)
def test_failure_during_start_raises_the_matching_error(pool, answer, error, message):
    answers = [None, answer] if isinstance(answer, Turned) else [answer]
    with pytest.raises(error, match=message):
        load(pool(*answers))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "message"), [("die", "last words"), ("hang", "did not respond")]
)
def test_items_of_a_lost_process_fail_and_the_pool_ends(pool, monkeypatch, answer, message):
    one = load(pool(None, LOADED, answer))
    if answer == "hang":
        monkeypatch.setattr(module, "ANSWER_S", 0.2)
    one.submit(TASK)
    failed, gone = one.wait(0.1)
    assert isinstance(failed, Failed)
    assert (failed.task, failed.lost, failed.exit_code) == (TASK, True, 5)
    assert message in failed.error
    assert isinstance(gone, Gone)
    assert gone.error.endswith("; continue with --resume")
    assert not one.is_alive()
    assert not one.has_room()
    assert one.wait(0.1) == []
    process = one._child.process
    one.close()
    assert process.returncode != 0


@pytest.mark.slow
def test_signal_ends_the_wait_for_ray(pool):
    stop = Stop()
    stop.exit_code = 143
    stop.set()
    with pytest.raises(Stopped):
        load(pool("hang", stop=stop))


def test_hello_contains_one_source_of_each_store(pool, tmp_path, monkeypatch):
    fake_store(monkeypatch)
    sources = [f"gs://{bucket}/{name}" for bucket in ("one", "two") for name in ("a.mp4", "b.mp4")]
    hello = pool()._make_hello(FACTS.config, [*sources, __file__, "/not/here.mp4"])
    assert hello.addresses == ["gs://one/b.mp4", "gs://two/b.mp4"]
    assert hello.paths == [__file__]
    assert (tmp_path / "out" / hello.token_file).read_text() == hello.token
    assert pool(place="s3://bucket/out")._make_hello(FACTS.config, []).token_file == ""


def test_unreachable_address_is_refused_immediately(tmp_path):
    with socket.socket() as bound:  # reserves a port without listening on it
        bound.bind(("127.0.0.1", 0))
        one = ClusterPool(f"ray://127.0.0.1:{bound.getsockname()[1]}", tmp_path, str(tmp_path))
        with pytest.raises(EngineError, match="no Ray cluster"):
            load(one)
    assert one._child is None


@pytest.mark.parametrize(
    "on", ["", "Ray", "ray://", "ray://host", "ray://:1", "http://h:1", "ray:x"]
)
def test_invalid_cluster_address_is_refused(on):
    with pytest.raises(UsageError, match="ray://HOST:PORT"):
        check_on(on)


def test_missing_ray_is_reported_with_the_package_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"'detect-video\[ray\]'"):
        check_on("ray://head:10001")


@pytest.mark.parametrize(
    ("on", "variable", "address"),
    [
        ("ray", "", None),
        ("ray", "local", None),
        ("ray", " auto ", "auto"),
        ("ray", "head:6379", "head:6379"),
        ("ray://head:10001", "other:6379", "ray://head:10001"),
    ],
)
def test_cluster_address_comes_from_option_or_environment(on, variable, address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", variable)
    assert address_of(on) == address


def test_ray_environment_disables_uploads_and_has_a_new_token(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    for address in (None, "head:6379"):
        environment = module._environment(address)
        assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
        assert environment["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"
        assert "RAY_ADDRESS" not in environment
        assert environment["PATH"] == os.environ["PATH"]
    first = module._environment(None)["PYTHONPATH"].split(os.pathsep)[0]
    assert Path(first, "detector/__init__.py").exists()
    tokens = {module._environment(None)["RAY_AUTH_TOKEN"] for _ in range(2)}
    assert len(tokens) == 2


def test_quoted_log_of_ray_has_no_stack_addresses():
    log = "[2026-11-23 02:19:00,047 C 1 2]  gcs.cc:1: no such cluster"
    text = f"warning\n{log}\n *** Stack\n [0x7f] f()\n"
    assert last_words(text).strip() == "gcs.cc:1: no such cluster"
    assert last_words("some\nthing") == "some thing"


def test_folder_for_ray_is_short_enough_for_socket_paths(monkeypatch, tmp_path):
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / ("x" * 50)))
    folder = module._short_folder()
    folder.rmdir()
    assert len(str(folder)) < module.LONGEST_FOLDER
    assert folder.parent == Path("/tmp")
