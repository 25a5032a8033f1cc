"""Memory, energy and idle time of a GPU run, as its session reports them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu import machine as here
from gpu.children import ROOT, detect_video
from gpu.findings import Row, rehearsing, row
from gpu.machine import CLIP
from gpu.stand_ins import fake_nvml


def session() -> Iterator[Row]:
    if (why := here.torch_lacks()) is not None:
        yield row("torch", why, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {}
        if rehearsing():
            first = fake_nvml(Path(folder) / "nvml")
            environment = {"PYTHONPATH": os.pathsep.join((first, str(ROOT)))}
        no_graphs = ("--engine-options", "graphs=0")
        passes = "memory,energy,device"
        eager = profiled("fp32, no graphs", passes, folder, *no_graphs, **environment)
        if isinstance(eager, str):
            yield row("profile --only memory,energy,device", eager, False)
            return
        yield from memory_rows(eager.get("memory") or {})
        yield from energy_rows(eager.get("energy") or {})
        if rehearsing():
            yield from hand_made()
            return
        yield from device_rows("fp32, no graphs", eager.get("device") or {})
        graphs = profiled("fp32", "device", folder)
        if isinstance(graphs, str):
            yield row("profile --only device, with CUDA graphs", graphs, False)
            return
        yield from device_rows("fp32", graphs.get("device") or {})
        idle_times = (eager["device"]["idle_ms"], graphs["device"]["idle_ms"])
        sums = [sum(idle.values()) for idle in idle_times]
        value = f"{sums[0]:.2f} ms idle in eager mode, {sums[1]:.2f} ms with graphs"
        yield row("device: CUDA graphs leave less idle time", value, sums[1] < sums[0])


def profiled(name: str, passes: str, folder: str, *words: str, **own: str) -> dict[str, Any] | str:
    """Run ``profile``; return its document, or its error."""
    count = "12" if rehearsing() else "120"
    place = f"{folder}/{name.replace(' ', '-')}"
    code, out, err = detect_video(
        *("profile", str(CLIP), "--engine", "torch", "--device", here.device(), "--only", passes),
        *("--frames", count, "--no-video", "--json", "--run-dir", place, "-o", f"{place}.jsonl"),
        *words,
        cwd=folder,
        **own,
    )
    return json.loads(out) if code == 0 else f"exit {code}: {err[-300:]}"


def memory_rows(facts: dict[str, Any]) -> Iterator[Row]:
    gpu = facts.get("gpu") or {}
    for name in ("used_mb", "torch_peak_allocated_mb", "torch_peak_reserved_mb"):
        if rehearsing() and name.startswith("torch"):
            yield row(f"memory: {name}", "torch has no CUDA here", None)
            continue
        value = gpu.get(name)
        yield row(f"memory: {name}", value or gpu or facts, bool(value and value > 0))


def energy_rows(facts: dict[str, Any]) -> Iterator[Row]:
    counters = facts.get("counters") or []
    yield row("energy: counters", counters or facts, "gpu" in counters)
    for tag in ("idle", "run"):
        joules = next((r.get("gpu") for r in facts.get("rows", []) if r["tag"] == tag), None)
        yield row(f"energy: joules of the GPU, {tag}", joules, bool(joules and joules > 0))
    watts = (facts.get("idle_watts") or {}).get("gpu")
    yield row("energy: watts of the idle GPU", watts, bool(watts and watts > 0))


def device_rows(name: str, facts: dict[str, Any]) -> Iterator[Row]:
    if "busy_ms" not in facts:
        yield row(f"device, {name}", facts.get("reason", "no facts"), False)
        return
    busy, window = facts["busy_ms"], facts["window_ms"]
    idle = sum(facts["idle_ms"].values())
    value = (
        f"{busy:.2f} ms busy + {idle:.2f} ms idle in {window:.2f} ms, {facts['kernels']} kernels"
    )
    adds_up = abs(busy + idle - window) < 0.01 * window
    yield row(f"device, {name}: busy and idle time", value, busy > 0 and adds_up)
    bound = "launch-bound" if facts["launch_bound"] else "not launch-bound"
    figures = f"{busy / window:.0%} busy, idle by cause {facts['idle_ms']}"
    yield row(f"device, {name}: the launch-bound test", f"{bound}: {figures}")


def hand_made() -> Iterator[Row]:
    """Check ``device_facts`` on two timelines with known results, instead of a GPU's recording."""
    from detector.lab.analysis.layers import device_facts

    host = [(0.0, 100.0)]
    for word, kernels, bound in (
        ("a tenth busy", [(t, t + 1.0) for t in range(0, 100, 10)], True),
        ("nine tenths busy", [(t, t + 9.0) for t in range(0, 100, 10)], False),
    ):
        facts = device_facts(
            [(float(a), float(b)) for a, b in kernels], host, device="none", batches=1
        )
        value = f"{facts.busy_share:.0%} busy, launch-bound: {facts.launch_bound}"
        yield row(f"device, hand-made timeline, {word}", value, facts.launch_bound is bound)
