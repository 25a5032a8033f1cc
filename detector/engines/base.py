"""The contract of an engine: a graph goes in, float32 arrays come out.

An engine never resizes, decodes, draws, prints or looks at a clock. The loop measures it from outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.errors import DetectVideoError, EngineError, UsageError
from detector.models.base import Network
from detector.models.graph.halves import sensitive_nodes


class Request:
    """One place to put a batch and one call to run it. Many may be filled while others are inside ``infer``.

    ``slot``: writable u8 RGB [B, H, W, 3]. The caller fills rows 0..n-1. ``device_ms``: what the last ``infer`` took on
    the device, as the device reports it, upload and read-back included; None where it reports none.
    """

    slot: NDArray[np.uint8]
    device_ms: float | None = None

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        """Runs the batch; blocks until the result is there, with the GIL released; returns one array per output.

        Each array is float32 with n rows, valid until this request's next ``infer``. A ragged last batch (n < B)
        runs full and is cut. Waits for this request's own work only, never for the whole device.
        """
        raise NotImplementedError


PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")

BuildProgress = Callable[[str, int, int], bool]
"""(what is being done, steps done, steps in all) -> whether to go on."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the user may ask of any engine. 0 threads = the engine's own choice; 0 concurrency = likewise.

    ``precision``: what was asked for; the network handed over with it is already the graph that the engine wants for
    that (``PRECISIONS`` of its module). ``device``: "auto", "cpu", "cuda" or "cuda:N". ``artefact``: the file that the
    module's ``build`` made of this network. ``own``: the engine's own options, of its module's ``OPTIONS``.
    """

    batch: int = 1
    requests: int = 2
    threads: int = 0
    concurrency: int = 0
    precision: str = "fp32"
    device: str = "auto"
    device_memory: str = "auto"
    artefact: str | None = None
    own: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerExecution:
    """One layer as the engine really ran it; ``median_ms`` only where it was profiled.

    ``precision``: of ``PRECISIONS``, or another type's name as it is (u8, int32). ``nodes``: the graph's nodes that
    it stands for, where it fused several or gave them a name of its own; empty: the one of that name.
    """

    name: str
    type: str
    precision: str
    median_ms: float | None = None
    nodes: tuple[str, ...] = ()


class Engine:
    """``requests`` hold slots; ``concurrency`` says how many may be inside ``infer`` at once, each from its own
    thread. ``precision`` is what was asked for (``execution`` tells what became of it), ``threads`` the CPU threads of
    one request, ``device`` where it runs ("cpu", "cuda:0"), ``notes`` lines for the user."""

    name: str
    requests: Sequence[Request]
    concurrency: int = 1
    precision: str = "fp32"
    threads: int = 1
    device: str = "cpu"
    notes: Sequence[str] = ()

    def execution(self) -> list[LayerExecution]:
        """Layers with the precision really executed; empty where the engine cannot tell."""
        return []

    def device_ms(self) -> float | None:
        """Device time of the last request, as the device reports it; None where it reports none."""
        return None

    def close(self) -> None:
        """Releases everything. May be called twice."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        self.close()


@contextmanager
def translated(engine: str, doing: str) -> Iterator[None]:
    """Whatever an engine's library raises becomes one line of ours; used at the door to it and nowhere else."""
    try:
        yield
    except DetectVideoError:
        raise
    except Exception as exc:
        raise EngineError(
            f"engine {engine}: failed to {doing}: {' '.join(str(exc).split())}"
        ) from exc


def cpu_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_threads(options: EngineOptions, concurrency: int = 0) -> int:
    """Threads of one request on a CPU: as asked, else the cores, shared out among the requests that run at once."""
    return options.threads or max(1, cpu_cores() // max(1, concurrency or options.concurrency))


# An own option of the engines that convert a graph to bf16 by themselves, and what it does.
BF16_OPTION = {
    "bf16": "mixed (default): what bf16 hurts most stays fp32; all: every layer in bf16, faster, less exact"
}


def stays_fp32(network: Network, options: EngineOptions) -> set[str]:
    """Names of the nodes that an engine with ``BF16_OPTION`` keeps in float32; none in another precision."""
    chosen = options.own.get("bf16", "mixed")
    if chosen not in ("mixed", "all"):
        raise UsageError(f"--engine-options bf16={chosen}: what runs in bf16 is mixed or all")
    return sensitive_nodes(network.graph) if options.precision == "bf16" and chosen == "mixed" else set()


MAX_STREAMS = 8


def streams(options: EngineOptions) -> int:
    """Requests of few threads each that together fill the cores, for engines whose throughput is best so.

    Threads of one request wait for each other at every layer, requests do not (docs/performance.md has the figures).
    At most 8: with more, pictures and results of that many batches lie in memory, and one reader no longer feeds them.
    """
    return min(MAX_STREAMS, max(1, cpu_cores() // max(1, options.threads)))
