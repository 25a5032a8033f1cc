"""Add our own documents to a case. Summaries become runs, and rows of documents become tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from detector.core.errors import UsageError
from detector.core.session.codec import from_builtins, parse_json, read_file
from detector.core.session.document import SessionDocument, Summary
from detector.core.session.measured import Interval
from detector.lab.audit.case import Case
from detector.lab.audit.tables import AuditTable, make_table
from detector.lab.session.comparison import Comparison, Row
from detector.lab.session.network import LayersFacts
from detector.lab.session.read import SavedSession, read_session

MOST_ROWS = 5000  # in each list of a document

# The columns of our tables. Each has a title that ``columns.py`` recognises, and a function that
# returns a row's text.

Columns = Sequence[tuple[str, Callable[[Any], str]]]

LAYERS: Columns = (
    ("layer", lambda row: row.name),
    ("type", lambda row: row.type),
    ("time (ms)", lambda row: _number(row.ms)),
    ("MACs (M)", lambda row: _number(row.macs / 1e6)),
    ("params", lambda row: _number(row.parameters)),
    ("precision", lambda row: row.precision),
)
STAGES: Columns = (
    ("stage", lambda pair: pair[0]),
    ("calls", lambda pair: str(pair[1].calls)),
    ("total (s)", lambda pair: _number(pair[1].busy_s)),
    ("p50 (ms)", lambda pair: _number(pair[1].p50_ms)),
    ("p90 (ms)", lambda pair: _number(pair[1].p90_ms)),
    ("p99 (ms)", lambda pair: _number(pair[1].p99_ms)),
    ("max (ms)", lambda pair: _number(pair[1].max_ms)),
)
RUNS: Columns = (
    ("run", lambda pair: pair[0]),
    ("model", lambda pair: pair[1].model),
    ("engine", lambda pair: pair[1].engine),
    ("precision", lambda pair: pair[1].precision),
    ("batch", lambda pair: str(pair[1].batch)),
    ("input (pixels)", lambda pair: "{1}x{0}".format(*pair[1].model_input)),
    ("threads", lambda pair: str(pair[1].engine_threads)),
    ("decoder", lambda pair: pair[1].each[0].video.decoder or ""),
    ("video", lambda pair: Path(pair[1].each[0].video.path).name),
    ("inference FPS", lambda pair: _number(pair[1].fps.inference)),
    ("end-to-end FPS", lambda pair: _number(pair[1].fps.end_to_end)),
    ("frames", lambda pair: str(pair[1].frames.written)),
)
ROWS: Columns = (
    ("model", lambda pair: (pair[0].model.name if pair[0].model else pair[1].model) or ""),
    ("engine", lambda pair: pair[0].engine),
    ("precision", lambda pair: pair[0].precision),
    ("executed precision", lambda pair: pair[0].precision_text),
    ("batch", lambda pair: str(pair[0].batch)),
    ("threads", lambda pair: _number(pair[0].threads)),
    ("concurrency", lambda pair: _number(pair[0].concurrency)),
    ("device", lambda pair: pair[0].device or ""),
    ("inference FPS", lambda pair: _interval(pair[0].fps.get("inference"))),
    ("end-to-end FPS", lambda pair: _interval(pair[0].fps.get("end_to_end"))),
    ("agreement", lambda pair: _number(pair[0].agreement and pair[0].agreement.matched)),
    ("rounds", lambda pair: str(pair[1].rounds)),
    ("params (M)", lambda pair: _count(pair[0], "parameters", 1e6)),
    ("model size (MB)", lambda pair: _count(pair[0], "size_bytes", 1e6)),
    ("MACs (G)", lambda pair: _count(pair[0], "macs", 1e9)),
    ("p50 latency (ms)", lambda pair: _interval((pair[0].latency_ms or {}).get("p50"))),
    ("p90 latency (ms)", lambda pair: _interval((pair[0].latency_ms or {}).get("p90"))),
    ("memory peak (MB)", lambda pair: _number(pair[0].memory_mb)),
)


def _make_table(name: str, columns: Columns, rows: Iterable[Any]) -> AuditTable:
    titles = [title for title, _ in columns]
    return make_table(name, titles, [[text(row) for _, text in columns] for row in rows])


def _number(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) else ""


def _interval(value: Interval | None) -> str:
    if value is None:
        return ""
    return f"{value.median!r} [{value.low!r}..{value.high!r}]"


def _count(row: Row, name: str, unit: float) -> str:
    count = getattr(row.model, name, None)
    return _number(count / unit) if count else ""


def add_document(case: Case, path: str) -> None:
    """Add a run's folder or one of our JSON documents. Raises UsageError for other content."""
    if Path(path).is_dir():
        add_session(case, read_session(path), path.rstrip("/"))
        return
    content = parse_json(read_file(Path(path)), path)
    if isinstance(content, list):
        content = {"rows": content}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: not a detect-video document or a list of rows")
    if {"rounds", "fastest", "rows"} <= content.keys():
        comparison = case.comparisons[path] = from_builtins(content, Comparison, path)
        rows = [(row, comparison) for row in comparison.rows if row.error is None]
        if rows:
            case.tables.append(_make_table(f"{path}: rows", ROWS, rows))
    elif "results" in content and "dataset" in content:
        case.tables.append(_read_rows(f"{path}: results", content["results"]))
    elif {"stages", "threads", "frames", "cpu", "clocks"} <= content.keys():
        _add_run(case, path, from_builtins(content, SessionDocument, path))
    elif {"stages", "threads", "frames", "cpu"} <= content.keys():
        _add_run(case, path, from_builtins(content, Summary, path))
    else:
        lists = [(key, value) for key, value in content.items() if _is_rows(value)]
        lists += [
            (f"{key}: rows", value["rows"])
            for key, value in content.items()
            if isinstance(value, dict) and _is_rows(value.get("rows"))
        ]
        if not lists:
            raise UsageError(f"{path}: no detect-video document, and no list of rows in it")
        case.tables.extend(_read_rows(f"{path}: {key}", rows) for key, rows in lists)


