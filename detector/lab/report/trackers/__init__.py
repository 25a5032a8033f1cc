"""Log the figures, tables and report of a session with the library of an experiment tracker.

A module ``NAME.py`` holds:
    PACKAGE   the package to import, and the name of the extra that installs it
    log(session, entries) -> text for the user: where it was logged; imports the library itself
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
    """What a tracker logs. ``tables``: file name -> CSV. ``report``: the HTML page."""

    settings: dict[str, str]
    figures: dict[str, float]
    tables: dict[str, str]
    report: bytes
    verdict: str


def check_installed(name: str) -> None:
    package = _module(name).PACKAGE
    try:
        importlib.import_module(package)
    except ImportError as error:
        cure = f"pip install 'detect-video[{package}]'"
        raise UsageError(
            f"--log-to {name}: {package} cannot be imported ({error}); {cure}"
        ) from error


def log_session(name: str, session: SavedSession) -> str:
    """Log a session and return where it was logged. Raises OutputError."""
    entries = collect_entries(session)
    try:
        return str(_module(name).log(session, entries))
    except DetectVideoError:
        raise
    # Each tracker has its own exceptions for servers, permissions and databases.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise OutputError(f"--log-to {name}: the session could not be logged: {reason}") from error


def collect_entries(session: SavedSession) -> Entries:
    document = session.document
    height, width = document.model_input
    settings = {name: str(getattr(document, name)) for name in SETTINGS}
    settings |= {"model_input": f"{width}x{height}", "cpu": str(document.environment.cpu.model)}
    # Trackers reject invalid UTF-8, and people read the settings.
    settings = {name: printable(value) for name, value in settings.items()}
    figures = {
        printable(name): float(value) for name, value in _figures(session) if _is_number(value)
    }
    sentence = printable(document.verdict.sentence)
    return Entries(settings, figures, csv_files(session), page(session), sentence)


def _figures(session: SavedSession) -> Iterator[tuple[str, Any]]:
    """Yield (name, value). Times of stages and threads are milliseconds per frame."""
    document = session.document
    frames = document.frames.written
    yield from ((one.name, one.of(document)) for one in list_statistics())
    yield from ((f"seconds/{name}", value) for name, value in document.seconds.items())
    for table in (
        (ledger_table(document, frames), threads_table(document, frames)) if frames else ()
    ):
        first, *columns = table.columns
        for row in table.rows:
            subject = first.of(row)
            yield from (
                (f"{first.key}_{one.key}/{subject}", one.of(row)) for one in columns if one.form
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
