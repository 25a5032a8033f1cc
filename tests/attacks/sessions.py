"""Damaged and hostile sessions, made from a real one by a seed.

``cases`` yields (name, files): what to put over the files of a whole session. ``attack`` puts them
there, runs every command that reads a session in this process, and says what is wrong with how they
ended. By hand, thousands:

    python -m tests.attacks.sessions --cases 3000 --seed 7
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import random
import shutil
import signal
import sqlite3
import struct
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

import cv2
import numpy as np

from tests.lab.report.sessions import ran, with_passes

NSYS = "run.sqlite"
PATIENCE_S = 60  # for all commands of one case


class Odd(Enum):
    ABSENT = "absent"
    FOLDER = "folder"
    PIPE = "pipe"
    LOOP = "a link to itself"
    ENDLESS = "a link to /dev/zero"


Files = Mapping[str, bytes | Odd]
Case = tuple[str, Files]


def whole_session(folder: Path) -> Path:
    session = with_passes(ran(folder))
    (session / "frames").mkdir()
    cv2.imwrite(str(session / "frames/000003.jpg"), np.full((8, 8, 3), 99, np.uint8))
    row = {"frame": 3, "ms": 9.5, "stage": "infer", "stage_ms": 7.0, "file": "frames/000003.jpg"}
    facts = {"available": True, "reason": None, "rows": [row], "undisturbed": "nothing is run"}
    (session / "passes/frames.json").write_text(json.dumps(facts))
    own = {"available": True, "reason": None, "answer": 42, "slowdown": 1.5, "more": {"a": [1]}}
    (session / "passes/somebodys_own.json").write_text(json.dumps(own))
    recording(session / NSYS)
    return session


def recording(path: Path) -> None:
    """A small export of nsys: reader, worker and writer, some system calls and kernels."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "create table NVTX_EVENTS (start int, end int, eventType int, category int, text text,"
            " globalTid int, textId int, domainId int, int64Value int)"
        )
        database.execute("create table StringIds (id integer primary key, value text)")
        database.execute("create table OSRT_API (start int, end int, globalTid int, nameId int)")
        database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int)")
        tid = 7 << 24
        rows = [
            (0, None, 75, None, "detect-video", tid, None, 5, None),
            (0, None, 33, 1, "work", tid, None, 5, None),
            (0, None, 33, 2, "wait_input", tid, None, 5, None),
            (0, None, 34, None, LOOP, tid, None, 5, None),
        ]
        stages = (("read", 1), ("preprocess", 1), ("infer", 2), ("head", 3), ("nms", 3))
        for frame in range(12):
            for step, (stage, thread) in enumerate((*stages, ("write", 3))):
                start = 1000 * (6 * frame + step)
                rows.append((start, start + 900, 59, 1, stage, tid + thread, None, 5, frame))
        database.executemany("insert into NVTX_EVENTS values (?,?,?,?,?,?,?,?,?)", rows)
        database.execute("insert into StringIds values (1, 'futex')")
        database.executemany(
            "insert into OSRT_API values (?,?,?,1)",
            [(500 * at, 500 * at + 300, tid + at % 4) for at in range(60)],
        )
        database.executemany(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?,?)",
            [(3000 * at, 3000 * at + 700) for at in range(12)],
        )


LOOP = "loop batch=1 concurrency=1 requests=4 images=5 queue_batches=2 results=3 sync=0"


# ----------------------------------------------------------------------
# What is done to the files


