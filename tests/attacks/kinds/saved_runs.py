"""Damaged sessions given to ``report`` and ``diff``: session.json, spans.npz, results of passes."""

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random

from tests.attacks import sessions
from tests.attacks.case import Case, Kind, Link, Pipe
from tests.attacks.inputs import session, tree
from tests.attacks.mutate import damage, damage_json

CODES = frozenset({0, 2})
# `report` adds ADDED_FILES to a session, and enters them in LIST, the session's list of its files.
ADDED_FILES = ("report.html", "profile.json", "trace.json.gz")
LIST = ".detect-video-session"
MAY_CHANGE = frozenset(f"run/{name}" for name in (*ADDED_FILES, LIST))
FORMATS = ("html", "table", "json", "csv", "trace")


@cache
def _named() -> tuple[Mapping[str, bytes], list[sessions.Case]]:
    with tempfile.TemporaryDirectory() as place:
        folder = sessions.whole_session(Path(place))
        return tree(folder), list(sessions.named(folder))


def _named_case(random: Random) -> Case:
    whole, named = _named()
    files: dict[str, bytes | Link | Pipe] = {f"run/{name}": data for name, data in whole.items()}
    _, changed = random.choice(named)
    for name, content in changed.items():
        files.pop(f"run/{name}", None)
        _put(files, f"run/{name}", content)
    argv = ["report", "run", "--format", random.choice(FORMATS), "-o", "-"]
    if sessions.NSYS in changed:
        argv = ["profile", "--nsys", f"run/{sessions.NSYS}"]
    return Case(files, tuple(argv), CODES, may_change=MAY_CHANGE)


def make(random: Random) -> Case:
    if random.random() < 0.3:
        return _named_case(random)
    whole = dict(session())
    files = {f"run/{name}": data for name, data in whole.items()}
    damaged = random.choice(
        ["session.json"] * 3
        + ["spans.npz"] * 3
        + [name for name in whole if name.startswith("passes/")]
    )
    if damaged.endswith(".npz"):
        data = sessions.damage_columns(random, whole[damaged])
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
    return Case(files, tuple(argv), CODES, may_change=MAY_CHANGE)


def _put(files: dict[str, bytes | Link | Pipe], name: str, content: bytes | sessions.Odd) -> None:
    if isinstance(content, bytes):
        files[name] = content
    elif content is sessions.Odd.FOLDER:
        files[f"{name}/"] = b""
    elif content is sessions.Odd.PIPE:
        files[name] = Pipe()
    elif content is not sessions.Odd.ABSENT:
        own = name.rpartition("/")[2]
        files[name] = Link(own if content is sessions.Odd.LOOP else "/dev/zero")


KIND = Kind("saved runs", make, share=14)
