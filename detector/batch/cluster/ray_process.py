"""The process that talks to Ray, for one job on one machine.

Only this process imports Ray. Ray prints, handles signals, and may kill the process that imports
it. If the job ends or is killed, its pipe is closed. This process then disconnects from Ray,
removes Ray's files, and ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from detector.batch.cluster.messages import Open
from detector.batch.cluster.room import Node
from detector.batch.cluster.workers import Workers, describe
from detector.core.errors import DetectVideoError, EngineError
from detector.core.run.child import open_pipe

STORE_BYTES = 80 << 20  # about the minimum that Ray allows; we store no objects
NODES_EVERY_S = 2.0
LEAVING_S = 5.0


def main(pipe: int) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # the job handles them
        signal.signal(number, signal.SIG_IGN)
    serve(open_pipe(pipe))


def serve(job: Connection) -> None:
    wanted: Open = job.recv()
    try:
        workers = _open(wanted)
        job.send(None)
        while True:
            job.send(workers.turn(job.recv()))
    except DetectVideoError as error:
        job.send(error)
    except (EOFError, OSError):
        pass  # the job has ended, or closed the pipe
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()  # also ends the actors, and Ray itself if we started it
        _remove(wanted.folder)


def _remove(folder: str) -> None:
    """Remove the folder. Retry for a while: Ray's processes may still write into it."""
    end = time.monotonic() + LEAVING_S
    while os.path.exists(folder) and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def _open(wanted: Open) -> Workers:
    """Connect to Ray without a runtime environment, so nothing is uploaded. Raises EngineError."""
    try:
        import ray
    except ImportError as error:
        raise EngineError(
            f"--on ray: cannot import ray ({error}); run: pip install 'detect-video[ray]'"
        ) from error
    address = wanted.address
    options: dict[str, Any] = {"address": address, "log_to_driver": False}
    if address is None:
        options |= {
            "address": "local",
            "num_cpus": wanted.cores,
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": wanted.folder,
        }
    if address is None or "://" not in address:
        options["configure_logging"] = False
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises a dozen types, such as RuntimeError, ConnectionError
        where = "Ray did not start on this machine" if address is None else address
        raise EngineError(f"--on ray: {where}: {describe(error)}") from error
    from detector.batch.cluster.actor import Worker

    return Workers(ray, ray.remote(Worker), WatchedNodes(ray), wanted)


class WatchedNodes:
    """The cluster's nodes. A thread lists them: ``ray.nodes()`` hangs if the head node hangs."""

    def __init__(self, ray: Any) -> None:
        self.found: Sequence[Node] = ()
        self._ray, self._heard = ray, time.monotonic()
        first = threading.Event()
        threading.Thread(target=self._watch, args=(first,), daemon=True).start()
        first.wait(NODES_EVERY_S)

    def silent_s(self) -> float:
        return time.monotonic() - self._heard

    def _watch(self, first: threading.Event) -> None:
        while True:
            with suppress(Exception):
                self.found = [_node(one) for one in self._ray.nodes() if one["Alive"]]
                self._heard = time.monotonic()
                first.set()
            time.sleep(NODES_EVERY_S)


def _node(entry: dict[str, Any]) -> Node:
    resources = entry["Resources"]
    cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    return Node(id=entry["NodeID"], cpus=cpus, gpus=gpus)
