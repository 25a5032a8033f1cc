"""Processes of this machine, from /proc: their parents, state and command lines."""

from contextlib import suppress
from pathlib import Path

STATE, PARENT, SESSION = 0, 1, 3  # indexes of fields in the result of ``facts_of``


def all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def facts_of(pid: int) -> list[str]:
    """Return the fields after the name in /proc/PID/stat, or nothing if the process is gone."""
    with suppress(OSError):
        # The name is in brackets and may contain anything, so split after the last bracket.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie, which stays if no init reaps it, does not count."""
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
    """Return the command line; empty if the process is gone or a zombie."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace").strip()
    return ""
