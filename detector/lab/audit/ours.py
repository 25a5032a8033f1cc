"""Our own documents as what rules look at: summaries as runs, their rows as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET

from detector.core.errors import UsageError
from detector.core.session.codec import from_builtins, parse_json, read_file
from detector.core.session.document import SessionDocument, Summary
from detector.core.session.measured import Interval, Measurements
from detector.lab.audit.case import Case
from detector.lab.audit.machine import Machine
from detector.lab.audit.tables import Table, make_table
from detector.lab.session.comparison import Comparison, Row
from detector.lab.session.network import LayersFacts
from detector.lab.session.read import SavedSession, read_session

MOST_ROWS = 5000  # of a list of rows in a document


class Ours:
    """What one path holds: ``tables``, ``runs`` by name, and the comparison, if it is one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: list[Table] = []
        self.runs: dict[str, Summary] = {}
        self.sessions: dict[str, SavedSession] = {}
        self.comparisons: dict[str, Comparison] = {}


def read_ours(path: str) -> Ours:
    """A run's folder, or a JSON document. Raises UsageError where it is neither."""
    if Path(path).is_dir():
        return of_session(read_session(path), path.rstrip("/"))
    content = parse_json(read_file(Path(path)), path)
    found = Ours(path)
    if isinstance(content, list):
        content = {"rows": content}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: not a detect-video document or a list of rows")
    if {"rounds", "fastest", "rows"} <= content.keys():
        _add_comparison(found, from_builtins(content, Comparison, path))
    elif "measurements" in content:
        _add_measurements(found, from_builtins(content, Measurements, path))
    elif "results" in content and "dataset" in content:
        found.tables.append(_of_dicts(f"{path}: results", content["results"]))
    elif {"stages", "threads", "frames", "cpu", "clocks"} <= content.keys():
        _add_run(found, path, from_builtins(content, SessionDocument, path))
    elif {"stages", "threads", "frames", "cpu"} <= content.keys():
        _add_run(found, path, from_builtins(content, Summary, path))
    else:
        lists = [(key, value) for key, value in content.items() if _is_rows(value)]
        nested = [
            (f"{key}: rows", value["rows"])
            for key, value in content.items()
            if isinstance(value, dict) and _is_rows(value.get("rows"))
        ]
        found.tables += [_of_dicts(f"{path}: {key}", rows) for key, rows in lists + nested]
        if not found.tables:
            raise UsageError(f"{path}: not a detect-video document or a list of rows in it")
    return found


def of_session(session: SavedSession, name: str) -> Ours:
    found = Ours(name)
    found.sessions[name] = session
    _add_run(found, name, session.document)
    layers = session.facts(LayersFacts)
    if layers is not None:
        titles = ("layer", "type", "time (ms)", "MACs (M)", "params", "precision")
        rows = [
            [
                row.name,
                row.type,
                _number(row.ms),
                _number(row.macs / 1e6),
                _number(row.parameters),
                row.precision,
            ]
            for row in layers.rows
        ]
        found.tables.append(make_table(f"{name}: layers", titles, rows))
    return found


def _add_run(found: Ours, name: str, run: Summary) -> None:
    found.runs[name] = run
    titles = ("stage", "calls", "total (s)", "p50 (ms)", "p90 (ms)", "p99 (ms)", "max (ms)")
    rows = [
        [
            stage,
            str(one.calls),
            _number(one.busy_s),
            *map(_number, (one.p50_ms, one.p90_ms, one.p99_ms, one.max_ms)),
        ]
        for stage, one in run.stages.items()
        if one.calls
    ]
    if rows:
        found.tables.append(make_table(f"{name}: stages", titles, rows))


def tables_of_runs(runs: Mapping[str, Summary]) -> Iterator[Table]:
    if len(runs) < 2:
        return
    titles = (
        "run",
        "model",
        "engine",
        "precision",
        "batch",
        "input (pixels)",
        "threads",
        "decoder",
        "video",
        "inference FPS",
        "end-to-end FPS",
        "frames",
    )
    rows = []
    for name, run in runs.items():
        video = run.each[0].video
        height, width = run.model_input
        rows.append(
            [
                name,
                run.model,
                run.engine,
                run.precision,
                str(run.batch),
                f"{width}x{height}",
                str(run.engine_threads),
                "" if video.decoder is UNSET else video.decoder,
                Path(video.path).name,
                _number(run.fps.inference),
                _number(run.fps.end_to_end),
                str(run.frames.written),
            ]
        )
    yield make_table("runs side by side", titles, rows)


