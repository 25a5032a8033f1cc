"""The test's own NVTX tool: builds nvtx_probe.c, and reads what it wrote."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PROBE = Path(__file__).with_name("nvtx_probe.c")


@dataclass(frozen=True)
class Range:
    pid: int
    thread: int
    domain: str
    name: str
    category: str | None  # its name where the program gave one, else its number
    payload: int | float | None
    start_ns: int
    end_ns: int


def build_probe(folder: Path) -> Path:
    library = folder / "libnvtx_probe.so"
    command = [*"gcc -O1 -Wall -Wextra -Werror -shared -fPIC -o".split(), str(library), str(PROBE)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def probe_env(library: Path, log: Path) -> dict[str, str]:
    """What to add to a program's environment so that its ranges land in ``log``."""
    return {"NVTX_INJECTION64_PATH": str(library), "NVTX_PROBE_LOG": str(log)}


def read_log(log: Path, domain: str = "detect-video") -> list[Range]:
    """Return every range of a domain, in the order of their ends.

    Raises AssertionError if a range was left open, or a pop had no push, on its own thread: since a
    thread's pops close its pushes last first, what passes here is nested.
    """
    categories: dict[tuple[int, str], str] = {}
    stacks: dict[tuple[int, int], list[tuple[int, str, str, str]]] = defaultdict(list)
    found = []
    for line in log.read_text().splitlines():
        event, t, pid, tid, of, name, category, payload = line.split("\t")
        if of != domain:
            continue
        owner = (int(pid), int(tid))
        if event == "category":
            categories[int(pid), category] = name
        elif event == "push":
            stacks[owner].append((int(t), name, category, payload))
        elif event == "pop":
            assert stacks[owner], f"thread {tid} closed a range that it had not opened, at {t} ns"
            start, name, category, payload = stacks[owner].pop()
            label = categories.get((int(pid), category), category) if category != "0" else None
            found.append(Range(*owner, of, name, label, _number(payload), start, int(t)))
    left = {tid: [name for _, name, _, _ in stack] for (_, tid), stack in stacks.items() if stack}
    assert not left, f"ranges left open, by thread: {left}"
    return found


def _number(payload: str) -> int | float | None:
    if payload == "-":
        return None
    return float(payload) if any(c in payload for c in ".en") else int(payload)