def cases(session: Path, seed: int) -> Iterator[Case]:
    """Endless; the same seed gives the same cases. The named ones come first."""
    yield from _named(session)
    dice = random.Random(seed)
    files = {str(path.relative_to(session)): path.read_bytes() for path in _files(session)}
    documents = [name for name in files if name.endswith(".json") and name != "summary.json"]
    while True:
        kind = dice.choice(("bytes", "value", "value", "value", "column", "column", "nsys"))
        if kind == "bytes":
            name = dice.choice([*documents, "spans.npz", "spans.npz", NSYS])
            what, data = _other_bytes(files[name], dice)
            yield f"{name}: {what}", {name: data}
        elif kind == "value":
            name = dice.choice(["session.json"] * 8 + documents)
            what, data = _other_value(json.loads(files[name]), dice)
            yield f"{name}: {what}", {name: data}
        elif kind == "column":
            what, data = _other_column(files["spans.npz"], dice)
            yield f"spans.npz: {what}", {"spans.npz": data}
        else:
            what, data = _other_row(files[NSYS], dice)
            yield f"{NSYS}: {what}", {NSYS: data}


def _files(session: Path) -> list[Path]:
    return sorted(path for path in session.rglob("*") if path.is_file())


def _other_bytes(data: bytes, dice: random.Random) -> tuple[str, bytes]:
    at, length = dice.randrange(len(data)), dice.randrange(1, 64)
    kind = dice.choice(("cut", "flipped", "gap", "inserted", "twice", "zeros", "noise", "ends"))
    if kind == "flipped":
        changed = bytearray(data)
        for _ in range(dice.choice((1, 2, 8, 64))):
            changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        return kind, bytes(changed)
    random_bytes = dice.randbytes(length)
    return f"{kind} at {at}", {
        "cut": data[:at],
        "gap": data[:at] + data[at + length :],
        "inserted": data[:at] + random_bytes + data[at:],
        "twice": data[:at] + data[at : at + length] + data[at:],
        "zeros": data[:at] + bytes(length) + data[at + length :],
        "noise": data[:at] + random_bytes + data[at + length :],
        "ends": data[at:] + data[:at],
    }[kind]


WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.0,
    -0.5,
    5e-324,
    1e300,
    -1e300,
    10**300,
    2**31,
    2**63,
    2**63 - 1,
    1e18,
    float("nan"),
    float("inf"),
    "",
    "12",
    "=1+1",
    "\x1b[31mred\x1b]0;title\x07",
    "two\nlines\u202e",
    "\ud83d",
    "[/bold]",
    "<script>alert(1)</script>",
    "../../../../etc/passwd",
    "x" * 100_000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    [-1.5] * 1000,
    {"a": {"b": {"c": {}}}},
)


def _other_value(document: Any, dice: random.Random) -> tuple[str, bytes]:
    """One value, or several, of another type or size; or a key less, more, or by another name."""
    done = []
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        places = list(_places(document))
        if not places:
            break
        group, key = dice.choice(places)
        kind = dice.choice(("wrong", "wrong", "wrong", "gone", "renamed", "scaled"))
        if kind == "gone":
            del group[key]
        elif kind == "renamed" and isinstance(group, dict):
            group[dice.choice(("x", "", "\udc80", "nan", f"{key} "))] = group.pop(key)
        elif kind == "scaled" and isinstance(group[key], int | float):
            group[key] = group[key] * dice.choice((-1, 0, 0.5, 3, 1e6, 1e17))
        else:
            group[key] = copy.deepcopy(dice.choice(WRONG))
        done.append(f"{key} {kind}")
    return ", ".join(done), json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in list(items):
        yield value, key
        if isinstance(one, dict | list):
            yield from _places(one)


def npz(columns: Mapping[str, Any], **more: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **columns, **more)
    return out.getvalue()


