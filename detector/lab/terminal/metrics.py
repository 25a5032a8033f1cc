"""What ``metrics`` prints: nvprof's names, and what answers them today."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from detector.core.terminal.console import SafeConsole
from detector.core.terminal.models import new_table

# What nvprof was asked -> what answers it today, besides its metrics.
ANSWERS = (
    ("nvprof ./app (time of kernels and calls)", "nsys profile --stats=true; detect-video profile"),
    (
        "nvprof --print-gpu-trace",
        "nsys profile -t cuda,nvtx; detect-video report RUN --format trace",
    ),
    ("nvprof --metrics a,b and --events a,b", "ncu --metrics (the names above)"),
    ("nvprof --query-metrics, --query-events", "ncu --query-metrics; detect-video metrics"),
    (
        "nvprof --dependency-analysis (critical path)",
        "no tool of NVIDIA's; detect-video profile --only critical_path, "
        "or profile --nsys FILE.sqlite from a recording",
    ),
    ("nvprof --cpu-profiling on", "nsys profile --sample=cpu; detect-video profile --only python"),
    ("nvprof --unified-memory-profiling", "nsys profile --cuda-um-gpu-page-faults=true"),
    (
        "nvprof -o run.nvvp and the Visual Profiler",
        "nsys-ui, or report --format trace in ui.perfetto.dev",
    ),
)


def print_metrics(
    console: SafeConsole,
    metrics: Mapping[str, Mapping[str, str | None]],
    events: Mapping[str, Mapping[str, str | None]],
) -> None:
    """The metrics and events of nvprof in the words of Nsight Compute, and what replaces its other
    answers."""
    tables = [
        _names_table(title, rows)
        for title, rows in (("metric of nvprof", metrics), ("event of nvprof", events))
        if rows
    ]
    today = new_table(("what nvprof was asked", "what answers it today"))
    for asked, answer in ANSWERS:
        today.add_row(asked, answer)
    said = (
        "Source: NVIDIA, Nsight Compute CLI, nvprof Transition Guide (compute capability 7.0 and "
        "later). What has no counterpart there names the nearest, as this program sees it. A "
        "metric is made of counters; an event is one counter of the hardware."
    )
    support = (
        "nvprof does not support GPUs of compute capability 8.0 and later; "
        "Volta is the last one that it supports fully."
    )
    console.print(Group(*tables, today, Text(said), Text(support)))


def _names_table(title: str, rows: Mapping[str, Mapping[str, str | None]]) -> Table:
    table = new_table((title, "ncu", "says"))
    for name, row in rows.items():
        nearest = f"; nearest: {near}" if (near := row["nearest"]) else ""
        table.add_row(name, row["ncu"] or f"no counterpart{nearest}", row["says"] or "")
    return table
