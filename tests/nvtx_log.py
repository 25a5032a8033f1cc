"""Our own NVTX tool: build nvtx_probe.c, and read its log."""

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
    category: str | None  # the category's name, or its number if the program did not name it
    payload: int | float | None
    start_ns: int
    end_ns: int


def build_probe(folder: Path) -> Path:
    library = folder / "libnvtx_probe.so"
    command = [*"gcc -O1 -Wall -Wextra -Werror -shared -fPIC -o".split(), str(library), str(PROBE)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def probe_env(library: Path, log: Path) -> dict[str, str]:
    """Return the environment variables that make a program write its ranges to ``log``."""
    return {"NVTX_INJECTION64_PATH": str(library), "NVTX_PROBE_LOG": str(log)}


def read_log(log: Path, domain: str = "detect-video") -> list[Range]:
    """Return every range of a domain, in the order of their ends.

    Raises AssertionError if a thread left a range open, or closed a range that it had not opened.
    Otherwise all ranges are nested, since a pop closes the last push of its thread.
    """
    categories: dict[tuple[int, str], str] = {}
    stacks: dict[tuple[int, int], list[tuple[int, str, str, str]]] = defaultdict(list)
    ranges = []
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
            ranges.append(Range(*owner, of, name, label, _number(payload), start, int(t)))
    left = {tid: [name for _, name, _, _ in stack] for (_, tid), stack in stacks.items() if stack}
    assert not left, f"ranges left open, by thread: {left}"
    return ranges


def _number(payload: str) -> int | float | None:
    if payload == "-":
        return None
    return float(payload) if any(c in payload for c in ".en") else int(payload)
