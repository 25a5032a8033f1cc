"""The columns of spans.npz, read from a file that may be damaged or made to do harm.

An .npz is a zip archive with one array file a column. Before we take memory we check the sizes in
the archive's directory, then the shape and type in each array's header against its bytes. Nothing
is unpickled. Then we check the values: a code is one of a name, no span ends before it starts.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import UsageError
from detector.core.timeline import KINDS, OTHER, WORK
from detector.core.timeline.order import ends_of_frames
from detector.core.timeline.rows import NOT_KNOWN
from detector.core.timeline.spans import READ

NAMES = ("thread_names", "stage_names", "kind_names")
NUMBERS = ("thread", "stage", "kind", "source", "index", "start_ns", "end_ns")
# Its thread's time off a core, of that ready for one, and what the engine's threads used for it;
# NOT_KNOWN if unknown.
TOLD = ("off_cpu_ns", "ready_ns", "library_ns")
COLUMNS = (*NUMBERS, *TOLD, *NAMES)

# About 10 of a span's 51 bytes remain; a large file that shrinks more is not a recording.
MOST_BYTES = 1 << 30
SHRINKS = 40  # times
SMALL_BYTES = 16 << 20
MOST_NAMES, LONGEST_NAME = 10_000, 200
LATEST_NS = 1 << 62

Columns = dict[str, NDArray[Any]]


def read_columns(path: Path, sources: int) -> Columns:
    """``sources``: of the run. Raises UsageError that names the file and the column."""
    try:
        if not path.is_file():
            raise UsageError(f"{path}: damaged or missing; the session's spans cannot be read")
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            _check_sizes(archive, path)
            columns = {name: _read_array(archive, name, path) for name in COLUMNS}
    except UsageError:
        raise
    except Exception as error:  # zipfile lets through whatever its parsing of damaged bytes raises
        raise _damage_error(path, " ".join(str(error).split())[:120] or "not an archive") from error
    lengths = {len(columns[name]) for name in (*NUMBERS, *TOLD)}
    if len(lengths) != 1:
        raise UsageError(f"{path}: damaged: its columns differ in length: {sorted(lengths)} rows")
    for name, wrong in _impossible(columns, sources):
        raise _damage_error(path, f"column {name!r}: {wrong}")
    return columns


def _damage_error(path: Path, reason: str) -> UsageError:
    return UsageError(f"{path}: damaged or missing ({reason}); the session's spans cannot be read")


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(f"{name}.npy")
    except KeyError:
        raise _damage_error(path, f"it lacks the column {name!r}") from None


def _check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    members = [_member(archive, name, path) for name in COLUMNS]
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _damage_error(path, f"{member.filename} has an unknown compression")
    whole, packed = sum(one.file_size for one in members), path.stat().st_size
    if whole > MOST_BYTES or whole > max(SMALL_BYTES, SHRINKS * packed):
        raise _damage_error(
            path, f"its {packed} bytes claim to expand to {whole}, which no run writes"
        )


def _read_array(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    member = _member(archive, name, path)
    with archive.open(member) as file:
        data = file.read(member.file_size)
    start, shape, kind = _read_header(data, name, path)
    wanted = "U" if name in NAMES else "iu"
    if len(shape) != 1 or kind.kind not in wanted or not kind.itemsize:
        raise _damage_error(
            path, f"column {name!r} is {kind.str} of shape {shape}: not a row of values"
        )
    if shape[0] * kind.itemsize != len(data) - start:
        raise _damage_error(
            path, f"column {name!r} has {len(data) - start} bytes for {shape[0]} values"
        )
    values = np.frombuffer(data, kind, shape[0], start)
    values = values if kind.isnative else values.astype(kind.newbyteorder("="))
    if kind.kind == "U" and not _are_letters(values.view(np.uint32)):
        raise _damage_error(path, f"column {name!r} holds numbers that are not letters")
    return values


def _are_letters(codes: NDArray[np.uint32]) -> bool:
    """Whether all are code points of Unicode, halves of pairs apart: numpy's text takes any."""
    return not ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any()


