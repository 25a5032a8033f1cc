"""The folder of a run: session.json, summary.json, spans.npz, detections.jsonl. Only this file
writes there."""

from __future__ import annotations

import contextlib
import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.errors import OutputError
from detector.errors.writing import whole_file
from detector.session.codec import to_json
from detector.session.document import SpanCounts
from detector.timeline import KINDS, OTHER, OffTimeline, Timeline
from detector.timeline.spans import Span

PASSES = "passes"  # folder of the records of `profile`'s passes, NAME.json
FILES = (
    "session.json",
    "summary.json",
    "spans.npz",
    "detections.jsonl",
    "evaluation.json",
    "precision-recall.svg",
    "confusion.svg",
)


class Session:
    """A run's folder. It is made before the run, so that a folder that cannot be written is known
    before an hour of work."""

    def __init__(self, folder: Path, made: bool = True) -> None:
        self.folder = folder
        self._made = made  # by this run

    @classmethod
    def create(cls, run_dir: str | None, name: str) -> Session:
        """``run_dir`` itself, or a new folder runs/NAME (NAME-2, NAME-3, ... where it exists)."""
        folder = Path(run_dir) if run_dir else Path("runs") / name
        made = not folder.exists() or not run_dir
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            if run_dir:
                folder.mkdir(exist_ok=True)
            else:
                folder = _make_new_folder(folder)
            probe = folder / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
            for old in FILES:  # a folder used again holds one run, not two
                (folder / old).unlink(missing_ok=True)
            for old_pass in (folder / PASSES).glob("*.json"):
                old_pass.unlink()
        except OSError as error:
            reason = (
                "a file of that name is in the way"
                if isinstance(error, FileExistsError)
                else error.strerror
            )
            raise OutputError(
                f"{folder}: the session's folder cannot be written: {reason}; choose another with "
                "--run-dir DIR"
            ) from error
        return cls(folder, made)

    def discard(self) -> None:
        """Removes the folder, and an empty ``runs`` above it, after a run that could not start. A
        folder that holds anything stays."""
        with contextlib.suppress(OSError):
            if self._made:
                self.folder.rmdir()
            if self.folder.parent == Path("runs"):
                self.folder.parent.rmdir()

    def path(self, name: str) -> Path:
        return self.folder / name

    def write_json(self, name: str, content: Any) -> Path:
        """``content``: a document, or plain dicts, lists, text and numbers."""
        with self._whole(name) as temporary:
            temporary.write_text(to_json(content), encoding="utf-8")
        return self.path(name)

    def write_pass(self, name: str, content: dict[str, Any]) -> Path:
        self.path(PASSES).mkdir(exist_ok=True)
        return self.write_json(f"{PASSES}/{name}.json", content)

    def write_text(self, name: str, content: str) -> Path:
        with self._whole(name) as temporary:
            temporary.write_text(content, encoding="utf-8")
        return self.path(name)

    def _whole(self, name: str) -> AbstractContextManager[Path]:
        """A path to write to; the file gets its name when the block ends well."""
        return whole_file(self.path(name), "the run's outputs are kept")

    def adopt(self, path: Path) -> None:
        """Appends a source's finished JSONL to the session's detections.jsonl."""
        target = self.path("detections.jsonl")
        if path.resolve() == target.resolve():
            return
        try:
            with open(target, "ab") as into, open(path, "rb") as rows:
                shutil.copyfileobj(rows, into)
        except OSError as error:
            raise OutputError(
                f"{target}: cannot be written: {error.strerror}; {path} is whole"
            ) from error

    def write_spans(self, timelines: list[Timeline | OffTimeline]) -> SpanCounts:
        """Writes the columns of every span that was kept, as spans.npz."""
        columns, seen, kept = span_columns(timelines)
        with self._whole("spans.npz") as temporary:
            np.savez_compressed(temporary, **columns)  # type: ignore[arg-type]
        return SpanCounts(seen=seen, kept=kept)


def _make_new_folder(folder: Path) -> Path:
    """``folder``, or NAME-2, NAME-3, ... mkdir is the lock: two runs that start together get two
    folders."""
    for number in range(1, 10_000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        return candidate
    raise OutputError(f"{folder}: 9999 sessions of that name; delete some or choose --run-dir DIR")


def span_columns(
    timelines: list[Timeline | OffTimeline],
) -> tuple[dict[str, NDArray[Any]], int, int]:
    """The columns of spans.npz, the number of spans that there were, and of those that are kept.

    thread, stage and kind are codes into the columns of their names; then source, index, start_ns
    and end_ns. Gaps between top-level spans are rows of kind "other", so that time that no stage
    claimed can be seen.
    """
    names: dict[str, list[str]] = {"thread": [], "stage": [], "kind": list(KINDS)}
    blocks: list[NDArray[np.int64]] = []
    seen = kept = 0
    for source, timeline in enumerate(timelines):
        for track in [] if isinstance(timeline, OffTimeline) else timeline.tracks.values():
            thread = _code(names["thread"], track.name)
            own = [
                _block(thread, _code(names["stage"], stage), kind, source, span)
                for (stage, kind), span in track.spans.items()
            ]
            calls = sum(span.calls for span in track.spans.values())
            rows = np.concatenate(own) if own else np.zeros((0, 7), np.int64)
            seen, kept = seen + calls, kept + len(rows)
            gaps = _gaps(
                np.frombuffer(track.lives, np.int64).reshape(-1, 2),
                rows[:, 5:7],
                len(rows) == calls,
            )
            other = np.full((len(gaps), 7), -1, np.int64)
            other[:, 0], other[:, 2], other[:, 3], other[:, 5:7] = (
                thread,
                KINDS.index(OTHER),
                source,
                gaps,
            )
            blocks += [rows, other]
    table = np.concatenate(blocks) if blocks else np.zeros((0, 7), np.int64)
    table = table[np.argsort(table[:, 5], kind="stable")]
    columns: dict[str, NDArray[Any]] = {
        "thread": table[:, 0].astype(np.uint8),
        "stage": table[:, 1].astype(np.int8),
        "kind": table[:, 2].astype(np.uint8),
        "source": table[:, 3].astype(np.int32),
        "index": table[:, 4].astype(np.int32),
        "start_ns": table[:, 5],
        "end_ns": table[:, 6],
    }
    columns |= {f"{name}_names": np.array(values or [""]) for name, values in names.items()}
    return columns, seen, kept


def _block(thread: int, stage: int, kind: str, source: int, span: Span) -> NDArray[np.int64]:
    """[calls, 7]: thread, stage, kind, source, index, start, end."""
    rows = np.empty((len(span.starts), 7), np.int64)
    rows[:, :4] = thread, stage, KINDS.index(kind), source
    rows[:, 4], rows[:, 5], rows[:, 6] = span.indices, span.starts, span.ends
    return rows


def _code(names: list[str], name: str) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)


def _gaps(lives: NDArray[np.int64], spans: NDArray[np.int64], whole: bool) -> NDArray[np.int64]:
    """[G, 2] int64: start and end of each gap in ``lives`` that none of ``spans`` [S, 2] covers.

    Where spans were dropped (not ``whole``), the time after the first dropped one is unknown and
    not "other", so no gap is returned.
    """
    if not len(lives) or not whole:
        return np.zeros((0, 2), np.int64)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    before = np.concatenate([lives[:1, 0], np.maximum.accumulate(spans[:, 1])])
    after = np.concatenate([spans[:, 0], lives[-1:, 1]])
    gaps: NDArray[np.int64] = np.stack([before, after], axis=1)[after > before]
    return gaps
