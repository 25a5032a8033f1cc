"""Paths on the command line -> what is audited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from detector.core.errors import UsageError
from detector.core.errors.parsing import quote
from detector.lab.audit.case import Case
from detector.lab.audit.machine import Machine
from detector.lab.audit.ours import Ours, join, read_ours
from detector.lab.audit.read import SUFFIXES, Titles, read_tables

MOST_PATHS = 500


def gather(paths: Sequence[str], titles: Titles, machine: Machine) -> Case:
    """Raises SourceError for an unreadable table, UsageError for bad paths and --columns."""
    if len(paths) > MOST_PATHS:
        raise UsageError(f"{len(paths)} paths: audit at most {MOST_PATHS} at once")
    found: list[Ours] = []
    for path in dict.fromkeys(paths):
        if not Path(path).is_dir() and Path(path).suffix.lower() in SUFFIXES:
            one = Ours(path)
            one.tables += read_tables(path, titles)
            found.append(one)
        elif Path(path).is_dir() or Path(path).suffix.lower() == ".json":
            found.append(read_ours(path))
        else:
            raise UsageError(
                f"{quote(path)}: give a run's folder (runs/NAME), a .json of compare, eval, "
                "profile or detect, or a table as .csv or .md"
            )
    case = join(found, machine)
    for title in titles:
        if not any(title in table.given for table in case.tables):
            raise UsageError(f"--columns: no table has the column {quote(title)}")
    return case
