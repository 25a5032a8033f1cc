"""OUT/detections: all detections as a Parquet dataset, one partition per source; and
OUT/detections.csv, the same in one table (--one-csv).

    OUT/detections/source=cam1%2Fmonday.mp4/detections.parquet

A partition is complete before its item gets a marker (done.json). DuckDB, Spark and pyarrow read
the column ``source`` from the folder's name. Without pyarrow (extra ``batch``) there is no dataset.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from detector.batch.layout import CURE
from detector.core.errors import OutputError
from detector.core.errors.text import as_cell
from detector.core.errors.writing import put_in_place, whole_file
from detector.core.sinks._partial import output_errors

FOLDER, KEY, FILE = "detections", "source=", "detections.parquet"
ENDING = b"PAR1"  # the last bytes of a complete Parquet file
LONGEST = 200  # bytes of a folder's name; a longer name is shortened and gets a digest
COLUMNS = ("frame", "time", "class", "score", "box", "track", "inferred")
SIDES = ("x1", "y1", "x2", "y2")
BLOCK = 50_000  # detections held in memory at a time


def is_installed() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def partition(place: str, name: str) -> Path:
    return Path(place, FOLDER, f"{KEY}{_quoted(name)}")


def _quoted(name: str) -> str:
    """Quote an item's name for a path as Hive and Spark do. A shortened name cannot be unquoted."""
    text = quote(name, safe=" ")
    if len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{quote(unquote(text[: LONGEST - 20], errors='ignore'), safe=' ')}~{digest}"


def gather(place: str, name: str, rows: Path) -> None:
    """Write an item's partition from its detections.jsonl. It replaces an earlier partition.

    Columns: frame int64, time float64 (seconds), class text, score float64, box struct of x1, y1,
    x2, y2 float64 (pixels), track int64 (null without --track, and for objects that have no id
    yet), inferred bool (false if a track predicted the box: --infer-every). Frames without
    detections have no row. Raises OutputError.
    """
    folder = partition(place, name)
    if os.path.islink(folder) or os.path.isfile(folder):  # the partition must be a folder in OUT
        with suppress(OSError):
            os.unlink(folder)
    temporary = folder / f".{secrets.token_hex(8)}.tmp"
    try:
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                write_table(file, rows)
                file.flush()
                put_in_place(temporary, folder / FILE, file.fileno())
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(
            f"{rows}: damaged, not rows of detections; remove its folder and use --resume to "
            "repeat the item"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_table(target: BinaryIO, rows: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    schema = _schema()
    # Only class names repeat. Dictionary encoding of the numbers would make a small file larger.
    with pyarrow.parquet.ParquetWriter(
        target, schema, compression="zstd", use_dictionary=["class"]
    ) as writer:
        for columns in _blocks(rows):
            writer.write_table(pyarrow.table(columns, schema=schema))


def write_csv(target: Path, sources: Iterable[tuple[str, Path]]) -> None:
    """Write all detections as one table, without pyarrow. ``sources``: (name, file of rows)."""
    with (
        whole_file(target, CURE, ours=True) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        table = csv.writer(file)
        table.writerow(["source", *COLUMNS[:4], *SIDES, *COLUMNS[5:]])
        for source, rows in sources:
            for columns in _blocks(rows):
                for frame, time, name, score, box, *rest in zip(*columns.values(), strict=True):
                    what = frame, time, as_cell(name), score, *box.values()
                    table.writerow([as_cell(source), *what, rest[0], int(rest[1])])


def classes_in(rows: Path) -> set[str]:
    return {name for columns in _blocks(rows) for name in columns["class"]}


@cache
def _schema() -> Any:
    import pyarrow

    number = pyarrow.float64()
    return pyarrow.schema(
        [
            ("frame", pyarrow.int64()),
            ("time", number),
            ("class", pyarrow.string()),
            ("score", number),
            ("box", pyarrow.struct([(side, number) for side in SIDES])),
            ("track", pyarrow.int64()),
            ("inferred", pyarrow.bool_()),
        ]
    )


def _blocks(rows: Path) -> Iterator[dict[str, list[Any]]]:
    columns = _empty()
    with rows.open("rb") as lines:
        for line in lines:
            row = json.loads(line)
            for found in row["detections"]:
                x1, y1, x2, y2 = found["box"]
                columns["frame"].append(row["frame"])
                columns["time"].append(row["time_s"])
                columns["class"].append(found["class"])
                columns["score"].append(found["score"])
                columns["box"].append({"x1": x1, "y1": y1, "x2": x2, "y2": y2})
                columns["track"].append(found.get("track"))
                columns["inferred"].append(row.get("inferred", True))
            if len(columns["frame"]) >= BLOCK:
                yield columns
                columns = _empty()
    yield columns


def _empty() -> dict[str, list[Any]]:
    return {name: [] for name in COLUMNS}


def remove(place: str, name: str) -> None:
    folder = partition(place, name)
    if os.path.islink(folder):
        with suppress(OSError):
            os.unlink(folder)
        return
    with suppress(OSError):  # remove the file first, so that an interruption leaves no rows
        (folder / FILE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def missing(place: str, names: Iterable[str]) -> list[str]:
    folder = os.path.join(place, FOLDER)
    return [name for name in names if not _stands(f"{folder}/{KEY}{_quoted(name)}")]


def _stands(folder: str) -> bool:
    try:
        is_file = stat.S_ISREG(os.lstat(f"{folder}/{FILE}").st_mode)
        if not is_file or os.path.islink(folder):
            return False
        with open(f"{folder}/{FILE}", "rb") as file:
            file.seek(-len(ENDING), os.SEEK_END)
            return file.read() == ENDING
    except OSError:
        return False