def _read_header(data: bytes, name: str, path: Path) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, kind = read(file, max_header_size=1000)
    except Exception as error:  # the header is a Python expression, and anything can be in it
        raise _damage_error(path, f"column {name!r} has no array header") from error
    return file.tell(), shape, kind


def _impossible(columns: Columns, sources: int) -> Iterator[tuple[str, str]]:
    """(column, what is wrong) of columns of the right types that no run writes."""
    yield from _odd_names(columns)
    if len(columns["kind"]):
        yield from _odd_codes(columns, sources)
        yield from _odd_times(columns)
        yield from _odd_frames(columns)


def _odd_names(columns: Columns) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        names = columns[name].tolist()
        if len(set(names)) != len(names) or len(names) > MOST_NAMES:
            yield name, "duplicate names"
        if max(map(len, names), default=0) > LONGEST_NAME:
            yield name, f"a name of more than {LONGEST_NAME} letters"
    if tuple(columns["kind_names"].tolist()) != KINDS:
        yield "kind_names", f"not {', '.join(KINDS)}"


def _odd_codes(columns: Columns, sources: int) -> Iterator[tuple[str, str]]:
    for name in ("thread", "kind", "stage"):
        codes, known = columns[name], len(columns[f"{name}_names"])
        if name == "stage":  # time between spans has no stage
            codes = codes[columns["kind"] != KINDS.index(OTHER)]
        if len(codes) and not 0 <= codes.min() <= codes.max() < known:
            yield name, f"a code outside the {known} of {name}_names"
    if columns["stage"].min() < -1 or columns["stage"].max() >= len(columns["stage_names"]):
        yield "stage", "a code outside stage_names"
    if not 0 <= columns["source"].min() <= columns["source"].max() < sources:
        yield "source", f"the run has {sources}, counted from 0"
    if not -1 <= columns["index"].min() <= columns["index"].max() < LATEST_NS:
        yield "index", "an invalid frame number"


def _odd_times(columns: Columns) -> Iterator[tuple[str, str]]:
    for name in ("start_ns", "end_ns"):
        if not -LATEST_NS < columns[name].min() <= columns[name].max() < LATEST_NS:
            yield name, "an invalid time"
        columns[name] = columns[name].astype(np.int64, copy=False)
    if (columns["end_ns"] < columns["start_ns"]).any():
        yield "end_ns", "a span that ends before it starts"
    for name in TOLD:
        if not NOT_KNOWN <= columns[name].min() <= columns[name].max() < LATEST_NS:
            yield name, "an invalid time"


def _odd_frames(columns: Columns) -> Iterator[tuple[str, str]]:
    """A frame that is done before it is read: its rows are not where the run put them."""
    frames = when_frames_were(columns)
    for frame in frames[frames[:, 3] < frames[:, 2], 1][:1].tolist():
        yield "index", f"frame {frame} ends before it is read"


def when_frames_were(columns: Columns) -> NDArray[np.int64]:
    """[F, 4] int64: source, frame, and its start and end in ns; complete frames only."""
    ends = ends_of_frames(columns["stage_names"].tolist())
    read, done = _work_of(columns, (READ,)), _work_of(columns, ends)
    source, frame = (
        np.concatenate([columns[name][read], columns[name][done]]).astype(np.int64)
        for name in ("source", "index")
    )
    order = np.lexsort((frame, source))
    source, frame = source[order], frame[order]
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(source) != 0) | (np.diff(frame) != 0)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(first) - 1
    began = np.full(first.sum(), LATEST_NS)
    ended = np.full(first.sum(), -LATEST_NS)
    np.minimum.at(began, group[: len(read)], columns["start_ns"][read])
    np.maximum.at(ended, group[len(read) :], columns["end_ns"][done])
    found = np.stack([source[first], frame[first], began, ended], axis=1)
    return found[(began < LATEST_NS) & (ended > -LATEST_NS)]


def _work_of(columns: Columns, names: Sequence[str]) -> NDArray[np.intp]:
    stages = columns["stage_names"].tolist()
    codes = [stages.index(name) for name in names if name in stages]
    return np.flatnonzero((columns["kind"] == KINDS.index(WORK)) & np.isin(columns["stage"], codes))
