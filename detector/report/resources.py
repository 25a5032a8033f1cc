"""What a profile found of memory, energy, the interpreter and the processor's counters, on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from detector.report.cells import new_table, number

LONGEST_FUNCTIONS, LARGEST_OWNERS = 10, 8


def memory_text(facts: dict[str, Any]) -> Text:
    slope = facts["slope_mb_per_1000_frames"]
    growth = facts["slope_reason"] if slope is None else f"{slope:+.2f} MB per 1000 frames in the second half"
    peaks = {name: mb for name, mb in facts.get("peak_by_stage_mb", {}).items() if mb is not None}
    said = f"memory: {facts['start_mb']:.0f} MB at the start, {facts['peak_mb']:.0f} MB at the peak; growth: {growth}"
    if peaks:
        said += "; highest while " + ", ".join(f"{name} {mb:.0f}" for name, mb in peaks.items()) + " ran"
    gpu = facts.get("gpu", {})
    if gpu.get("available"):
        torch = gpu.get("torch_peak_allocated_mb")
        said += f"; GPU {gpu['used_mb']:.0f} MB used" + (f", torch at most {torch:.0f}" if torch is not None else "")
    return Text(said)


def energy_table(facts: dict[str, Any]) -> Group:
    tags = [tag for tag in ("package", "core", "dram", "gpu") if any(tag in row for row in facts["rows"])]
    table = new_table("energy (idle power taken off the run)", "of", "seconds", *(f"{tag} J" for tag in tags),
                      "J a frame")  # fmt: skip
    for row in facts["rows"]:
        joules = (number(row.get(tag), ".2f") for tag in tags)
        table.add_row(row["tag"], f"{row['duration']:.2f}", *joules, number(row["joules_per_frame"], ".4f"))
    each = facts["frames_per_joule"]
    return Group(table, *([Text(f"{each:.3g} frames a joule")] if each else []))


def python_table(facts: dict[str, Any]) -> Group:
    """Self times of rooms and libraries, and of single functions."""
    whole = sum(facts["folded"].values()) or 1.0
    owners = new_table("Python: self time under cProfile, one plain loop", "room or library", "self s", "share")
    for name, seconds in list(facts["folded"].items())[:LARGEST_OWNERS]:
        owners.add_row(name, f"{seconds:.3f}", f"{seconds / whole:.1%}")
    functions: Table = new_table("functions", "function", "calls", "self s", "with its callees s")
    for row in facts["functions"][:LONGEST_FUNCTIONS]:
        functions.add_row(row["function"], str(row["calls"]), f"{row['self_s']:.3f}", f"{row['total_s']:.3f}")
    return Group(owners, functions)


def counters_text(facts: dict[str, Any]) -> Text:
    return Text(
        f"counters: {number(facts['ipc'], '.2f')} instructions a cycle, "
        f"{number(facts['cache_miss_rate'], '.1%')} cache misses, "
        f"{number(facts['instructions_per_frame'], '.3g')} instructions a frame ({facts['includes']})"
    )