def npz_of_headers(columns: Mapping[str, Any], name: str, header: bytes, data: bytes) -> bytes:
    """Return an archive in which one column has this header, followed by this data."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, column in columns.items():
            part = io.BytesIO()
            np.lib.format.write_array(part, column)
            own = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
            archive.writestr(f"{each}.npy", own if each == name else part.getvalue())
    return out.getvalue()


EXTREMES = (-1, -2, 0, 1, 3, 7, 127, 255, 2**31 - 1, 2**62, 2**63 - 1, -(2**63))


def _other_column(data: bytes, dice: random.Random) -> tuple[str, bytes]:
    columns = dict(np.load(io.BytesIO(data)))
    name = dice.choice(list(columns))
    column = columns[name]
    changes: dict[str, Callable[[], Any]] = {
        "0-d": lambda: np.array(column.reshape(-1)[0]),
        "2-d": lambda: np.stack([column, column]),
        "shorter": lambda: column[:-1],
        "empty": lambda: column[:0],
        "floats": lambda: np.full(len(column), dice.choice((np.nan, np.inf, 0.5))),
        "texts": lambda: column.astype(str),
        "bytes": lambda: np.full(len(column), b"x"),
        "complex": lambda: np.full(len(column), 1j),
        "times": lambda: np.full(len(column), np.datetime64("2020-01-01")),
        "booleans": lambda: np.full(len(column), True),
        "objects": lambda: np.array([{}] * len(column), object),
        "fields": lambda: np.zeros(len(column), [("a", "i4"), ("b", "i4")]),
        "big-endian": lambda: column.astype(column.dtype.newbyteorder(">")),
        "same": lambda: np.full(len(column), column[0]),
        "backwards": lambda: column[::-1].copy(),
        "in another order": lambda: column[dice.sample(range(len(column)), len(column))],
        "value": lambda: _with_value(column, dice),
        "values": lambda: _with_value(_with_value(column, dice), dice),
        "unsigned": lambda: column.astype(np.uint64),
    }
    kind = dice.choice([*changes, "value", "value", "value", "gone"])
    if kind == "gone":
        del columns[name]
    else:
        with contextlib.suppress(ValueError, TypeError):
            columns[name] = changes[kind]()
    return f"{name} {kind}", npz(columns)


def _with_value(column: Any, dice: random.Random) -> Any:
    at = dice.randrange(len(column))
    if column.dtype.kind == "U":
        texts = column.tolist()
        texts[at] = dice.choice(
            ("", "x" * 300, "worker-x", "main", "\x1b[2J", texts[0], "reader-1")
        )
        return np.array(texts)
    changed = column.astype(np.int64)
    changed[at] = dice.choice(EXTREMES)
    return changed


def _other_row(data: bytes, dice: random.Random) -> tuple[str, bytes]:
    """A value of another type or size in a row of the recording, or in all of a column."""
    tables = ("NVTX_EVENTS", "NVTX_EVENTS", "OSRT_API", "StringIds", "CUPTI_ACTIVITY_KIND_KERNEL")
    table = dice.choice(tables)

    def change(database: sqlite3.Connection) -> str:
        names = [row[1] for row in database.execute(f"pragma table_info({table})")]
        column = dice.choice(names)
        if table == "StringIds" and column == "id":
            column = "value"
        value = dice.choice((None, -1, 0, 1.5, "", "many", b"\xff\x00", 2**62, 2**63 - 1, -(2**63)))
        where = dice.choice(("", f"where rowid % {dice.randrange(2, 9)} = 0"))
        database.execute(f"update {table} set {column} = ? {where}", (value,))
        return f"{table}.{column} = {value!r} {where}"

    return changed_database(data, change)


def changed_database(data: bytes, change: Callable[[sqlite3.Connection], str]) -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sqlite"
        path.write_bytes(data)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            what = change(database)
        return what, path.read_bytes()


# ----------------------------------------------------------------------
# Cases that have a name


def _named(session: Path) -> Iterator[Case]:
    for name in ("session.json", "passes/layers.json", "passes/somebodys_own.json"):
        document = json.loads((session / name).read_bytes())
        yield f"{name}: deep", {name: b"[" * 200_000}
        yield f"{name}: deep and closed", {name: b"[" * 50_000 + b"]" * 50_000}
        yield f"{name}: a deep value", {name: _with_deep_value(document)}
        yield f"{name}: a long number", {name: b'{"schema": ' + b"1" * 100_000 + b"}"}
        yield f"{name}: 1e999", {name: b'{"schema": 1, "available": true, "pid": 1e999}'}
        yield f"{name}: a schema of text", {name: b'{"schema": "' + b"1" * 10_000 + b'"}'}
        for content in (b"", b"null", b"5", b"[]", b"{}", b'"x"', b"\xff\xfe", b"\x00" * 1000):
            yield f"{name}: {content[:4]!r}", {name: content}
    for odd in Odd:
        for name in ("session.json", "spans.npz", "passes/layers.json", "frames/000003.jpg", NSYS):
            yield f"{name}: {odd.value}", {name: odd}
    yield from _named_frames()
    yield from _named_archives((session / "spans.npz").read_bytes())
    yield from _named_recordings((session / NSYS).read_bytes())


def _with_deep_value(document: Any) -> bytes:
    """Valid JSON within the parser's limit, but deeper than any document."""
    text = json.dumps({**document, "config": {"a": {"b": "HERE"}}, "more": "HERE"})
    return text.replace('"HERE"', "[" * 400 + "]" * 400).encode()


