"""The worker that Ray runs on a node, tested without Ray."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from detector.batch import local
from detector.batch.cluster.actor import LOCK, PREFIX, Worker, make_folder
from detector.batch.cluster.messages import ORIGIN, Hello, Welcome, to_text
from detector.batch.item import Task
from detector.batch.listing import version_of
from detector.batch.pool import Failed, Finished
from detector.batch.settings import digest_of
from detector.core import __version__
from detector.core.errors.secrets import keep_secret
from detector.core.session import codec
from tests.batch.pools import load_of, worker_command
from tests.batch.storage import fake_store


def send_hello(**fields) -> Welcome:
    return answer_to(to_text(Hello(**fields)))


def answer_to(text: str) -> Welcome:
    return codec.from_json(Worker(lambda: "n1").hello(text), Welcome, ORIGIN)


@pytest.mark.slow
def test_welcome_reports_whether_the_node_sees_the_folder_and_paths(tmp_path):
    (tmp_path / "token").write_text("abc")
    missing = str(tmp_path / "missing.mp4")
    fields = {"place": str(tmp_path), "token_file": "token", "paths": [str(tmp_path), missing]}
    welcome = send_hello(token="abc", **fields)
    assert (welcome.version, welcome.node, welcome.sees) == (__version__, "n1", True)
    assert welcome.unseen == [missing]
    assert not send_hello(token="another job's", **fields).sees
    assert not send_hello(token="abc", **{**fields, "token_file": "gone"}).sees
    assert send_hello(place="s3://bucket/out").sees  # there is no folder to check


def test_welcome_reports_stores_that_cannot_be_opened_and_hides_the_key(monkeypatch):
    store = fake_store(monkeypatch)
    store.pipe_file("/bucket/a.mp4", b"x")
    fields = {"place": "gs://bucket/out", "addresses": ["gs://bucket/a.mp4"]}
    assert send_hello(**fields).barred == {}

    def refuse(*words, **options):
        raise PermissionError("the key is sesame-open-sesame")

    monkeypatch.setattr(type(store), "info", refuse)
    monkeypatch.setattr(type(store), "cat_file", refuse)
    keep_secret("sesame-open-sesame")
    barred = send_hello(**fields).barred
    assert list(barred) == ["gs://bucket/a.mp4", "gs://bucket/out"]
    for error in barred.values():
        assert "GOOGLE_APPLICATION_CREDENTIALS" in error
        assert "sesame" not in error


def test_reply_to_an_invalid_hello_contains_the_version():
    assert answer_to('{"other": 1}').version == __version__


@pytest.mark.slow
def test_crashed_process_is_restarted_and_closing_removes_the_folder(tmp_path, monkeypatch):
    out = tmp_path / "out"
    (out / "files").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(local, "_command_line", worker_command(out, tmp_path / "flag"))
    monkeypatch.setenv("DETECT_VIDEO_CORES", "1")
    worker = Worker(lambda: "n1")
    load = load_of(
        out, folder=str(tmp_path), cores=1, node_cpus=float(len(os.sched_getaffinity(0)))
    )
    facts = worker.load(load)
    assert worker.load(replace(load, config=facts.config, digest=digest_of(facts))) == facts
    news = worker.look()
    assert (news.state, news.starts, news.events) == ("idle", 1, [])
    kinds = {}
    for name in ("a", "crash", "b", "empty"):
        path = tmp_path / name
        path.write_bytes(b"x")
        news = worker.work(Task(name=name, path=str(path), version=version_of(path.stat())))
        while not news.events:
            news = worker.look()
        (event,) = news.events
        kinds[name] = type(event)
        assert event.task.name == name
    assert kinds == {"a": Finished, "crash": Failed, "b": Finished, "empty": Failed}
    assert news.starts == 2
    folder = Path(worker._folder)
    assert folder.parent == tmp_path
    worker.close()
    assert not folder.exists()
    worker.close()


def test_folder_of_a_killed_worker_is_removed_by_the_next_worker(tmp_path):
    folder, lock = make_folder(str(tmp_path))
    foreign = tmp_path / f"{PREFIX}of-a-job"  # without a lock file
    foreign.mkdir()
    other, another = make_folder(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {
        Path(folder).name,
        Path(other).name,
        foreign.name,
    }
    os.close(lock)
    last, one = make_folder(str(tmp_path))
    assert not Path(folder).exists()
    assert Path(other, LOCK).exists()
    for each in (another, one):
        os.close(each)
    assert Path(last, LOCK).exists()
