"""nvprof's words in today's: its metrics as Nsight Compute's, and its other answers as those of today's tools."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

ANSWERS = (
    ("nvprof ./app (time of kernels and calls)", "nsys profile --stats=true; detect-video profile"),
    ("nvprof --print-gpu-trace", "nsys profile -t cuda,nvtx; detect-video report RUN --format trace"),
    ("nvprof --metrics a,b", "ncu --metrics (the table above)"),
    ("nvprof --dependency-analysis (critical path)", "nothing of NVIDIA's; detect-video profile --only critical_path, "
     "or profile --nsys FILE.sqlite from a recording"),
    ("nvprof --cpu-profiling on", "nsys profile --sample=cpu; detect-video profile --only python"),
    ("nvprof --unified-memory-profiling", "nsys profile --cuda-um-gpu-page-faults=true"),
    ("nvprof -o run.nvvp and the Visual Profiler", "nsys-ui, or report --format trace in ui.perfetto.dev"),
)  # fmt: skip


def print_metrics(console: Console, metrics: Mapping[str, Mapping[str, str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("nvprof", "ncu", "says"):
        table.add_column(name, overflow="fold")
    for name, row in metrics.items():
        table.add_row(name, row["ncu"], row["says"])
    today = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("what nvprof was asked", "what answers it today"):
        today.add_column(name, overflow="fold")
    for asked, answer in ANSWERS:
        today.add_row(asked, answer)
    support = "nvprof does not support GPUs of compute capability 8.0 and later; Volta is the last that it fully does."
    console.print(Group(table, today, Text(support)))
