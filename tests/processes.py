"""Processes of this machine, as /proc tells of them: whose children they are, whether they live."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

STATE, PARENT, SESSION = 0, 1, 3  # of ``facts_of``


def all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def facts_of(pid: int) -> list[str]:
    """What the kernel tells behind the process's name; nothing where it is gone."""
    with suppress(OSError):
        # The name stands in brackets and may hold anything, so from the last bracket on.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def is_alive(pid: int) -> bool:
    """Whether it runs. One that nobody waits for stays in the list where there is no init."""
    facts = facts_of(pid)
    return bool(facts) and facts[STATE] != "Z"


def alive_with(fact: int, value: int) -> list[int]:
    found = [(pid, facts_of(pid)) for pid in all_pids()]
    return [pid for pid, one in found if one and one[STATE] != "Z" and int(one[fact]) == value]


def children_of(parent: int) -> list[int]:
    return alive_with(PARENT, parent)


def descendants(pid: int) -> list[int]:
    found = []
    for child in children_of(pid):
        found += [child, *descendants(child)]
    return found


def command_line(pid: int) -> str:
    """Empty where the process is gone, or nobody has waited for it yet."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace").strip()
    return ""
