"""Compute the cores and GPUs that a worker needs, and how many such workers fit on a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CORES = 2  # cores per worker, the same as for a job on one machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    id: str
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Need:
    cpus: int = CORES
    gpus: int = 0


def need_of(
    config: Mapping[str, Mapping[str, Any]], nodes: Sequence[Node], workers: int | None = None
) -> Need:
    """Return what one worker needs. For inference on a GPU: one GPU and its share of the node's
    cores. Otherwise --threads cores; by default two, or one if not all ``workers`` fit with two."""
    runtime = config["runtime"]
    with_gpu = [node for node in nodes if node.gpus >= 1]
    device = runtime["device"]
    if runtime["engine"] == "trt" or device.startswith("cuda") or (device == "auto" and with_gpu):
        shares = [int(node.cpus // node.gpus) for node in with_gpu]
        return Need(max(1, min(shares, default=CORES)), 1)
    widest = max((int(node.cpus) for node in nodes), default=CORES)
    cores = runtime["threads"] or CORES
    if not runtime["threads"] and workers and room_of(Need(cores), nodes) < workers:
        cores = 1
    return Need(max(1, min(cores, widest)))


def room_of(need: Need, nodes: Sequence[Node], avoid: Collection[str] = ()) -> int:
    return sum(_fit(need, node) for node in nodes if node.id not in avoid)


def _fit(need: Need, node: Node) -> int:
    fit = int(node.cpus // need.cpus)
    return min(fit, int(node.gpus // need.gpus)) if need.gpus else fit
