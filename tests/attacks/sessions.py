"""Damaged and hostile versions of a real session; a seed selects the damage.

``cases`` yields (name, files to replace in a valid session). ``attack`` replaces these files, runs
in this process all commands that read a session, and returns the problems. For thousands of cases:

    python -m tests.attacks.sessions --cases 3000 --seed 7
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import shutil
import signal
import sqlite3
import struct
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import cv2
import numpy as np

from tests.attacks.kinds.nsys_files import damage_recording
from tests.attacks.mutate import NUMBERS, damage, damage_json
from tests.lab.report.sessions import ran, with_passes
from tests.lab.session.test_nsys import LOAD, PROCESS, export

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
    export(session / NSYS, LOAD, registered=False)
    return session


LOOP_MARK = "loop batch=1 concurrency=1 requests=4 images=5 queue_batches=2 results=3 sync=0"


# ----------------------------------------------------------------------
# Cases


def cases(session: Path, seed: int) -> Iterator[Case]:
    """Yield the named cases, then random cases without end. The seed decides the random cases."""
    yield from named(session)
    random = Random(seed)
    files = {str(path.relative_to(session)): path.read_bytes() for path in _files(session)}
    documents = [name for name in files if name.endswith(".json") and name != "summary.json"]
    for number in itertools.count():
        name = random.choice([*["session.json"] * 4, *documents, *["spans.npz"] * 4, NSYS])
        if name == "spans.npz":
            data = damage_columns(random, files[name])
        elif name == NSYS:
            data = damage_recording(random, files[name])
        elif random.random() < 0.8:
            data = damage_json(random, json.loads(files[name]))
        else:
            data = damage(random, files[name])
        yield f"{name}: {seed}-{number}", {name: data}


def _files(session: Path) -> list[Path]:
    return sorted(path for path in session.rglob("*") if path.is_file())


def damage_columns(random: Random, data: bytes) -> bytes:
    """Change the length, type, shape or content of a column of an archive, or remove the column."""
    if random.random() < 0.3:
        return damage(random, data)
    with np.load(io.BytesIO(data)) as file:
        columns = {name: file[name] for name in file.files}
    name = random.choice(list(columns))
    column, change = columns[name], random.randrange(8)
    if change == 0:
        del columns[name]
    elif change == 1:
        columns[name] = column[: random.randint(0, len(column))]
    elif change == 2:
        of_numbers = ("f4", "i1", "u8", ">i8", "?", "c8", "U5", "S3", "O", "M8[s]")
        kinds = ("S9", "U1", "O") if column.dtype.kind == "U" else of_numbers
        columns[name] = column.astype(random.choice(kinds))
    elif change == 3:
        columns[name] = column.reshape(-1, 1) if random.random() < 0.5 else np.array(3)
    elif change == 4:
        columns = {other: values[:0] for other, values in columns.items()}
    elif change == 5 and column.dtype.kind in "iu":
        changed = column.astype(np.int64)
        changed[random.randrange(len(changed))] = np.int64(random.choice(NUMBERS) % 2**63)
        columns[name] = changed if random.random() < 0.5 else -changed
    elif change == 6 and column.dtype.kind == "U":
        columns[name] = np.array([random.choice(("", "x" * 999, "\x00", "infer")) for _ in column])
    else:
        columns[name] = column[::-1]
    packed = io.BytesIO()
    np.savez_compressed(packed, **columns)
    if random.random() < 0.1:
        return _with_entry(packed.getvalue(), f"{name}.npy", b"\x93NUMPY" + bytes(20))
    return packed.getvalue()


def _with_entry(data: bytes, name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, content if entry.filename == name else old.read(entry))
    return packed.getvalue()


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


def changed_database(data: bytes, *statements: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sqlite"
        path.write_bytes(data)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            for statement in statements:
                database.execute(statement)
        return path.read_bytes()


# ----------------------------------------------------------------------
# Named cases


def named(session: Path) -> Iterator[Case]:
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
    """Return valid JSON, deeper than any document, but within the parser's limit of depth."""
    text = json.dumps({**document, "config": {"a": {"b": "HERE"}}, "more": "HERE"})
    return text.replace('"HERE"', "[" * 400 + "]" * 400).encode()


