"""A saved session, read back: here, later, or on another machine. Nothing of the run is needed."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from detector.errors import UsageError
from detector.session.codec import check_schema, from_builtins, parse_json
from detector.session.document import LoopSizes, SessionDocument
from detector.session.passes import Facts, PassRecord, find_facts, read_passes
from detector.session.store import PASSES

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


@dataclass(frozen=True, slots=True)
class SavedSession:
    """``document``: session.json. ``spans``: the columns of spans.npz (docs/measurement.md).
    ``passes``: what each pass of ``profile`` left, by name."""

    folder: Path
    document: SessionDocument
    spans: dict[str, NDArray[Any]]
    passes: dict[str, PassRecord] = field(default_factory=dict)

    def facts(self, kind: type[Facts]) -> Facts | None:
        """A pass's facts, by their type; None where the pass did not run, or could not."""
        return find_facts(self.passes, kind)


def read_session(folder: str | Path) -> SavedSession:
    """Raises UsageError, with the file and the key, where the folder holds no whole session."""
    place = Path(folder)
    if not (place / "session.json").is_file():
        raise UsageError(f"{place}: no session.json in it; give the folder of a run (runs/NAME)")
    document = _read_document(place / "session.json")
    spans = _read_spans(place / "spans.npz")
    return SavedSession(place, document, spans, read_passes(place / PASSES))


def _read_document(path: Path) -> SessionDocument:
    content = parse_json(_read_bytes(path), path)
    check_schema(content, path)
    document = from_builtins(content, SessionDocument, path)
    for wrong in _contradictions(document):
        raise UsageError(f"{path}: damaged, or written by another version: {wrong}")
    return document


def _contradictions(document: SessionDocument) -> Iterator[str]:
    """What the types cannot say about a document that a run wrote."""
    for source, sizes in enumerate(document.loop):
        missing = LoopSizes.__annotations__.keys() - sizes.keys()
        if sizes and missing:
            yield f"'loop[{source}]' lacks {min(missing)!r}"
    for name, stage in document.stages.items():
        for thread in stage.threads:
            if stage.calls and thread not in document.threads:
                yield f"'threads' lacks {thread!r}, in which 'stages.{name}' ran"
    for name in ("sources",) if document.video is UNSET else ("outputs", "partial_outputs"):
        if getattr(document, name) is UNSET:
            yield f"it lacks {name!r}"


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error


def _read_spans(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Opened here, because numpy leaves a file open that is no archive.
        with path.open("rb") as data, np.load(data, allow_pickle=False) as file:
            columns = {name: file[name] for name in COLUMNS}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        # A ValueError means that numpy takes the file for a pickle and advises to load it all the
        # same. That is no advice for a user, so its message is not shown.
        reason = "no archive of columns" if type(error) is ValueError else _one_line(error)
        raise UsageError(
            f"{path}: damaged or missing ({reason}); the session's spans cannot be read"
        ) from error
    lengths = {len(columns[name]) for name in COLUMNS if not name.endswith("_names")}
    if len(lengths) != 1:
        raise UsageError(f"{path}: damaged: its columns have {sorted(lengths)} rows")
    return columns


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
