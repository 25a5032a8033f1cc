"""Layers as an engine ran and timed them: one schema for every engine, each beside what this machine could do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detector.analysis.roofline import Peaks, placed

BYTES = {
    "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "int8": 1, "u8": 1, "s8": 1, "i8": 1, "bool": 1, "int32": 4, "int64": 8,
}  # fmt: skip
ALIKE = 0.1  # of a forward pass, by which the sum of its layers may differ
UNPLACED = {"gflops_s": None, "gbytes_s": None, "intensity": None, "utilisation": None, "bound": None}


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """``macs`` and ``elements`` (numbers read and written) of a whole batch; 0 of what stands for no node of the graph.
    ``nodes``: the nodes that it stands for."""

    name: str
    type: str
    precision: str
    ms: float
    macs: int = 0
    elements: int = 0
    nodes: tuple[str, ...] = ()


def layer_rows(layers: Sequence[TimedLayer], peaks: Peaks | None) -> list[dict[str, Any]]:
    """One row a layer, in the engine's order; shares add up to 1. ``peaks``: None where they are not known."""
    total = sum(layer.ms for layer in layers)
    launch_ms = min((layer.ms for layer in layers if layer.ms > 0), default=0.0)  # the cheapest: mostly its start
    rows = []
    for layer in layers:
        row = {
            "name": layer.name,
            "type": layer.type,
            "calls": 1,
            "ms": layer.ms,
            "share": layer.ms / total if total else 0.0,
            "macs": layer.macs,
            "flops": 2 * layer.macs,
            "bytes": layer.elements * BYTES.get(layer.precision, 0),
            "precision": layer.precision,
            "fused_from": list(layer.nodes),
        }
        rows.append(row | _place(row, peaks, launch_ms))
    return rows


def _place(row: Mapping[str, Any], peaks: Peaks | None, launch_ms: float) -> dict[str, Any]:
    if not row["bytes"]:  # an engine's own conversion: what it moves is not told
        return {**UNPLACED, "flag": "bytes unknown"}
    found = placed(row, peaks or Peaks({}, float("inf")), launch_ms)
    if peaks is None:
        found |= {"utilisation": None, "bound": None, "flag": "peaks unknown"}
    return found


def by_type(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sums of the rows of each type, longest first."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        one = found.setdefault(row["type"], {"type": row["type"], "layers": 0, "ms": 0.0, "share": 0.0, "macs": 0})
        one["layers"] += 1
        for key in ("ms", "share", "macs"):
            one[key] += row[key]
    return sorted(found.values(), key=lambda one: -one["ms"])


def agreement(
    sum_ms: float, run_sum_ms: float, forward_ms: float, profiled_ms: float, outside_ms: float, *, on_gpu: bool = False
) -> tuple[float, str | None]:
    """The sum over a forward pass - 1, and why, where that is more than it should be. ``run_sum_ms``: the median of
    the sums within a run; ``profiled_ms``: a pass under the profiler, ``outside_ms`` of it in no layer. ``on_gpu``: a
    forward pass holds the copies to and from the device too."""
    if not forward_ms:
        return 0.0, None
    off, in_a_run = sum_ms / forward_ms - 1, run_sum_ms / forward_ms - 1
    if abs(off) <= ALIKE:
        return off, None
    if sum_ms < (1 - ALIKE) * run_sum_ms:
        why = "within a run they agree: something else took the cores now and then, and no layer's median shows it"
    elif in_a_run > 0:
        cost = f"a pass under it takes {profiled_ms / forward_ms - 1:+.1%}"
        why = f"the profiler costs time inside the layers ({cost}), or the machine was busy meanwhile"
    elif outside_ms > ALIKE * profiled_ms:
        copies = ", the copies to and from the GPU among it" if on_gpu else ""
        why = f"{outside_ms:.3f} ms of a pass under the profiler are in no layer{copies}"
    else:
        why = "within a run under the profiler they agree: the machine was busier during the passes without it"
    return off, f"the layers' sum is {off:+.1%} off the forward pass; {why}"


def in_no_layer(facts: Mapping[str, Any]) -> str | None:
    """What a pass under the profiler consists of beside its layers; None of a session that does not tell."""
    if "outside_ms" not in facts:
        return None
    slower = facts["profiled_ms"] / facts["forward_ms"] - 1 if facts["forward_ms"] else 0.0
    return (
        f"a pass under the profiler takes {facts['profiled_ms']:.3f} ms ({slower:+.1%}), {facts['outside_ms']:.3f} ms "
        "of it in no layer: before, between and after them"
    )
