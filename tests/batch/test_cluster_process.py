"""The process that speaks to Ray, on a Ray that only notes what it is asked."""

from __future__ import annotations

import builtins
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from detector.batch.cluster.messages import (
    NO_MEMORY,
    NOT_INSTALLED,
    Call,
    Connect,
    NewActor,
    Turn,
    to_text,
)
from detector.batch.cluster.ray_process import describe, serve

NODES = [
    {"NodeID": "n1", "NodeManagerHostname": "a", "Alive": True, "Resources": {"CPU": 2.0}},
    {"NodeID": "n2", "NodeManagerHostname": "b", "Alive": False, "Resources": {}},
]


class FakeRay:
    """An actor's call has its answer at once, but for ``look``, which never has; ``work`` fails."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.options: list[dict[str, Any]] = []
        self.killed: list[int] = []
        self.left = 0
        self.fails: Exception | None = None

    def init(self, **asked: Any) -> None:
        self.asked = asked
        if self.fails is not None:
            raise self.fails

    def remote(self, kind: type) -> Any:
        return _Kind(self)

    def nodes(self) -> list[dict[str, Any]]:
        return NODES

    def wait(self, refs: list, num_returns: int, timeout: float) -> tuple[list, list]:
        ready = [ref for ref in refs if ref[1] != "look"]
        return ready[:num_returns], []

    def get(self, ref: tuple[int, str, str, int]) -> str:
        if ref[1] == "work":
            raise RuntimeError("The actor died.\n\n  Its node has died.")
        return f"{ref[1]} {ref[2]}"

    def kill(self, actor: _Actor, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(actor.number)

    def shutdown(self) -> None:
        self.left += 1


class _Kind:
    def __init__(self, ray: FakeRay) -> None:
        self.ray = ray

    def options(self, **given: Any) -> _Kind:
        self.ray.options.append(given)
        return self

    def remote(self) -> _Actor:
        return _Actor(len(self.ray.options) - 1)


class _Actor:
    def __init__(self, number: int) -> None:
        self.number, self.calls = number, 0

    def __getattr__(self, method: str) -> Any:
        actor = self

        class Method:
            @staticmethod
            def remote(text: str) -> tuple[int, str, str, int]:
                actor.calls += 1
                return (actor.number, method, text, actor.calls)

        return Method


@pytest.fixture
def ray(monkeypatch):
    made = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def served(folder: Path, *turns: Turn, address: str | None = None) -> list[dict[str, Any]]:
    connect = Connect(address=address, cores=2, folder=str(folder))
    orders = io.StringIO("".join(to_text(one) + "\n" for one in (connect, *turns)))
    replies = io.StringIO()
    serve(orders, replies)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def test_actors_are_placed_called_and_ended(ray, tmp_path):
    (tmp_path / "r").mkdir()
    places = [NewActor(number=0, cpus=2), NewActor(number=1, cpus=4, gpus=1, avoid=["n2", "n3"])]
    hellos = [Call(number=number, method="hello", text="x") for number in (0, 1)]
    _, first, second, third = served(
        tmp_path / "r",
        Turn(wait=0.1, places=places, calls=hellos),
        Turn(wait=0.0, calls=[Call(number=0, method="look"), Call(number=1, method="work")]),
        Turn(wait=0.0, ends=[0, 1], places=[NewActor(number=1, cpus=2)]),
    )
    assert [(one["number"], one["text"]) for one in first["replies"]] == [
        (0, "hello x"),
        (1, "hello x"),
    ]
    assert first["nodes"] == [{"id": "n1", "host": "a", "cpus": 2.0, "gpus": 0.0}]
    assert [(one["number"], one["lost"]) for one in second["replies"]] == [
        (1, "The actor died. Its node has died.")
    ]
    assert third["replies"] == []  # nobody waits for the one that was ended
    assert ray.killed == [0, 1]
    assert ray.options[1]["num_gpus"] == 1
    assert ray.options[1]["label_selector"] == {"ray.io/node-id": "!in(n2,n3)"}
    assert all(one["max_restarts"] == one["max_task_retries"] == 0 for one in ray.options)
    assert ray.left == 1
    assert not (tmp_path / "r").exists()


def test_ray_that_is_started_here_is_alone(ray, tmp_path):
    served(tmp_path / "r")
    asked = ray.asked
    assert (asked["address"], asked["num_cpus"]) == ("local", 2)
    assert asked["include_dashboard"] is False
    assert asked["_node_ip_address"] == "127.0.0.1"
    assert asked["_temp_dir"] == str(tmp_path / "r")
    assert asked["object_store_memory"] < 100e6


@pytest.mark.parametrize("address", [None, "head:6379", "ray://head:10001"])
def test_nothing_is_uploaded(ray, tmp_path, address):
    served(tmp_path / "r", address=address)
    assert ray.asked["address"] == address or address is None
    assert "runtime_env" not in ray.asked
    assert ray.asked["log_to_driver"] is False


def test_a_ray_that_does_not_start_is_a_refusal(ray, tmp_path):
    ray.fails = RuntimeError("Version mismatch: the cluster has\n Ray 2.1")
    (refusal,) = served(tmp_path / "r", address="head:6379")
    assert refusal["exit_code"] == 5
    assert "head:6379: Version mismatch: the cluster has Ray 2.1" in refusal["error"]


def test_a_ray_that_cannot_be_imported_is_a_refusal(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_ray(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError("no libstdc++")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    (refusal,) = served(tmp_path / "r")
    assert "no libstdc++" in refusal["error"]
    assert "detect-video[ray]" in refusal["error"]


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
    assert describe(RuntimeError("No module named 'detector.batch.cluster'")) == NOT_INSTALLED
