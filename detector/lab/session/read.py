"""Read a saved session. Only its folder is needed, so this also works on another machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import UNSET

from detector.core.errors import UsageError
from detector.core.session.codec import check_schema, from_builtins, parse_json, read_file
from detector.core.session.document import LoopSizes, SessionDocument
from detector.core.session.store import PASSES
from detector.core.timeline.order import NAME
from detector.core.timeline.spans import KINDS, OTHER
from detector.lab.session.columns import Columns, read_columns
from detector.lab.session.passes import Facts, PassRecord, read_pass

# The names that the loop gives its threads.
LOOP_THREAD = re.compile(r"main|reader|writer|worker(-\d{1,6})?")
MAX_PICTURE_BYTES = 8 << 20
ROUNDING_S = 1e-9  # tolerance for sums of seconds


@dataclass(frozen=True, slots=True)
class SavedSession:
    """``document``: session.json. ``spans``: the columns of spans.npz (docs/measurement.md).
    ``passes``: the passes of ``profile``, by name."""

    folder: Path
    document: SessionDocument
    spans: Columns
    passes: dict[str, PassRecord] = field(default_factory=dict)

    def facts(self, kind: type[Facts]) -> Facts | None:
        records = self.passes.values()
        return next((one.facts for one in records if isinstance(one.facts, kind)), None)


def read_session(folder: str | Path) -> SavedSession:
    """Read a session. If it is incomplete, raises UsageError, which names the file and the key."""
    place = Path(folder)
    if not (place / "session.json").is_file():
        days = sorted(place.glob("[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*/session.json"))
        give = f"a day of this live run: {days[-1].parent}" if days else "a run (runs/NAME)"
        raise UsageError(f"{place}: no session.json in it; give the folder of {give}")
    document = _read_document(place / "session.json")
    spans = read_columns(place / "spans.npz", len(document.loop))
    for fault in _find_disagreements(document, spans):
        raise UsageError(f"{place}: damaged: session.json and spans.npz disagree: {fault}")
    passes = {path.stem: read_pass(path) for path in sorted((place / PASSES).glob("*.json"))}
    return SavedSession(place, document, spans, passes)


def newest_runs(count: int = 1) -> list[str]:
    """Return the newest runs in runs/, the newest last. Raises UsageError if there are too few."""
    runs = [path for path in Path("runs").glob("*/session.json") if path.is_file()]
    if len(runs) < count:
        raise UsageError(f"runs/: {len(runs)} saved runs found; name the folder of a run: DIR/NAME")
    runs.sort(key=lambda path: path.stat().st_mtime)
    return [str(path.parent) for path in runs[-count:]]


def read_picture(folder: Path, name: str) -> bytes:
    """Read a JPEG of the session. Raises UsageError if it is damaged or outside the session."""
    path = folder / name
    inside = Path(os.path.realpath(folder))
    if "\0" in name or not Path(os.path.realpath(path)).is_relative_to(inside):
        raise UsageError(f"{folder}: {name[:80]!r} is not a file of this session")
    data = read_file(path, MAX_PICTURE_BYTES)
    if not data.startswith(b"\xff\xd8"):
        raise UsageError(f"{path}: damaged: not a JPEG")
    return data


def _read_document(path: Path) -> SessionDocument:
    content = parse_json(read_file(path), path)
    check_schema(content, path)
    document = from_builtins(content, SessionDocument, path)
    for fault in _find_contradictions(document):
        raise UsageError(f"{path}: damaged, or written by another version: {fault}")
    return document


def _find_contradictions(document: SessionDocument) -> Iterator[str]:
    for source, sizes in enumerate(document.loop):
        missing = LoopSizes.__annotations__.keys() - sizes.keys()
        if sizes and missing:
            yield f"'loop[{source}]' lacks {min(missing)!r}"
    for name in ("sources",) if document.video is UNSET else ("outputs", "partial_outputs"):
        if getattr(document, name) is UNSET:
            yield f"it lacks {name!r}"
    if not document.each:
        yield "'sources' is empty"
    if len(document.loop) != len(document.each):
        yield f"'loop' has {len(document.loop)} entries for {len(document.each)} sources"
    yield from _find_wrong_stages(document)
    yield from _find_wrong_threads(document)
    yield from _find_wrong_counts(document)


def _find_wrong_stages(document: SessionDocument) -> Iterator[str]:
    for name, stage in document.stages.items():
        if not NAME.fullmatch(name):
            yield f"'stages' holds {name[:40]!r}, which is not a stage"
        for thread in stage.threads:
            if stage.calls and thread not in document.threads:
                yield f"'threads' lacks {thread[:40]!r}, which ran 'stages.{name}'"


def _find_wrong_threads(document: SessionDocument) -> Iterator[str]:
    for name, thread in document.threads.items():
        if not LOOP_THREAD.fullmatch(name):
            yield f"'threads' holds {name[:40]!r}, which is not a thread of the loop"
        parts = thread.busy_s + thread.wait_input_s + thread.wait_output_s + thread.other_s
        if abs(parts - thread.wall_s) > ROUNDING_S * max(1.0, thread.wall_s):
            yield f"the times of 'threads.{name}' do not add up to its 'wall_s'"


def _find_wrong_counts(document: SessionDocument) -> Iterator[str]:
    frames = document.frames
    if frames.read != frames.written + frames.dropped:
        yield "'frames.read' is not the sum of 'frames.written' and 'frames.dropped'"
    for name in ("read", "written"):
        if sum(getattr(one.frames, name) for one in document.each) != getattr(frames, name):
            yield f"'frames.{name}' is not the sum over all sources"
    if document.detections.total != sum(document.detections.by_class.values()):
        yield "'detections.total' is not the sum of 'detections.by_class'"


def _find_disagreements(document: SessionDocument, spans: Columns) -> Iterator[str]:
    for name in spans["thread_names"].tolist():
        if len(spans["thread"]) and not LOOP_THREAD.fullmatch(name):
            yield f"thread_names holds {name[:40]!r}, which is not a thread of the loop"
    recorded = int((spans["kind"] != KINDS.index(OTHER)).sum())
    kept = document.spans.kept
    if kept is not UNSET and kept != recorded:
        yield f"'spans.kept' is {kept}, but spans.npz has {recorded} spans"
