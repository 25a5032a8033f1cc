"""Print nvprof's names and their counterparts in Nsight Compute, for ``metrics``."""

from __future__ import annotations

from collections.abc import Mapping

from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces, table_fits

# A command of nvprof -> its replacement. Metrics are in cfg/nvprof_metrics.yaml.
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
        "no NVIDIA tool; detect-video profile --only critical_path, or profile --nsys "
        "FILE.sqlite from a recording",
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
    tables: list[Table | str] = []
    for title, rows in (("nvprof metric", metrics), ("nvprof event", events)):
        if rows and table_fits(console, names := _names_table(title, rows)):
            tables.append(names)
        else:  # the long names of ncu do not fit into columns
            tables += [line for one in rows.items() for line in _lines(title, *one)]
    command = Column("command", "nvprof command", value=lambda one: one[0])
    answer = Column("answer", "replacement today", value=lambda one: one[1])
    tables.append(Table("today", (command, answer), ANSWERS))
    source = (
        "Source: NVIDIA, Nsight Compute CLI, nvprof Transition Guide (compute capability "
        "7.0 and later). For a metric without a counterpart, this program names the "
        "nearest. A metric is computed from counters; an event is one hardware counter."
    )
    support = (
        "nvprof does not support GPUs of compute capability 8.0 and later; Volta is the "
        "last architecture that it fully supports."
    )
    print_pieces(console, [*tables, source, support])


def _names_table(title: str, rows: Mapping[str, Mapping[str, str | None]]) -> Table:
    columns = (
        Column("name", title, value=lambda one: one[0]),
        Column("ncu", value=lambda one: _counterpart(one[1])),
        Column("says", value=lambda one: one[1]["says"] or ""),
    )
    return Table("names", columns, list(rows.items()))


def _lines(title: str, name: str, row: Mapping[str, str | None]) -> tuple[str, str, str]:
    return f"{title}: {name}", f"  ncu: {_counterpart(row)}", f"  {row['says'] or ''}"


def _counterpart(row: Mapping[str, str | None]) -> str:
    near = f"; nearest: {row['nearest']}" if row["nearest"] else ""
    return row["ncu"] or f"no counterpart{near}"
