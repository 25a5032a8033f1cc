"""Where the interpreter spends its time: cProfile's functions, and pyinstrument's call tree.

In one plain loop, since cProfile sees one thread. Read shares off them, never a rate.
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
    plain = occasion.again(sync=True)
    profile = cProfile.Profile()
    profile.enable()
    try:
        session = occasion.again(sync=True)
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
    """Whose function it is: ``detector.core.stages``, ``numpy``, ``built-in: NAME``, ``python``."""
    path = Path(file)
    if file == "~":  # written in C: pstats knows only the name
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
    """``detector/core/run/detect.py:12(detect)``; the name alone of what is written in C."""
    return name.strip("<>") if file == "~" else f"{shorten_path(file)}:{line}({name})"


def shorten_path(file: str) -> str:
    """Return the path within this package or its library; elsewhere the file's name."""
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
        occasion.again(sync=True)
    text: str = profiler.output_text(unicode=True, color=False)
    return text


PASS = Pass(
    order=70,
    what="a plain loop under cProfile and under pyinstrument",
    facts=PythonFacts,
    run=profile_python,
    varies=Varies(("sync",), "in one plain loop"),
)
