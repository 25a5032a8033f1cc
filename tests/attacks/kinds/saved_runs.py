"""Damaged sessions given to ``report`` and ``diff``: session.json, spans.npz, the passes' facts."""

from __future__ import annotations

import io
import json
import zipfile
from random import Random

import numpy as np

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import session
from tests.attacks.mutate import NUMBERS, damage, damage_json

CODES = frozenset({0, 2})
# Files that report adds to a session, and the session's list, which then names them.
ADDED_FILES = ("report.html", "profile.json", "trace.json.gz")
LIST = ".detect-video-session"
FORMATS = ("html", "table", "json", "csv", "trace")


def make(random: Random) -> Case:
    whole = dict(session())
    files = {f"run/{name}": data for name, data in whole.items()}
    damaged = random.choice(
        ["session.json"] * 3
        + ["spans.npz"] * 3
        + [name for name in whole if name.startswith("passes/")]
    )
    if damaged.endswith(".npz"):
        data = damage_columns(random, whole[damaged])
    else:
        data = damage_json(random, json.loads(whole[damaged]))
    files[f"run/{damaged}"] = damage(random, data) if random.random() < 0.1 else data
    if random.random() < 0.25:
        files |= {f"other/{name}": data for name, data in whole.items()}
        argv = ["diff", *random.choice((("run", "other"), ("other", "run"), ("run", "run")))]
        argv += random.choice(([], ["--json"], ["--max-regression", "5%"]))
        return Case(files, tuple(argv), CODES | {8})
    kind = random.choice(FORMATS)
    argv = ["report", "run", "--format", kind, *random.choice(([], ["-o", "out/"], ["-o", "-"]))]
    if argv[-1] == "out/" and kind != "csv":
        argv[-1] = "out/page.bin"
    changed = {f"run/{name}" for name in (*ADDED_FILES, LIST)}
    return Case(files, tuple(argv), CODES, may_change=frozenset(changed))


def damage_columns(random: Random, data: bytes) -> bytes:
    """Return an archive with a column of another length, type, shape or content, or without it."""
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
        kinds = (
            ("f4", "i1", "u8", ">i8", "?", "c8", "U5", "S3", "O", "M8[s]")
            if column.dtype.kind != "U"
            else ("S9", "U1", "O")
        )
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


KIND = Kind("saved runs", make, share=9)
