"""The process that connects to Ray, tested with a fake Ray that records requests."""

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
        self.init_options: dict[str, Any] = {}
        self.shutdowns = 0
        self.error: Exception | None = None

    def init(self, **init_options: Any) -> None:
        self.init_options = init_options
        if self.error is not None:
            raise self.error

    def remote(self, kind: type | None = None) -> Any:
        return super().remote() if kind is None else self

    def nodes(self) -> list[dict[str, Any]]:
        return NODES

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.fixture
def ray(monkeypatch, tmp_path):
    fake = Ray(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", fake)
    (tmp_path / "r").mkdir()
    return fake


def serve_turns(folder: Path, *turns: Turn, address: str | None = None) -> list[Any]:
    hello = Hello(place=str(folder), token_file="token", token="abc")
    load = load_of(folder)
    opening = Open(
        address=address, cores=2, folder=str(folder / "r"), workers=1, hello=hello, load=load
    )
    ours, theirs = Pipe()
    serving = threading.Thread(target=serve, args=(theirs,))
    serving.start()
    answers = []
    for message in (opening, *turns):
        ours.send(message)
        assert ours.poll(PATIENCE_S)
        answers.append(ours.recv())
        if isinstance(answers[-1], Exception):
            break
    ours.close()
    serving.join(PATIENCE_S)
    assert not serving.is_alive()
    return answers


def test_request_to_close_ends_the_actors_and_shuts_ray_down(ray, tmp_path):
    opened, first, last = serve_turns(tmp_path, Turn(wait=0.5), Turn(wait=0, closes=True))
    assert opened is None
    assert isinstance(first, Turned)
    assert [place["num_cpus"] for place in ray.placed] == [2]
    assert (last.alive, ray.actors) == (False, {})
    assert ray.shutdowns == 1
    assert not (tmp_path / "r").exists()


def test_local_ray_listens_on_localhost_only_and_uses_little_memory(ray, tmp_path):
    serve_turns(tmp_path)
    options = ray.init_options
    assert (options["address"], options["num_cpus"]) == ("local", 2)
    assert options["include_dashboard"] is False
    assert options["_node_ip_address"] == "127.0.0.1"
    assert options["_temp_dir"] == str(tmp_path / "r")
    assert options["object_store_memory"] < 100e6


@pytest.mark.parametrize("address", [None, "head:6379", "ray://head:10001"])
def test_no_runtime_environment_is_uploaded(ray, tmp_path, address):
    serve_turns(tmp_path, address=address)
    assert ray.init_options["address"] == (address or "local")
    assert "runtime_env" not in ray.init_options
    assert ray.init_options["log_to_driver"] is False


def test_failed_connection_returns_an_engine_error_that_names_the_address(ray, tmp_path):
    ray.error = RuntimeError("Version mismatch: the cluster has\n Ray 2.1")
    (error,) = serve_turns(tmp_path, address="head:6379")
    assert isinstance(error, EngineError)
    assert "head:6379" in str(error)
    assert not (tmp_path / "r").exists()


def test_error_for_a_failed_import_of_ray_names_the_extra_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_ray(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError("no libstdc++")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    (error,) = serve_turns(tmp_path)
    assert "no libstdc++" in str(error)
    assert "detect-video[ray]" in str(error)


def test_long_turn_polls_ray_at_least_every_200_ms(ray, tmp_path, monkeypatch):
    waits = []
    real = workers.Workers._look
    monkeypatch.setattr(
        workers.Workers, "_look", lambda self, s: waits.append(s) or real(self, min(s, 0.01))
    )
    serve_turns(tmp_path, Turn(wait=1.0))
    assert waits
    assert max(waits) <= 0.2