def _named_frames() -> Iterator[Case]:
    for file in ("/etc/passwd", "../session.json", "frames/../../x", "\x00", "x" * 5000, "frames"):
        row = {"frame": 3, "ms": 9.5, "stage": 'x" onload="x', "stage_ms": 7.0, "file": file}
        facts = {"available": True, "reason": None, "rows": [row]}
        content = json.dumps(facts).encode()
        yield f"passes/frames.json: {file[:20]!r}", {"passes/frames.json": content}
    yield "frames: text instead of a picture", {"frames/000003.jpg": b"not a picture"}


def _named_archives(data: bytes) -> Iterator[Case]:
    columns = dict(np.load(io.BytesIO(data)))
    rows = len(columns["kind"])
    headers = {
        "10^12 rows": b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }\n",
        "negative number of rows": b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }\n",
        "many dimensions": b"{'descr': '<i8', 'fortran_order': False, 'shape': (1,1,1,1,1,1), }\n",
        "text in the shape": b"{'descr': '<i8', 'fortran_order': False, 'shape': ('a',), }\n",
        "huge strings": b"{'descr': '<U2000000000', 'fortran_order': False, 'shape': (1,), }\n",
        "empty strings": b"{'descr': '<U0', 'fortran_order': False, 'shape': (9,), }\n",
        "objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
        "unknown type": b"{'descr': 'what', 'fortran_order': False, 'shape': (1,), }\n",
        "list instead of a dict": b"[1, 2]\n",
        "deep": b"(" * 900 + b"\n",
        "code": b"__import__('os').abort()\n",
        "cut off": b"{'descr'",
        "nothing": b"",
    }
    for name, header in headers.items():
        for column in ("start_ns", "thread_names"):
            data = npz_of_headers(columns, column, header, bytes(8 * rows))
            yield f"spans.npz: {column}, {name}", {"spans.npz": data}
    zeros = np.zeros(800_000, np.int64)
    bomb = {name: columns[name] if name.endswith("_names") else zeros for name in columns}
    yield "spans.npz: a bomb", {"spans.npz": npz(bomb)}
    yield "spans.npz: many other members", {"spans.npz": npz(columns, other=np.zeros(10))}
    yield "spans.npz: a pickle", {"spans.npz": b"\x80\x04cos\nsystem\n(S'true'\ntR."}
    # Change sizes and methods of the first entry in the archive's central directory.
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


ENDLESS_QUERY = (
    "with recursive r(x) as (select 1 union all select x + 1 from r)"
    " select x as start, x as end, 59 as eventType, 1 as category, 'read' as text,"
    " 1 as globalTid, 1 as textId, 5 as domainId, x as int64Value from r"
)


NUMBERS_TO_15000 = "with recursive r(x) as (select 1 union all select x + 1 from r limit 15000)"
MANY = f"insert into NVTX_EVENTS {NUMBERS_TO_15000} select 10 * x, 10 * x + 9, 59, 1"
WORKER = PROCESS + 1
RECORDINGS: dict[str, tuple[str, ...]] = {
    "end before start": ("update NVTX_EVENTS set end = start - 1",),
    "no time at all": ("update NVTX_EVENTS set end = start",),
    "all calls at the same time": ("update NVTX_EVENTS set start = 5, end = 9",),
    "one thread": (f"update NVTX_EVENTS set globalTid = {PROCESS}",),
    "one frame": ("update NVTX_EVENTS set int64Value = 0",),
    "decreasing frame numbers": ("update NVTX_EVENTS set int64Value = 11 - int64Value",),
    "reversed time": ("update NVTX_EVENTS set start = -end, end = -start",),
    "an endless view": ("drop table NVTX_EVENTS", f"create view NVTX_EVENTS as {ENDLESS_QUERY}"),
    "an endless list of strings": (
        "drop table StringIds",
        "create view StringIds as with recursive r(x) as (select 1 union all"
        " select x + 1 from r) select x as id, 'x' as value from r",
    ),
    "a view that calls itself a table": (
        "drop table StringIds",
        "create view StringIds as select 1 as id, 'x' as value",
        "pragma writable_schema = on",
        "update sqlite_master set type = 'table' where name = 'StringIds'",
    ),
    "a computed column": (
        "drop table OSRT_API",
        "create table OSRT_API (start int, end int, globalTid int,"
        " nameId int as (length(printf('%.*c', 900000000, 'x'))))",
        f"insert into OSRT_API (start, end, globalTid) values (1, 2, {WORKER})",
    ),
    "a virtual table": (
        "drop table StringIds",
        "create virtual table StringIds using fts5(id, value)",
    ),
    **{
        mark[:14]: (
            "delete from NVTX_EVENTS where eventType = 34",
            "insert into NVTX_EVENTS values "
            f"(0, null, 34, null, '{mark}', {PROCESS}, null, 5, null)",
        )
        for mark in (
            LOOP_MARK.replace("batch=1", "batch=0"),
            LOOP_MARK.replace("=", f"={'9' * 5000}"),
            "loop x=",
        )
    },
    "many threads": (f"{MANY}, 'read', {PROCESS} + x, null, 5, x from r",),
    "many stages": (f"{MANY}, 'stage ' || x, {WORKER}, null, 5, x from r",),
    "many calls in many stages": (
        f"{MANY}, 'read', {WORKER}, null, 5, x from r",
        f"insert into OSRT_API {NUMBERS_TO_15000} select 0, 10000000, {WORKER}, 1 from r",
    ),
    "a long text": ("update NVTX_EVENTS set text = hex(zeroblob(600000))",),
}


