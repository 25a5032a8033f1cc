"""Parts of scripts/batch_check and scripts/cluster_check: time several ways to run short clips, run
jobs with pictures that kill the process that opens them, and compare results with single runs."""

from __future__ import annotations

import random
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
"""(folder) -> the job's document, or {} for a shell loop. Writes the results to the folder."""
HEAD = ("way", "s, median [range]", "speed / loop's speed", "CPU s", "ms per item outside its run")


@dataclass
class Timed:
    """Timings of one way to run the clips, by round."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    besides_ms: list[float] = field(default_factory=list)  # time per item, excluding the item's run

    def times(self, loop: Timed) -> list[float]:
        """Return the speed relative to ``loop`` in each round."""
        return [loop_s / own_s for loop_s, own_s in zip(loop.seconds, self.seconds, strict=True)]


def time_in_turns(ways: Mapping[str, Way], out: Path, items: int, rounds: int) -> dict[str, Timed]:
    timings = {name: Timed() for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            start, before = time.perf_counter(), _cpu_of_children()
            document = way(out)
            timings[name].seconds.append(time.perf_counter() - start)
            timings[name].cpu_s.append(_cpu_of_children() - before)
            if document:
                timings[name].besides_ms.append(1000 * document["report"]["between_s"] / items)
            shutil.rmtree(out)
            print(f"round {number + 1}: {name}: {timings[name].seconds[-1]:.2f} s", flush=True)
    return timings


def table(timings: Mapping[str, Timed], loop_of: Callable[[str], str]) -> str:
    """Return a table. ``loop_of``: name of a way -> name of the loop that it is compared with."""
    rows = []
    for name, timed in timings.items():
        times, cpu = spread(timed.times(timings[loop_of(name)])), statistics.median(timed.cpu_s)
        overhead = f"{statistics.median(timed.besides_ms):.1f}" if timed.besides_ms else ""
        rows.append([name, spread(timed.seconds), times, f"{cpu:.1f}", overhead])
    return markdown(HEAD, rows)


def shell_loop(clips: Sequence[Path], out: Path, *options: str) -> dict[str, Any]:
    """Run detect-video in a shell loop: each run loads the model, and uses all cores."""
    out.mkdir()
    command = " ".join([*map(str, OURS), '"$f"', "-q", "-o", f"{out}/", *options])
    script = f'for f in "$@"; do {command} --run-dir "{out}/run-$(basename "$f")"; done'
    subprocess.run(["sh", "-c", script, "sh", *map(str, clips)], check=True, cwd=out)
    return {}


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_deaths(folder: Path, count: int, *options: str, left_s: float = 0.0) -> list[str]:
    """Run a job with three pictures that kill the process that opens them, then resume the job;
    return the faults. ``left_s``: time for processes to end once their parent was killed."""
    from tests.batch import deaths

    deadly = deaths.make_items(folder, count, deaths.WAYS_TO_DIE)
    faults = []
    for resume in ((), ("--resume",)):
        ended = deaths.run_job(folder, *options, *resume)
        faults += deaths.list_faults(folder, ended, count, deadly, left_s)
        print(
            f"{' '.join(resume) or 'the job'}: exit {ended.code}, {ended.seconds:.0f} s, "
            f"{ended.result.get('items')}, deaths {dict(ended.deaths)}",
            flush=True,
        )
    for failure in ended.result.get("failures", ()):
        print(f"- {failure['name']}: {failure['error']}")
    return faults


def compare_with_single_runs(
    out: Path, folder: Path, cores: Sequence[int], count: int = 0, seed: int = 0
) -> list[str]:
    """Compare ``count`` finished items (0: all) with single runs, which write to ``folder``. If an
    item differs, repeat its single run on a worker's ``cores``; return those that still differ."""
    from tests.batch.killing import list_differences

    files = out / "files"
    names = sorted(path.parent.relative_to(files).as_posix() for path in files.rglob("done.json"))
    sample = random.Random(seed).sample(names, min(count, len(names))) if count else names
    folder.mkdir()
    different = list_differences(out, folder, sample)
    unexplained = list_differences(out, folder, different, cores)
    print(
        f"{len(sample)} items compared with single runs: {len(different)} differ "
        f"({', '.join(different)}); {len(unexplained)} of them differ on a worker's cores, too"
    )
    return [f"{name}: differs from a single run" for name in unexplained]
