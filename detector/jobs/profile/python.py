"""Where the interpreter spends its time: cProfile's top functions, folded by room and library, and pyinstrument's tree.

On a run in one plain loop: cProfile sees the thread that it was switched on in. Both slow the run down, by how much is
said; so shares of Python's own time are read off it, never a rate.
"""

from __future__ import annotations

import cProfile
import pstats
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detector.jobs.profile.base import Occasion
from detector.session.read import SavedSession

ORDER = 70
WHAT = "a plain loop under cProfile, and under pyinstrument"
TOP = 30
PACKAGE = Path(__file__).parents[2]


def run(occasion: Occasion) -> dict[str, Any]:
    plain = occasion.again(sync=True)
    profile = cProfile.Profile()
    profile.enable()
    try:
        session = occasion.again(sync=True)
    finally:
        profile.disable()
    stats: Mapping[tuple[str, int, str], Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    rows = [
        {"function": label(file, line, name), "calls": calls, "self_s": own, "total_s": total}
        for (file, line, name), (_, calls, own, total, _) in stats.items()
    ]
    rows.sort(key=lambda row: -float(str(row["self_s"])))
    return {
        "functions": rows[:TOP],
        "folded": folded(stats),
        "tree": _tree(occasion),
        "slowdown": _period(session) / _period(plain),
    }


def _period(session: SavedSession) -> float:
    return 1 / float(session.document["fps"]["end_to_end"])


def folded(stats: Mapping[tuple[str, int, str], Any]) -> dict[str, float]:
    """Self seconds by room of this program and by library, longest first."""
    sums: dict[str, float] = defaultdict(float)
    for (file, _, name), (_, _, own, _, _) in stats.items():
        sums[owner(file, name)] += own
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def owner(file: str, name: str) -> str:
    """``detector.stages``, ``numpy``, ``built-in``, ... of a function's file."""
    path = Path(file)
    if file == "~":  # written in C: pstats knows the name only
        return (
            "built-in: "
            + name.strip("<>")
            .removeprefix("built-in method ")
            .removeprefix("method ")
            .split(" of ")[0]
        )
    if path.is_relative_to(PACKAGE):
        return ".".join(("detector", *path.relative_to(PACKAGE).with_suffix("").parts[:1]))
    parts = path.parts
    for mark in ("site-packages", "dist-packages"):
        if mark in parts:
            return parts[parts.index(mark) + 1].removesuffix(".py")
    return "python"


def label(file: str, line: int, name: str) -> str:
    """``detector/run/detect.py:12(detect)``; of what is written in C, which has no place, the name."""
    return name.strip("<>") if file == "~" else f"{place(file)}:{line}({name})"


def place(file: str) -> str:
    """A file as short as it stays clear."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return str(Path("detector") / path.relative_to(PACKAGE))
    parts = path.parts
    return (
        "/".join(parts[parts.index("site-packages") + 1 :])
        if "site-packages" in parts
        else path.name
    )


def _tree(occasion: Occasion) -> str | None:
    """pyinstrument's tree of a run of its own; None where it is not installed."""
    try:
        from pyinstrument import Profiler
    except ImportError:
        return None
    with Profiler(interval=0.001) as profiler:
        occasion.again(sync=True)
    text: str = profiler.output_text(unicode=True, color=False)
    return text