def add_session(case: Case, session: SavedSession, name: str) -> None:
    _add_run(case, name, session.document)
    layers = session.facts(LayersFacts)
    if layers is not None:
        case.tables.append(_make_table(f"{name}: layers", LAYERS, layers.rows))


def _add_run(case: Case, name: str, run: Summary) -> None:
    case.runs[name] = run
    stages = [(stage, figures) for stage, figures in run.stages.items() if figures.calls]
    if stages:
        case.tables.append(_make_table(f"{name}: stages", STAGES, stages))


def tables_of_runs(runs: Mapping[str, Summary]) -> Iterator[AuditTable]:
    if len(runs) > 1:
        yield _make_table("runs side by side", RUNS, runs.items())


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _read_rows(name: str, rows: Any) -> AuditTable:
    if not _is_rows(rows) or len(rows) > MOST_ROWS:
        raise UsageError(f"{name}: not a list of rows, or more than {MOST_ROWS} rows")
    flattened = [dict(_flatten(row)) for row in rows]
    titles = list(dict.fromkeys(key for row in flattened for key in row))
    return make_table(name, titles, [[row.get(key, "") for key in titles] for row in flattened])


def _flatten(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in row.items():
        if isinstance(value, Mapping) and key == "fps":
            for kind, rate in value.items():
                yield f"{str(kind).replace('_', '-')} FPS", _number(rate)
        elif isinstance(value, list) and key == "model_input" and len(value) == 2:
            yield "input (pixels)", f"{value[1]}x{value[0]}"
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int | float):
            yield _make_title(str(key)), _number(value)
        elif isinstance(value, str):
            yield str(key), value


def _make_title(key: str) -> str:
    """Return a title with the unit of a key: ``busy (s)`` for ``busy_s``."""
    if key in ("gflops_s", "gbytes_s"):
        return {"gflops_s": "GFLOP/s", "gbytes_s": "GB/s"}[key]
    for end in ("s", "ms", "mb", "bytes"):
        if key.endswith(f"_{end}"):
            return f"{key.removesuffix(f'_{end}')} ({end})"
    return key
