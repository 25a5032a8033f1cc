"""The named cases of ``sessions.py``: damaged archives, columns, documents and recordings."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random

from tests.attacks import sessions
from tests.attacks.case import Case, Kind, Link, Pipe
from tests.attacks.inputs import tree
from tests.attacks.kinds.saved_runs import ADDED_FILES, FORMATS, LIST

CODES = frozenset({0, 2})


@cache
def _whole() -> tuple[Mapping[str, bytes], list[sessions.Case]]:
    with tempfile.TemporaryDirectory() as place:
        session = sessions.whole_session(Path(place))
        return tree(session), list(sessions.named(session))


def make(random: Random) -> Case:
    whole, named = _whole()
    files: dict[str, bytes | Link | Pipe] = {f"run/{name}": data for name, data in whole.items()}
    _, changed = random.choice(named)
    for name, content in changed.items():
        files.pop(f"run/{name}", None)
        _put(files, f"run/{name}", content)
    argv = ["report", "run", "--format", random.choice(FORMATS), "-o", "-"]
    if sessions.NSYS in changed:
        argv = ["profile", "--nsys", f"run/{sessions.NSYS}", *random.choice(([], ["--json"]))]
    elif random.random() < 0.2:
        files |= {f"other/{name}": data for name, data in whole.items()}
        argv = ["diff", "run", "other"]
    may_change = frozenset(f"run/{name}" for name in (*ADDED_FILES, LIST))
    return Case(files, tuple(argv), CODES, may_change=may_change)


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


KIND = Kind("hostile sessions", make, share=5)
