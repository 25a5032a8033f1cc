"""Ways to run a job of many short clips, in turns: seconds, and the overhead per item."""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measuring.rounds import OURS, markdown, spread

Way = Callable[[Path], Mapping[str, Any]]
"""Given a folder, which it makes. Returns the job's document; nothing where there is no job."""
HEAD = ("way", "s, median [range]", "times the loop", "CPU s", "ms an item adds to its run")


@dataclass
class Timed:
    """One way, one element per round. ``besides_ms``: an item's overhead on top of its run."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    besides_ms: list[float] = field(default_factory=list)

    def times(self, loop: Timed) -> list[float]:
        return [theirs / own for theirs, own in zip(loop.seconds, self.seconds, strict=True)]


def time_in_turns(ways: Mapping[str, Way], out: Path, items: int, rounds: int) -> dict[str, Timed]:
    found = {name: Timed() for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            start, before = time.perf_counter(), _cpu_of_children()
            document = way(out)
            found[name].seconds.append(time.perf_counter() - start)
            found[name].cpu_s.append(_cpu_of_children() - before)
            if document:
                found[name].besides_ms.append(1000 * document["report"]["between_s"] / items)
            shutil.rmtree(out)
            print(f"round {number + 1}: {name}: {found[name].seconds[-1]:.2f} s", flush=True)
    return found


def table(found: Mapping[str, Timed], loop_of: Callable[[str], str]) -> str:
    """Return a table. ``loop_of``: name of a way -> name of the loop that it is compared with."""
    rows = []
    for name, one in found.items():
        times, cpu = spread(one.times(found[loop_of(name)])), statistics.median(one.cpu_s)
        besides = f"{statistics.median(one.besides_ms):.1f}" if one.besides_ms else ""
        rows.append([name, spread(one.seconds), times, f"{cpu:.1f}", besides])
    return markdown(HEAD, rows)


def shell_loop(clips: Sequence[Path], out: Path, *options: str) -> dict[str, Any]:
    """Run a usual shell loop: each run loads the model, and uses all cores."""
    out.mkdir()
    words = " ".join([*map(str, OURS), '"$f"', "-q", "-o", f"{out}/", *options])
    script = f'for f in "$@"; do {words} --run-dir "{out}/run-$(basename "$f")"; done'
    subprocess.run(["sh", "-c", script, "sh", *map(str, clips)], check=True, cwd=out)
    return {}


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
