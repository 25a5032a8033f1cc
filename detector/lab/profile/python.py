"""Profile the interpreter: functions with cProfile, and the call tree with pyinstrument.

cProfile sees one thread, so the loop uses only one. Profiling slows calls: only shares are valid.
"""

from __future__ import annotations

import cProfile
import pstats
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detector.lab.profile.base import Occasion, Pass, Varies
from detector.lab.session.passes import FunctionTime, PythonFacts

TOP = 30
PACKAGE = Path(__file__).parents[2]


def profile_python(occasion: Occasion) -> PythonFacts:
    plain = occasion.rerun(sync=True)
    profile = cProfile.Profile()
    profile.enable()
    try:
        session = occasion.rerun(sync=True)
    finally:
        profile.disable()
    stats: Mapping[tuple[str, int, str], Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    rows = [
        FunctionTime(label(file, line, name), calls, own, total)
        for (file, line, name), (_, calls, own, total, _) in stats.items()
    ]
    rows.sort(key=lambda row: -row.self_s)
    return PythonFacts(
        functions=rows[:TOP],
        folded=fold_by_owner(stats),
        tree=_call_tree(occasion),
        slowdown=session.document.fps.frame_s / plain.document.fps.frame_s,
    )


def fold_by_owner(stats: Mapping[tuple[str, int, str], Any]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for (file, _, name), (_, _, own, _, _) in stats.items():
        sums[owner(file, name)] += own
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def owner(file: str, name: str) -> str:
    """Return the function's package: ``detector.core.stages``, ``numpy``, ``python`` (the standard
    library), or ``built-in: NAME``."""
    path = Path(file)
    if file == "~":  # pstats knows only the names of functions in C
        return (
            "built-in: "
            + name.strip("<>")
            .removeprefix("built-in method ")
            .removeprefix("method ")
            .split(" of ")[0]
        )
    if path.is_relative_to(PACKAGE):
        return ".".join(("detector", *path.relative_to(PACKAGE).with_suffix("").parts[:2]))
    parts = path.parts
    for mark in ("site-packages", "dist-packages"):
        if mark in parts:
            return parts[parts.index(mark) + 1].removesuffix(".py")
    return "python"


def label(file: str, line: int, name: str) -> str:
    """Return a text such as ``detector/core/run/detect.py:12(detect)``; for C, only the name."""
    return name.strip("<>") if file == "~" else f"{shorten_path(file)}:{line}({name})"


def shorten_path(file: str) -> str:
    """Return detector/... for this package's files, LIBRARY/... for a library's, else the name."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return str(Path("detector") / path.relative_to(PACKAGE))
    parts = path.parts
    return (
        "/".join(parts[parts.index("site-packages") + 1 :])
        if "site-packages" in parts
        else path.name
    )


def _call_tree(occasion: Occasion) -> str | None:
    try:
        from pyinstrument import Profiler
    except ImportError:
        return None
    with Profiler(interval=0.001) as profiler:
        occasion.rerun(sync=True)
    text: str = profiler.output_text(unicode=True, color=False)
    return text


PASS = Pass(
    order=70,
    what="a plain loop under cProfile and under pyinstrument",
    facts=PythonFacts,
    run=profile_python,
    varies=Varies(("sync",), "in one plain loop"),
)
