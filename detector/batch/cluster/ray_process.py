"""The process that speaks to Ray, for one job on one machine.

Ray may end the process that uses it (where the cluster's head is gone for long), handles its
signals and prints: none of that may happen to a job. So Ray is imported here only. The job writes a
line, a ``Turn``, and reads one, a ``Turned``. Where the job is gone, its pipe is closed, this
process ends, and with it what Ray has started for it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from detector.batch.cluster.messages import (
    NO_MEMORY,
    NOT_INSTALLED,
    ORIGIN,
    Connect,
    Connected,
    NewActor,
    Node,
    Reply,
    Turn,
    Turned,
    to_text,
)
from detector.core.errors import DetectVideoError, EngineError
from detector.core.session import codec

STORE_BYTES = 80 << 20  # about the least that Ray allows; nothing of ours goes into it
NODES_EVERY_S = 2.0
LONGEST = 400  # characters of what Ray says in a message
NOT_THERE = "No module named 'detector"
RAN_LOW = "running low on memory"
USED = re.compile(r"[\d.]+ ?\w?B used / [\d.]+ ?\w?B limit")


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGHUP):  # the job decides what these mean
        signal.signal(number, signal.SIG_IGN)
    serve(sys.stdin, replies)


def serve(orders: TextIO, replies: TextIO) -> None:
    connect = codec.from_json(orders.readline(), Connect, ORIGIN)
    cluster = None
    try:
        try:
            cluster = Cluster(connect)
        except DetectVideoError as error:
            _say(replies, Connected(error=str(error), exit_code=error.exit_code))
            return
        _say(replies, Connected())
        for line in orders:
            _say(replies, cluster.turn(codec.from_json(line, Turn, ORIGIN)))
    finally:
        if cluster is not None:
            cluster.close()
        _leave()
        shutil.rmtree(connect.folder, ignore_errors=True)


def _say(replies: TextIO, message: object) -> None:
    replies.write(to_text(message) + "\n")
    replies.flush()


def _leave() -> None:
    """Ends Ray where this process has started it, and its actors wherever they are."""
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


class Cluster:
    """A connection to Ray, and the actors of one job."""

    def __init__(self, connect: Connect) -> None:
        """Raises EngineError."""
        self._ray = _import_ray()
        _open(self._ray, connect)
        from detector.batch.cluster.actor import Worker

        self._worker = self._ray.remote(Worker)
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}  # what is awaited -> number of the actor
        self._nodes: list[Node] = []
        self._heard = time.monotonic()
        self._first, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._watch_nodes, daemon=True).start()
        self._first.wait(NODES_EVERY_S)

    def _watch_nodes(self) -> None:
        """Where the head does not answer, the call hangs or fails, and the time goes on."""
        while True:
            with suppress(Exception):
                self._nodes = list(_alive(self._ray.nodes()))
                self._heard = time.monotonic()
                self._first.set()
            if self._over.wait(NODES_EVERY_S):
                return

    def close(self) -> None:
        self._over.set()

    def turn(self, turn: Turn) -> Turned:
        for number in turn.ends:
            self._end(number)
        for place in turn.places:
            self._actors[place.number] = self._worker.options(**_options(place)).remote()
        lost = []
        for call in turn.calls:
            try:
                method = getattr(self._actors[call.number], call.method)
                self._calls[method.remote(call.text)] = call.number
            except Exception as error:
                lost.append(Reply(number=call.number, lost=describe(error)))
        replies = lost or self._wait(turn.wait)
        return Turned(replies=replies, nodes=self._nodes, silent_s=time.monotonic() - self._heard)

    def _end(self, number: int) -> None:
        actor = self._actors.pop(number, None)
        self._calls = {ref: of for ref, of in self._calls.items() if of != number}
        if actor is not None:
            with suppress(Exception):
                self._ray.kill(actor, no_restart=True)

    def _wait(self, seconds: float) -> list[Reply]:
        awaited = list(self._calls)
        if not awaited:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(awaited, num_returns=1, timeout=seconds)
        if ready:  # and what came at the same moment
            ready, _ = self._ray.wait(awaited, num_returns=len(awaited), timeout=0)
        return [self._take(ref) for ref in ready]

    def _take(self, ref: Any) -> Reply:
        number = self._calls.pop(ref)
        try:
            return Reply(number=number, text=self._ray.get(ref))
        except Exception as error:
            return Reply(number=number, lost=describe(error))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise EngineError(
            f"--on ray: ray cannot be imported ({error}); pip install 'detect-video[ray]'"
        ) from error
    return ray


def _open(ray: Any, connect: Connect) -> None:
    """Nothing is uploaded: there is no runtime environment, workers run what their nodes have."""
    address = connect.address
    try:
        if address is None:
            ray.init(
                address="local",
                num_cpus=connect.cores,
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                log_to_driver=False,
                configure_logging=False,
                _node_ip_address="127.0.0.1",
                _temp_dir=connect.folder,
            )
        elif "://" in address:
            ray.init(address=address, log_to_driver=False)
        else:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray has a dozen kinds, RuntimeError and ConnectionError among them
        where = "Ray did not start on this machine" if address is None else address
        raise EngineError(f"--on ray: {where}: {describe(error)}") from error


def _alive(nodes: Sequence[dict[str, Any]]) -> Iterable[Node]:
    for node in nodes:
        if node["Alive"]:
            has = node["Resources"]
            yield Node(
                id=node["NodeID"],
                host=node["NodeManagerHostname"],
                cpus=has.get("CPU", 0.0),
                gpus=has.get("GPU", 0.0),
            )


def _options(place: NewActor) -> dict[str, Any]:
    """Ray neither restarts an actor nor repeats a call: what is tried again is the job's to say."""
    options: dict[str, Any] = {
        "num_cpus": place.cpus,
        "num_gpus": place.gpus,
        "max_restarts": 0,
        "max_task_retries": 0,
    }
    if place.avoid:
        options["label_selector"] = {"ray.io/node-id": f"!in({','.join(place.avoid)})"}
    return options


def describe(error: Exception) -> str:
    """What Ray says in one line, without its page of advice."""
    text = str(error)
    if NOT_THERE in text:
        return NOT_INSTALLED
    if RAN_LOW in text:
        used = USED.search(text)
        return (
            f"{NO_MEMORY}{f' ({used[0]})' if used else ''}; give fewer --workers, or nodes with "
            "more memory (RAY_memory_usage_threshold is the share at which Ray does so)"
        )
    cause = getattr(error, "cause", None)  # what was raised in an actor
    if isinstance(cause, Exception):
        text = f"{type(cause).__name__}: {cause}"
    words = " ".join(text.split()) or type(error).__name__
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} ..."