def _named_frames() -> Iterator[Case]:
    for file in ("/etc/passwd", "../session.json", "frames/../../x", "\x00", "x" * 5000, "frames"):
        row = {"frame": 3, "ms": 9.5, "stage": 'x" onload="x', "stage_ms": 7.0, "file": file}
        facts = {"available": True, "reason": None, "rows": [row]}
        yield (
            f"passes/frames.json: {file[:20]!r}",
            {"passes/frames.json": json.dumps(facts).encode()},
        )
    yield "frames: no picture", {"frames/000003.jpg": b"not a picture"}


def _named_archives(data: bytes) -> Iterator[Case]:
    columns = dict(np.load(io.BytesIO(data)))
    rows = len(columns["kind"])
    headers = {
        "10^12 rows": b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }\n",
        "negative": b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }\n",
        "many dimensions": b"{'descr': '<i8', 'fortran_order': False, 'shape': (1,1,1,1,1,1), }\n",
        "no numbers": b"{'descr': '<i8', 'fortran_order': False, 'shape': ('a',), }\n",
        "long text": b"{'descr': '<U2000000000', 'fortran_order': False, 'shape': (1,), }\n",
        "empty text": b"{'descr': '<U0', 'fortran_order': False, 'shape': (9,), }\n",
        "objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
        "no type": b"{'descr': 'what', 'fortran_order': False, 'shape': (1,), }\n",
        "no dict": b"[1, 2]\n",
        "deep": b"(" * 900 + b"\n",
        "code": b"__import__('os').abort()\n",
        "cut": b"{'descr'",
        "nothing": b"",
    }
    for name, header in headers.items():
        for column in ("start_ns", "thread_names"):
            made = npz_of_headers(columns, column, header, bytes(8 * rows))
            yield f"spans.npz: {column}, {name}", {"spans.npz": made}
    zeros = np.zeros(800_000, np.int64)
    bomb = {name: columns[name] if name.endswith("_names") else zeros for name in columns}
    yield "spans.npz: a bomb", {"spans.npz": npz(bomb)}
    yield "spans.npz: many other members", {"spans.npz": npz(columns, other=np.zeros(10))}
    yield "spans.npz: a pickle", {"spans.npz": b"\x80\x04cos\nsystem\n(S'true'\ntR."}
    # Sizes and methods in the archive's own directory.
    place = data.index(b"PK\x01\x02")
    for offset, kind, value in (
        (8, "encrypted", b"\x01\x00"),
        (10, "bzip2", b"\x0c\x00"),
        (10, "unknown method", b"\x63\x00"),
        (20, "packed size", b"\xff\xff\xff\x7f"),
        (24, "whole size", b"\xff\xff\xff\x7f"),
        (24, "a larger size", b"\xff\xff\x00\x00"),
        (24, "no size", b"\x00\x00\x00\x00"),
        (42, "offset", b"\xff\xff\xff\x7f"),
    ):
        changed = bytearray(data)
        changed[place + offset : place + offset + len(value)] = value
        yield f"spans.npz: {kind}", {"spans.npz": bytes(changed)}


