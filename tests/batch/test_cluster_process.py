"""The process that talks to Ray, on a fake Ray that only records requests."""

from __future__ import annotations

import builtins
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from detector.batch.cluster import workers
from detector.batch.cluster.messages import Hello, Open, Turn, Turned
from detector.batch.cluster.ray_process import serve
from detector.core.errors import EngineError
from tests.batch.clusters import Clock, FakeRay, node
from tests.batch.pools import load_of
from tests.waiting import PATIENCE_S

NODES = [
    {"NodeID": "n1", "NodeManagerHostname": "a", "Alive": True, "Resources": {"CPU": 2.0}},
    {"NodeID": "n2", "NodeManagerHostname": "b", "Alive": False, "Resources": {}},
]


class Ray(FakeRay):
    def __init__(self, out: Path) -> None:
        super().__init__(out, Clock(), node("n1"))
        self.asked: dict[str, Any] = {}
        self.left = 0
        self.fails: Exception | None = None

    def init(self, **asked: Any) -> None:
        self.asked = asked
        if self.fails is not None:
            raise self.fails

    def remote(self, kind: type | None = None) -> Any:
        return super().remote() if kind is None else self

    def nodes(self) -> list[dict[str, Any]]:
        return NODES

    def shutdown(self) -> None:
        self.left += 1


@pytest.fixture
def ray(monkeypatch, tmp_path):
    made = Ray(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", made)
    (tmp_path / "r").mkdir()
    return made


def served(folder: Path, *turns: Turn, address: str | None = None) -> list[Any]:
    hello = Hello(place=str(folder), token_file="token", token="abc")
    load = load_of(folder)
    wanted = Open(
        address=address, cores=2, folder=str(folder / "r"), workers=1, hello=hello, load=load
    )
    ours, theirs = Pipe()
    serving = threading.Thread(target=serve, args=(theirs,))
    serving.start()
    answers = []
    for message in (wanted, *turns):
        ours.send(message)
        assert ours.poll(PATIENCE_S)
        answers.append(ours.recv())
        if isinstance(answers[-1], Exception):
            break
    ours.close()
    serving.join(PATIENCE_S)
    assert not serving.is_alive()
    return answers


def test_a_job_gets_workers_and_leaves(ray, tmp_path):
    opened, first, last = served(tmp_path, Turn(wait=0.5), Turn(wait=0, closes=True))
    assert opened is None
    assert isinstance(first, Turned)
    assert [place["num_cpus"] for place in ray.placed] == [2]
    assert (last.alive, ray.actors) == (False, {})
    assert ray.left == 1
    assert not (tmp_path / "r").exists()


def test_ray_that_is_started_here_is_alone(ray, tmp_path):
    served(tmp_path)
    asked = ray.asked
    assert (asked["address"], asked["num_cpus"]) == ("local", 2)
    assert asked["include_dashboard"] is False
    assert asked["_node_ip_address"] == "127.0.0.1"
    assert asked["_temp_dir"] == str(tmp_path / "r")
    assert asked["object_store_memory"] < 100e6


@pytest.mark.parametrize("address", [None, "head:6379", "ray://head:10001"])
def test_nothing_is_uploaded(ray, tmp_path, address):
    served(tmp_path, address=address)
    assert ray.asked["address"] == (address or "local")
    assert "runtime_env" not in ray.asked
    assert ray.asked["log_to_driver"] is False


def test_a_ray_that_does_not_start_is_a_refusal(ray, tmp_path):
    ray.fails = RuntimeError("Version mismatch: the cluster has\n Ray 2.1")
    (refusal,) = served(tmp_path, address="head:6379")
    assert isinstance(refusal, EngineError)
    assert "head:6379" in str(refusal)
    assert not (tmp_path / "r").exists()


def test_a_ray_that_cannot_be_imported_is_a_refusal(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_ray(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError("no libstdc++")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    (refusal,) = served(tmp_path)
    assert "no libstdc++" in str(refusal)
    assert "detect-video[ray]" in str(refusal)


def test_a_turn_that_waits_for_long_looks_often(ray, tmp_path, monkeypatch):
    """An event is then handled before the wait ends."""
    looks = []
    real = workers.Workers._look
    monkeypatch.setattr(
        workers.Workers, "_look", lambda self, s: looks.append(s) or real(self, min(s, 0.01))
    )
    served(tmp_path, Turn(wait=1.0))
    assert looks
    assert max(looks) <= 0.2
