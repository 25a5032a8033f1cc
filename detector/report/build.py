"""What was built, where, from what and in how long; and a bar while it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar(console: Console, shown: bool) -> Iterator[Callable[[str, int, int], bool]]:
    """A bar that appears with the first step, so that nothing flickers where nothing is built."""
    if not shown:
        yield lambda doing, done, of: True
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def step(doing: str, done: int, of: int) -> bool:
            if doing not in tasks:
                tasks[doing] = bar.add_task(doing, total=of)
            bar.update(tasks[doing], completed=done, total=of)
            return True

        yield step


def lines(facts: dict[str, Any]) -> list[str]:
    """For a terminal."""
    batch, height, width, _ = facts["input_shape"]
    size = f"{width}x{height} batch {facts['batch'] if '..' in facts['batch'] else batch}"
    what = f"{facts['model']} for engine {facts['engine']}, {facts['precision']}, {size}"
    if facts["built"]:
        head = f"built: {facts['path']} in {facts['seconds']:.1f} s"
    else:
        took = f", built in {facts['build_s']:.1f} s" if facts.get("build_s") else ""
        head = f"there already: {facts['path']}{took}"
    found = [f"{name}: {value}" for name, value in (facts.get("facts") or {}).items()]
    origin = f"from: {facts['model_sha256'][:12] or 'no weights'} (sha256 of the model's files)"
    return [head, f"what: {what}", origin, *found, *(f"note: {note}" for note in facts["notes"])]


def build_line(console: Console) -> Callable[[str, int, int], bool]:
    """One line that is written over, for a build inside a run: the live line comes after it on the same place."""

    def step(doing: str, done: int, of: int) -> bool:
        text = "" if done >= of else f"building: {doing} {done}/{of}"
        console.print(text[: console.width - 1].ljust(console.width - 1), end="\r", markup=False, highlight=False)
        return True

    return step