ENDLESS = (
    "with recursive r(x) as (select 1 union all select x + 1 from r)"
    " select x as start, x as end, 59 as eventType, 1 as category, 'read' as text,"
    " 1 as globalTid, 1 as textId, 5 as domainId, x as int64Value from r"
)


def _named_recordings(data: bytes) -> Iterator[Case]:
    def by(*statements: str) -> Files:
        def change(database: sqlite3.Connection) -> str:
            for statement in statements:
                database.execute(statement)
            return ""

        return {NSYS: changed_database(data, change)[1]}

    event = "insert into NVTX_EVENTS values"
    yield f"{NSYS}: end before start", by("update NVTX_EVENTS set end = start - 1")
    yield f"{NSYS}: no time at all", by("update NVTX_EVENTS set end = start")
    yield f"{NSYS}: all at once", by("update NVTX_EVENTS set start = 5, end = 9")
    yield f"{NSYS}: one thread", by("update NVTX_EVENTS set globalTid = 117440512")
    yield f"{NSYS}: one frame", by("update NVTX_EVENTS set int64Value = 0")
    yield f"{NSYS}: frames backwards", by("update NVTX_EVENTS set int64Value = 11 - int64Value")
    yield f"{NSYS}: turned around", by("update NVTX_EVENTS set start = -end, end = -start")
    yield (
        f"{NSYS}: an endless view",
        by("drop table NVTX_EVENTS", f"create view NVTX_EVENTS as {ENDLESS}"),
    )
    yield (
        f"{NSYS}: an endless list of strings",
        by(
            "drop table StringIds",
            "create view StringIds as with recursive r(x) as (select 1 union all"
            " select x + 1 from r) select x as id, 'x' as value from r",
        ),
    )
    yield (
        f"{NSYS}: a view that calls itself a table",
        by(
            "drop table StringIds",
            "create view StringIds as select 1 as id, 'x' as value",
            "pragma writable_schema = on",
            "update sqlite_master set type = 'table' where name = 'StringIds'",
        ),
    )
    yield (
        f"{NSYS}: a computed column",
        by(
            "drop table OSRT_API",
            "create table OSRT_API (start int, end int, globalTid int,"
            " nameId int as (length(printf('%.*c', 900000000, 'x'))))",
            "insert into OSRT_API (start, end, globalTid) values (1, 2, 117440513)",
        ),
    )
    yield (
        f"{NSYS}: a virtual table",
        by("drop table StringIds", "create virtual table StringIds using fts5(id, value)"),
    )
    for mark in (
        LOOP.replace("batch=1", "batch=0"),
        LOOP.replace("=", f"={'9' * 5000}"),
        "loop x=",
    ):
        yield (
            f"{NSYS}: {mark[:14]}",
            by(
                "delete from NVTX_EVENTS where eventType = 34",
                f"{event} (0, null, 34, null, '{mark}', 117440512, null, 5, null)",
            ),
        )
    many = "with recursive r(x) as (select 1 union all select x + 1 from r limit 15000)"
    yield (
        f"{NSYS}: many threads",
        by(
            f"insert into NVTX_EVENTS {many} select 10 * x, 10 * x + 9, 59, 1, 'read',"
            " 117440512 + x, null, 5, x from r"
        ),
    )
    yield (
        f"{NSYS}: many stages",
        by(
            f"insert into NVTX_EVENTS {many} select 10 * x, 10 * x + 9, 59, 1, 'stage ' || x,"
            " 117440513, null, 5, x from r"
        ),
    )
    yield (
        f"{NSYS}: many calls in many stages",
        by(
            f"insert into NVTX_EVENTS {many} select 10 * x, 10 * x + 9, 59, 1, 'read',"
            " 117440513, null, 5, x from r",
            f"insert into OSRT_API {many} select 0, 10000000, 117440513, 1 from r",
        ),
    )
    yield f"{NSYS}: a long text", by("update NVTX_EVENTS set text = hex(zeroblob(600000))")