def _named_recordings(data: bytes) -> Iterator[Case]:
    for name, statements in RECORDINGS.items():
        yield f"{NSYS}: {name}", {NSYS: changed_database(data, *statements)}


# ----------------------------------------------------------------------
# Running the commands


class _HangError(BaseException):
    pass


def attack(session: Path, intact: Path, case: Case) -> list[str]:
    """Run the commands on ``session`` with the case's files in it, and return the problems.
    ``intact`` is an undamaged session to compare with. At the end, the files are restored."""
    name, files = case
    kept = {file: _take(session / file) for file in files}
    try:
        for file, content in files.items():
            _put(session / file, content)
        with _patience():
            problems = _try_nsys(session / NSYS) if NSYS in files else _try_session(session, intact)
    except _HangError:
        problems = [f"hangs for more than {PATIENCE_S} s"]
    finally:
        for file, content in kept.items():
            _put(session / file, content)
    return [f"{name}: {one}" for one in problems]


def _try_session(session: Path, intact: Path) -> list[str]:
    """Run the commands until one refuses the session, since the rest would refuse it, too."""
    with tempfile.TemporaryDirectory() as out:
        commands = [["report", str(session), "--format", "table"]]
        commands += [
            ["report", str(session), "--format", kind, "-o", f"{out}/{kind}"]
            for kind in ("html", "json", "csv", "trace")
        ]
        commands += [["diff", str(session), str(intact)], ["diff", str(intact), str(session)]]
        problems = []
        for command in commands:
            code, message = run(command)
            problems += _complaints(command, code, message, str(session))
            if code:
                break
        return problems


def _try_nsys(path: Path) -> list[str]:
    problems = []
    for more in ([], ["--json"]):
        command = ["profile", "--nsys", str(path), *more]
        code, message = run(command)
        problems += _complaints(command, code, message, str(path))
    return problems


def _complaints(command: list[str], code: int, message: str, place: str) -> list[str]:
    what = f"{' '.join(command[:1] + command[2:4])} ends with {code}: {message.strip()[:300]}"
    if code not in (0, 2):
        return [what]
    lines = message.splitlines()
    few = "too few frames" in message  # the one refusal that does not mean damage
    if code == 2 and (len(lines) != 1 or not (place in message or few) or len(message) > 2000):
        return [what]
    has_controls = any(ord(one) < 32 for one in message.strip("\n"))
    return [f"{what} (control characters)"] if has_controls else []


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
    parser = argparse.ArgumentParser(description="Read damaged sessions with several commands.")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    bad, slowest = 0, (0.0, "")
    with tempfile.TemporaryDirectory() as folder:
        session = whole_session(Path(folder) / "a")
        intact = Path(shutil.copytree(session, Path(folder) / "b"))
        for _, case in zip(range(arguments.cases), cases(session, arguments.seed), strict=False):
            start = time.perf_counter()
            for problem in attack(session, intact, case):
                bad += 1
                print(problem, flush=True)
            slowest = max(slowest, (time.perf_counter() - start, case[0]))
    print(
        f"{arguments.cases} cases, {bad} ended badly; "
        f"the slowest took {slowest[0]:.1f} s: {slowest[1]}"
    )


if __name__ == "__main__":
    main()
