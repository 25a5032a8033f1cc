"""Read the columns of spans.npz from a file that may be damaged or malicious.

An .npz is a zip archive with one array file per column. Before allocating memory we check the sizes
in the archive's directory, then each array's shape and type against its length. Nothing is
unpickled. Last we check the values: every code needs a name, and no span may end before it starts.
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
from detector.core.timeline.order import ends_of_frames
from detector.core.timeline.rows import NOT_KNOWN
from detector.core.timeline.spans import KINDS, OTHER, READ, WORK

NAMES = ("thread_names", "stage_names", "kind_names")
NUMBERS = ("thread", "stage", "kind", "source", "index", "start_ns", "end_ns")
# off_cpu_ns: time that a span's thread was on no core. ready_ns: how much of it was a wait for a
# core. library_ns: CPU time of the engine's threads for the span. All are NOT_KNOWN if unknown.
THREAD_TIMES = ("off_cpu_ns", "ready_ns", "library_ns")
COLUMNS = (*NUMBERS, *THREAD_TIMES, *NAMES)

# Compression leaves about 10 of a span's 51 bytes. We reject large files with a far higher ratio.
MAX_BYTES = 1 << 30
MAX_RATIO = 40
SMALL_BYTES = 16 << 20
MAX_NAMES, MAX_NAME_LENGTH = 10_000, 200
LATEST_NS = 1 << 62

Columns = dict[str, NDArray[Any]]


def read_columns(path: Path, sources: int) -> Columns:
    """Read and check all columns of a run with this many ``sources``. Raises UsageError."""
    try:
        if not path.is_file():
            raise UsageError(f"{path}: damaged or missing; the session's spans cannot be read")
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            _check_sizes(archive, path)
            columns = {name: _read_array(archive, name, path) for name in COLUMNS}
    except UsageError:
        raise
    except Exception as error:  # zipfile raises any exception on damaged bytes
        raise _damage_error(path, " ".join(str(error).split())[:120] or "not an archive") from error
    lengths = {len(columns[name]) for name in (*NUMBERS, *THREAD_TIMES)}
    if len(lengths) != 1:
        raise UsageError(f"{path}: damaged: its columns differ in length: {sorted(lengths)} rows")
    for name, fault in _find_faults(columns, sources):
        raise _damage_error(path, f"column {name!r}: {fault}")
    return columns


def _damage_error(path: Path, reason: str) -> UsageError:
    return UsageError(f"{path}: damaged or missing ({reason}); the session's spans cannot be read")


def _find_member(archive: zipfile.ZipFile, name: str, path: Path) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(f"{name}.npy")
    except KeyError:
        raise _damage_error(path, f"it lacks the column {name!r}") from None


def _check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    members = [_find_member(archive, name, path) for name in COLUMNS]
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _damage_error(path, f"{member.filename} has an unknown compression")
    expanded, packed = sum(one.file_size for one in members), path.stat().st_size
    if expanded > MAX_BYTES or expanded > max(SMALL_BYTES, MAX_RATIO * packed):
        raise _damage_error(
            path, f"its {packed} bytes claim to expand to {expanded}, which no run writes"
        )


def _read_array(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    member = _find_member(archive, name, path)
    with archive.open(member) as file:
        data = file.read(member.file_size)
    start, shape, dtype = _read_header(data, name, path)
    allowed = "U" if name in NAMES else "iu"
    if len(shape) != 1 or dtype.kind not in allowed or not dtype.itemsize:
        raise _damage_error(
            path, f"column {name!r} is {dtype.str} of shape {shape}, which no run writes"
        )
    if shape[0] * dtype.itemsize != len(data) - start:
        raise _damage_error(
            path, f"column {name!r} has {len(data) - start} bytes for {shape[0]} values"
        )
    values = np.frombuffer(data, dtype, shape[0], start)
    values = values if dtype.isnative else values.astype(dtype.newbyteorder("="))
    if dtype.kind == "U":
        codes = values.view(np.uint32)  # numpy does not check for surrogates
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise _damage_error(path, f"column {name!r} has invalid characters")
    return values


def _read_header(data: bytes, name: str, path: Path) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read(file, max_header_size=1000)
    except Exception as error:  # numpy parses the header as Python, which may raise anything
        raise _damage_error(path, f"column {name!r} has no array header") from error
    return file.tell(), shape, dtype


def _find_faults(columns: Columns, sources: int) -> Iterator[tuple[str, str]]:
    """Yield (column, fault) for each column with values that no run writes."""
    yield from _find_wrong_names(columns)
    if len(columns["kind"]):
        yield from _find_wrong_codes(columns, sources)
        yield from _find_wrong_times(columns)
        frames = find_frame_times(columns)
        for frame in frames[frames[:, 3] < frames[:, 2], 1][:1].tolist():
            yield "index", f"frame {frame} ends before it is read"


def _find_wrong_names(columns: Columns) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        names = columns[name].tolist()
        if len(set(names)) != len(names) or len(names) > MAX_NAMES:
            yield name, "duplicate or too many names"
        if max(map(len, names), default=0) > MAX_NAME_LENGTH:
            yield name, f"a name of more than {MAX_NAME_LENGTH} letters"
    if tuple(columns["kind_names"].tolist()) != KINDS:
        yield "kind_names", f"not {', '.join(KINDS)}"


def _find_wrong_codes(columns: Columns, sources: int) -> Iterator[tuple[str, str]]:
    for name in ("thread", "kind", "stage"):
        codes, known = columns[name], len(columns[f"{name}_names"])
        if name == "stage":  # time between spans has no stage
            codes = codes[columns["kind"] != KINDS.index(OTHER)]
        if len(codes) and not 0 <= codes.min() <= codes.max() < known:
            yield name, f"a code outside the {known} of {name}_names"
    if columns["stage"].min() < -1 or columns["stage"].max() >= len(columns["stage_names"]):
        yield "stage", "a code outside stage_names"
    if not 0 <= columns["source"].min() <= columns["source"].max() < sources:
        yield "source", f"a source outside the {sources} of the run"
    if not -1 <= columns["index"].min() <= columns["index"].max() < LATEST_NS:
        yield "index", "an invalid frame number"


def _find_wrong_times(columns: Columns) -> Iterator[tuple[str, str]]:
    for name in ("start_ns", "end_ns"):
        if not -LATEST_NS < columns[name].min() <= columns[name].max() < LATEST_NS:
            yield name, "an invalid time"
        columns[name] = columns[name].astype(np.int64, copy=False)
    if (columns["end_ns"] < columns["start_ns"]).any():
        yield "end_ns", "a span that ends before it starts"
    for name in THREAD_TIMES:
        if not NOT_KNOWN <= columns[name].min() <= columns[name].max() < LATEST_NS:
            yield name, "an invalid time"


def find_frame_times(columns: Columns) -> NDArray[np.int64]:
    """Return source, frame, start and end in ns of each complete frame, as [F, 4]."""
    ends = ends_of_frames(columns["stage_names"].tolist())
    read, done = _find_work(columns, (READ,)), _find_work(columns, ends)
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
    frames = np.stack([source[first], frame[first], began, ended], axis=1)
    return frames[(began < LATEST_NS) & (ended > -LATEST_NS)]


def _find_work(columns: Columns, names: Sequence[str]) -> NDArray[np.intp]:
    stages = columns["stage_names"].tolist()
    codes = [stages.index(name) for name in names if name in stages]
    return np.flatnonzero((columns["kind"] == KINDS.index(WORK)) & np.isin(columns["stage"], codes))
