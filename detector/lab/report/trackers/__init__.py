"""Run trackers: figures, tables and the report of a session, through a tracker's own library.

A module ``NAME.py`` holds:
    PACKAGE   what must be importable, and is the name of the extra too
    log(session, entries) -> where it was logged, for the user; imports the library late
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from detector.core.analysis.statistics import list_statistics
from detector.core.analysis.tables import ledger_table, threads_table
from detector.core.errors import DetectVideoError, OutputError, UsageError
from detector.core.errors.text import printable
from detector.core.session.codec import to_builtins
from detector.lab.report.page import page
from detector.lab.report.tables import csv_files
from detector.lab.session.passes import CriticalPathFacts, WhatIfFacts
from detector.lab.session.read import SavedSession

SETTINGS = ("model", "engine", "precision", "batch", "concurrency", "sync", "engine_threads")


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries that a tracker logs. ``tables``: file name -> CSV. ``report``: the HTML page."""

    settings: dict[str, str]
    figures: dict[str, float]
    tables: dict[str, str]
    report: bytes
    verdict: str


def ready(name: str) -> None:
    package = _module(name).PACKAGE
    try:
        importlib.import_module(package)
    except ImportError as error:
        cure = f"pip install 'detect-video[{package}]'"
        raise UsageError(
            f"--log-to {name}: {package} cannot be imported ({error}); {cure}"
        ) from error


def track(name: str, session: SavedSession) -> str:
    """Log a session; return where. Raises UsageError (no library) and OutputError."""
    ready(name)
    entries = entries_of(session)
    try:
        return str(_module(name).log(session, entries))
    except DetectVideoError:
        raise
    # Servers, permissions, databases: each tracker has exceptions of its own.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise OutputError(f"--log-to {name}: the session could not be logged: {reason}") from error


def entries_of(session: SavedSession) -> Entries:
    document = session.document
    height, width = document.model_input
    settings = {name: str(getattr(document, name)) for name in SETTINGS}
    settings |= {"model_input": f"{width}x{height}", "cpu": str(document.environment.cpu.model)}
    # Trackers refuse texts that are no UTF-8, and show the others to people.
    settings = {name: printable(value) for name, value in settings.items()}
    figures = {
        printable(name): float(value) for name, value in _figures(session) if _is_number(value)
    }
    sentence = printable(document.verdict.sentence)
    return Entries(settings, figures, csv_files(session), page(session), sentence)


def _figures(session: SavedSession) -> Iterator[tuple[str, Any]]:
    """(name, value), flat. Times of stages and threads are milliseconds a frame."""
    document = session.document
    frames = document.frames.written
    yield from ((one.name, one.of(document)) for one in list_statistics())
    yield from ((f"seconds/{name}", value) for name, value in document.seconds.items())
    for table in (
        (ledger_table(document, frames), threads_table(document, frames)) if frames else ()
    ):
        of, *columns = table.columns
        for row in table.rows:
            yield from (
                (f"{of.key}_{one.key}/{of.of(row)}", one.of(row)) for one in columns if one.form
            )
    if (path := session.facts(CriticalPathFacts)) is not None:
        yield from ((f"critical_path_share/{stage.name}", stage.share) for stage in path.stages)
    if (what_if := session.facts(WhatIfFacts)) is not None:
        yield from ((f"what_if_fps/{row.change}", row.fps.median) for row in what_if.changes)
    for name, record in session.passes.items():
        yield from (
            (f"{name}/{key}", value) for key, value in (to_builtins(record.facts) or {}).items()
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