# ----------------------------------------------------------------------
# How the commands take it


class _HangError(BaseException):
    pass


def attack(session: Path, whole: Path, case: Case) -> list[str]:
    """Return what is wrong with how the commands end on ``session`` with the case's files in it;
    empty if all is well. ``whole``: an undamaged session. The files are put back."""
    name, files = case
    kept = {file: _take(session / file) for file in files}
    try:
        for file, content in files.items():
            _put(session / file, content)
        with _patience():
            wrong = _nsys(session / NSYS) if NSYS in files else _session(session, whole)
    except _HangError:
        wrong = [f"hangs for more than {PATIENCE_S} s"]
    finally:
        for file, content in kept.items():
            _put(session / file, content)
    return [f"{name}: {one}" for one in wrong]


def _session(session: Path, whole: Path) -> list[str]:
    """All commands start with the same reading, so what one refuses they all refuse."""
    with tempfile.TemporaryDirectory() as out:
        commands = [["report", str(session), "--format", "table"]]
        commands += [
            ["report", str(session), "--format", kind, "-o", f"{out}/{kind}"]
            for kind in ("html", "json", "csv", "trace")
        ]
        commands += [["diff", str(session), str(whole)], ["diff", str(whole), str(session)]]
        wrong = []
        for command in commands:
            code, said = run(command)
            wrong += _complaints(command, code, said, str(session))
            if code:
                break
        return wrong


def _nsys(path: Path) -> list[str]:
    wrong = []
    for more in ([], ["--json"]):
        command = ["profile", "--nsys", str(path), *more]
        code, said = run(command)
        wrong += _complaints(command, code, said, str(path))
    return wrong


def _complaints(command: list[str], code: int, said: str, place: str) -> list[str]:
    what = f"{' '.join(command[:1] + command[2:4])} ends with {code}: {said.strip()[:300]}"
    if code not in (0, 2):
        return [what]
    lines = said.splitlines()
    few = "too few frames" in said  # the one refusal that does not mean damage
    if code == 2 and (len(lines) != 1 or not (place in said or few) or len(said) > 2000):
        return [what]
    return (
        [f"{what} (control characters)"] if any(ord(one) < 32 for one in said.strip("\n")) else []
    )


def run(command: list[str]) -> tuple[int, str]:
    from detector.core.cli.group import cli

    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            cli.main(command, prog_name="detect-video", standalone_mode=False)
    except SystemExit as end:
        return int(end.code or 0), errors.getvalue()
    return 0, errors.getvalue()


def _take(path: Path) -> bytes | Odd:
    return path.read_bytes() if path.is_file() else Odd.ABSENT


def _put(path: Path, content: bytes | Odd) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is Odd.FOLDER:
        path.mkdir()
    elif content is Odd.PIPE:
        os.mkfifo(path)
    elif content is Odd.LOOP:
        path.symlink_to(path)
    elif content is Odd.ENDLESS:
        path.symlink_to("/dev/zero")


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        raise _HangError

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    parser = argparse.ArgumentParser(description="Attacks report, diff and profile --nsys.")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bad, slowest = 0, (0.0, "")
    with tempfile.TemporaryDirectory() as folder:
        session = whole_session(Path(folder) / "a")
        whole = Path(shutil.copytree(session, Path(folder) / "b"))
        for _, case in zip(range(given.cases), cases(session, given.seed), strict=False):
            start = time.perf_counter()
            for wrong in attack(session, whole, case):
                bad += 1
                print(wrong, flush=True)
            slowest = max(slowest, (time.perf_counter() - start, case[0]))
    print(
        f"{given.cases} cases, {bad} ended badly; the slowest took {slowest[0]:.1f} s: {slowest[1]}"
    )


if __name__ == "__main__":
    main()