def _add_comparison(found: Ours, document: Comparison) -> None:
    found.comparisons[found.name] = document
    titles = (
        "model",
        "engine",
        "precision",
        "executed precision",
        "batch",
        "threads",
        "concurrency",
        "device",
        "inference FPS",
        "end-to-end FPS",
        "agreement",
        "rounds",
        "params (M)",
        "model size (MB)",
        "MACs (G)",
        "p50 latency (ms)",
        "p90 latency (ms)",
        "memory peak (MB)",
    )
    rows = [_of_row(row, document) for row in document.rows if row.error is None]
    if rows:
        found.tables.append(make_table(f"{found.name}: rows", titles, rows))


def _of_row(row: Row, document: Comparison) -> list[str]:
    counts, latency = row.model, row.latency_ms or {}
    return [
        counts.name if counts else document.model or "",
        row.engine,
        row.precision,
        row.precision_text,
        str(row.batch),
        _number(row.threads),
        _number(row.concurrency),
        row.device or "",
        _interval(row.fps.get("inference")),
        _interval(row.fps.get("end_to_end")),
        _number(row.agreement.matched if row.agreement else None),
        str(document.rounds),
        _number(counts.parameters / 1e6 if counts and counts.parameters else None),
        _number(counts.size_bytes / 1e6 if counts and counts.size_bytes else None),
        _number(counts.macs / 1e9 if counts and counts.macs else None),
        _interval(latency.get("p50")),
        _interval(latency.get("p90")),
        _number(row.memory_mb),
    ]


def _add_measurements(found: Ours, document: Measurements) -> None:
    titles = ("engine", "precision", "inference FPS", "end-to-end FPS", "agreement", "rounds")
    for number, record in enumerate(document.measurements):
        rows = [
            [
                row.engine,
                row.precision,
                _interval(row.fps.get("inference")),
                _interval(row.fps.get("end_to_end")),
                _number(row.agreement),
                str(record.rounds),
            ]
            for row in record.rows
        ]
        if rows:
            found.tables.append(
                make_table(f"{found.name}: {record.kind} {number + 1}", titles, rows)
            )


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _of_dicts(name: str, rows: Any) -> Table:
    if not _is_rows(rows) or len(rows) > MOST_ROWS:
        raise UsageError(f"{name}: not a list of rows, or more than {MOST_ROWS} rows")
    flat = [dict(_flat(row)) for row in rows]
    titles = list(dict.fromkeys(key for row in flat for key in row))
    return make_table(name, titles, [[row.get(key, "") for key in titles] for row in flat])


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in row.items():
        if isinstance(value, Mapping) and key == "fps":
            for kind, rate in value.items():
                yield f"{str(kind).replace('_', '-')} FPS", _number(rate)
        elif isinstance(value, list) and key == "model_input" and len(value) == 2:
            yield "input (pixels)", f"{value[1]}x{value[0]}"
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int | float):
            yield _title(str(key)), _number(value)
        elif isinstance(value, str):
            yield str(key), value


def _title(key: str) -> str:
    """``busy_s`` -> ``busy (s)``: the units of our keys."""
    if key in ("gflops_s", "gbytes_s"):
        return {"gflops_s": "GFLOP/s", "gbytes_s": "GB/s"}[key]
    for end in ("s", "ms", "mb", "bytes"):
        if key.endswith(f"_{end}"):
            return f"{key.removesuffix(f'_{end}')} ({end})"
    return key


def _number(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) else ""


def _interval(value: Interval | Any) -> str:
    if value is None:
        return ""
    return f"{value.median!r} [{value.low!r}..{value.high!r}]"


def join(parts: Sequence[Ours], machine: Machine | None = None) -> Case:
    tables = [table for one in parts for table in one.tables]
    runs = {name: run for one in parts for name, run in one.runs.items()}
    return Case(
        [*tables, *tables_of_runs(runs)],
        runs,
        {name: each for one in parts for name, each in one.sessions.items()},
        {name: each for one in parts for name, each in one.comparisons.items()},
        machine or Machine(),
    )
