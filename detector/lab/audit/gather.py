"""Collect what is audited from the paths on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from detector.core.errors import SourceError, UsageError
from detector.core.errors.parsing import quote
from detector.lab.audit.case import Case
from detector.lab.audit.documents import add_document, tables_of_runs
from detector.lab.audit.machine import Machine
from detector.lab.audit.read import SUFFIXES, Titles, read_tables

MOST_PATHS = 500


def gather(paths: Sequence[str], titles: Titles, machine: Machine) -> Case:
    """Read all paths. Raises SourceError for an unreadable table, UsageError for bad arguments."""
    if len(paths) > MOST_PATHS:
        raise UsageError(f"{len(paths)} paths: audit at most {MOST_PATHS} at once")
    case = Case(machine=machine)
    for path in dict.fromkeys(paths):
        if not Path(path).is_dir() and Path(path).suffix.lower() in SUFFIXES:
            case.tables.extend(read_tables(path, titles))
        elif Path(path).is_dir() or Path(path).suffix.lower() == ".json":
            add_document(case, path)
        else:
            raise UsageError(
                f"{quote(path)}: cannot be audited; give a run's folder (runs/NAME), a table "
                "(.csv, .md) or a .json file of the command compare, eval, profile or detect"
            )
    columns = [column for table in case.tables for column in table.columns]
    numeric = any(column.known and not column.meaning.why for column in columns)
    if not (case.runs or case.comparisons or numeric or any(one.facts for one in case.tables)):
        why = "; ".join(line for table in case.tables for line in table.unread) or "there is none"
        raise SourceError(f"no column of numbers could be read (see --columns): {why}")
    case.tables.extend(tables_of_runs(case.runs))
    for title in titles:
        if not any(title in table.given for table in case.tables):
            raise UsageError(f"--columns: no table has the column {quote(title)}")
    return case
