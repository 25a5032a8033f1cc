"""The process that speaks to Ray, seen from the job: it dies, hangs, refuses. What --on may be."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

import pytest

from detector.batch.cluster import connection
from detector.batch.cluster.connection import (
    Connection,
    ConnectionLostError,
    address_of,
    check_on,
    last_words,
)
from detector.batch.cluster.messages import Turn
from detector.core.errors import EngineError, UsageError
from detector.core.run.signals import Stop, Stopped

TURNED = '{"replies": [], "nodes": [], "silent_s": 1.5}'
# What the process does: each text is written as the answer to one line that it reads.
SAYS = """
import os, sys, time
for text in ANSWERS:
    sys.stdin.readline()
    if text == "hang":
        time.sleep(1000)
    if text == "die":
        print("its last words", file=sys.stderr)
        os._exit(7)
    print(text, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def connect(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(connection, "CLOSING_S", 1.0)
    made: list[Connection] = []

    def make(*answers: str, stop: Stop | None = None) -> Connection:
        code = f"ANSWERS = {answers!r}\n{SAYS}"
        made.append(
            Connection("ray", tmp_path, stop or Stop(), lambda folder: [sys.executable, "-c", code])
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def opened(one: Connection) -> Connection:
    one.open()
    return one


def test_a_turn_is_a_line_each_way(connect):
    one = opened(connect("{}", TURNED, TURNED))
    rays = one._rays
    assert rays.is_dir()
    assert one.turn(Turn(wait=0.1)).silent_s == 1.5
    assert one.turn(Turn(wait=0.1)).nodes == []
    process = one._process
    one.close()
    one.close()
    assert process.returncode == 0
    assert not rays.exists()


def test_a_refusal_is_an_error_of_its_code(connect):
    with pytest.raises(EngineError, match="no head"):
        connect('{"error": "no head", "exit_code": 5}').open()


@pytest.mark.parametrize("answers", [("die",), ("{}", "die")])
def test_a_process_that_dies_is_a_lost_connection(connect, answers):
    one = connect(*answers)
    with pytest.raises((EngineError, ConnectionLostError), match=r"status 7.*last words"):
        opened(one).turn(Turn(wait=0.1))


def test_a_process_that_hangs_is_a_lost_connection(connect, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_S", 0.2)
    one = opened(connect("{}", "hang"))
    with pytest.raises(ConnectionLostError, match="did not answer"):
        one.turn(Turn(wait=0.1))
    process = one._process
    one.close()
    assert process.returncode != 0


def test_a_signal_ends_the_wait_for_ray(connect):
    stop = Stop()
    stop.exit_code = 143
    stop.set()
    with pytest.raises(Stopped):
        connect("hang", stop=stop).open()


def test_an_address_where_nobody_answers_is_refused_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    one = Connection(f"ray://127.0.0.1:{port}", tmp_path, Stop())
    with pytest.raises(EngineError, match="no Ray cluster answers"):
        one.open()
    assert one._process is None


@pytest.mark.parametrize(
    "on", ["", "Ray", "ray://", "ray://host", "ray://:1", "http://h:1", "ray:x"]
)
def test_other_places_are_refused(on):
    with pytest.raises(UsageError, match="ray://HOST:PORT"):
        check_on(on)


def test_without_ray_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'detect-video\[ray\]'"):
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
def test_a_cluster_is_joined_where_one_is_named(on, variable, address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", variable)
    assert address_of(on) == address


def test_what_ray_is_told(monkeypatch):
    """No usage statistics, no upload; and no address that it would join by itself."""
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    for address in (None, "head:6379"):
        given = connection._environment(address)
        assert given["RAY_USAGE_STATS_ENABLED"] == "0"
        assert given["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"
        assert "RAY_ADDRESS" not in given
        assert given["PATH"] == os.environ["PATH"]
    tokens = {connection._environment(None)["RAY_AUTH_TOKEN"] for _ in range(2)}
    assert len(tokens) == 2  # each job has its own


def test_the_last_words_of_ray_are_no_addresses():
    log = "[2026-11-23 02:19:00,047 C 1 2]  gcs.cc:1: no such cluster"
    said = f"warning\n{log}\n *** Stack\n [0x7f] f()\n"
    assert last_words(said).strip() == "gcs.cc:1: no such cluster"
    assert last_words("some\nthing") == "some thing"


def test_rays_folder_leaves_room_for_its_sockets(monkeypatch, tmp_path):
    monkeypatch.setattr(connection.tempfile, "gettempdir", lambda: str(tmp_path / ("x" * 50)))
    folder = connection._short_folder()
    folder.rmdir()
    assert len(str(folder)) < connection.LONGEST_FOLDER
    assert folder.parent == Path("/tmp")
