"""A saved session, read back: here, later, or on another machine. Nothing of the run is needed for it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.errors import UsageError
from detector.session.passes import Facts, PassRecord, find_facts, read_passes
from detector.session.store import PASSES, SCHEMA

COLUMNS = (
    "thread",
    "stage",
    "kind",
    "source",
    "index",
    "start_ns",
    "end_ns",
    "thread_names",
    "stage_names",
    "kind_names",
)
# Of session.json, what every table and drawing stands on.
FIELDS: dict[str, type] = {
    "model": str,
    "engine": str,
    "precision": str,
    "batch": int,
    "model_input": list,
    "frames": dict,
    "fps": dict,
    "seconds": dict,
    "stages": dict,
    "threads": dict,
    "verdict": dict,
    "loop": list,
    "clocks": dict,
    "exit": dict,
}
# Of what those hold by name, the kind of each.
VALUES: dict[str, type | tuple[type, ...]] = {
    "frames": int,
    "fps": (float, int, type(None)),
    "seconds": (float, int),
    "stages": dict,
    "threads": dict,
}


@dataclass(frozen=True, slots=True)
class SavedSession:
    """``document``: session.json. ``spans``: the columns of spans.npz (docs/measurement.md).
    ``passes``: what each pass of ``profile`` left, by name."""

    folder: Path
    document: dict[str, Any]
    spans: dict[str, NDArray[Any]]
    passes: dict[str, PassRecord] = field(default_factory=dict)

    def facts(self, kind: type[Facts]) -> Facts | None:
        """A pass's facts, by their type; None where the pass did not run, or could not."""
        return find_facts(self.passes, kind)


def read_session(folder: str | Path) -> SavedSession:
    """Raises UsageError where the folder holds no session, or a damaged one."""
    place = Path(folder)
    if not (place / "session.json").is_file():
        raise UsageError(f"{place}: no session.json in it; give the folder of a run (runs/NAME)")
    document = _document(place / "session.json")
    return SavedSession(place, document, _spans(place / "spans.npz"), read_passes(place / PASSES))


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: damaged, or no session of this program ({_line(error)}); run again"
        ) from error
    if not isinstance(document, dict) or "stages" not in document:
        raise UsageError(f"{path}: no session of this program: it lacks the stages")
    if document.get("schema") != SCHEMA:
        raise UsageError(
            f"{path}: a session of schema {document.get('schema')!r}, this version reads {SCHEMA}; "
            "read it with the version that wrote it"
        )
    for name, kind in FIELDS.items():
        if not isinstance(document.get(name), kind):
            raise UsageError(
                f"{path}: damaged, or no session of this program: its {name!r} is missing or wrong"
            )
    for name, kinds in VALUES.items():
        if wrong := [key for key, value in document[name].items() if not isinstance(value, kinds)]:
            raise UsageError(
                f"{path}: damaged, or no session of this program: its '{name}.{wrong[0]}' is wrong"
            )
    return document


def _no_number(text: str) -> float:
    """NaN and Infinity are no JSON, and nothing that we wrote."""
    raise ValueError(f"{text} is no number")


@contextmanager
def complete(session: SavedSession) -> Iterator[None]:
    """Around whatever reads a session's facts. Raises UsageError where one lacks a figure that is asked for."""
    try:
        yield
    except KeyError as error:
        raise UsageError(
            f"{session.folder}: a file of this session is damaged, or was written by another version: it lacks "
            f"{error}; read it with the version that wrote it"
        ) from error


def _spans(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Opened here: numpy leaves the file open where it is no archive.
        with path.open("rb") as data, np.load(data, allow_pickle=False) as file:
            columns = {name: file[name] for name in COLUMNS}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        # What numpy takes for a pickle is no file of ours, and its advice to load it all the same is none for a user.
        reason = "no archive of columns" if type(error) is ValueError else _line(error)
        raise UsageError(
            f"{path}: damaged or missing ({reason}); the session's spans cannot be read"
        ) from error
    lengths = {len(columns[name]) for name in COLUMNS if not name.endswith("_names")}
    if len(lengths) != 1:
        raise UsageError(f"{path}: damaged: its columns have {sorted(lengths)} rows")
    return columns


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
