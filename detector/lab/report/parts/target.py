"""The part of the report on ``--target``: what reaches so many FPS here, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from detector.core.errors.text import counted
from detector.core.tables import Column, Table
from detector.lab.report.html.drawings import table, text
from detector.lab.report.part import How, Part
from detector.lab.session.passes import TargetFacts, TargetTrial
from detector.lab.session.read import SavedSession

SHOWN = 12  # sets on a terminal
SETS = (
    Column("text", "changes"),
    Column("fps", "FPS", ".1f"),
    Column("agreement", form=".3f", out=2),
    Column("frames_share", "of the frames", ".0%", out=1),
    Column("video", out=3),
)


def verdict(facts: TargetFacts) -> list[str]:
    """What reaches it and what that costs, or how far the best is."""
    if not facts.reached:
        return [f"--target {facts.target_fps:g}: {missed(facts)}"]
    assert facts.fps is not None
    lines = [
        f"{facts.target_fps:g} FPS: {facts.text} gives {facts.fps.median:.1f} "
        f"[{facts.fps.low:.1f} .. {facts.fps.high:.1f}] in {counted(facts.rounds, 'round')}"
    ]
    if facts.before is not None and facts.settings:
        lines[0] += f"; the defaults give {facts.before.median:.1f}"
    return [*lines, f"Cost: {_costs(facts)}."] if facts.settings else lines


def missed(facts: TargetFacts) -> str:
    """How far the best is."""
    best = (
        "nothing ran"
        if facts.fps is None
        else (
            f"the fastest, {facts.text}, gives {facts.fps.median:.1f} FPS "
            f"[{facts.fps.low:.1f} .. {facts.fps.high:.1f}]"
        )
    )
    if facts.fps is not None:
        best += f", {facts.fps.median / facts.target_fps:.0%} of the target ({_costs(facts)})"
    return f"no set of changes reaches it in every round; {best}"


def _costs(facts: TargetFacts) -> str:
    costs = []
    if facts.agreement is not None:
        costs.append(f"agreement with fp32 {facts.agreement:.3f}")
    if facts.frames_share < 1:
        costs.append(f"detections in {facts.frames_share:.0%} of the frames")
    if facts.video != "as asked":
        costs.append(f"video: {facts.video}")
    return ", ".join(costs) or "no measurable cost"


def target_says(facts: TargetFacts) -> Iterator[Table | str]:
    rows = _ran(facts)
    rest = f"{counted(len(rows) - SHOWN, 'more set')} in the report" if len(rows) > SHOWN else ""
    yield Table("target", SETS, rows[:SHOWN], "settings tried, in one short run each", rest)
    yield from (f"note: {note}" for note in facts.notes)
    yield from verdict(facts)


def _ran(facts: TargetFacts) -> list[TargetTrial]:
    ran = [one for one in facts.tried if one.fps is not None]
    return sorted(ran, key=lambda one: -(one.fps or 0.0))


def target(session: SavedSession, facts: TargetFacts) -> str:
    del session
    ceilings = "; ".join(f"{change}: {fps:.1f}" for change, fps in facts.ceilings.items())
    above = f"FPS if a stage cost nothing: {ceilings}." if ceilings else None
    return text(*verdict(facts), above) + table(Table("target", SETS, _ran(facts)))


HOW = How(
    "target",
    "changes that reach the target FPS",
    "Each set ran in its own process with all its outputs. The reported one alternated with "
    "the defaults and reached the target in every round.",
    "Reach a target FPS",
)
PARTS = (
    Part(
        "target",
        "Changes that reach the target",
        75,
        target,
        how=HOW,
        facts=TargetFacts,
        says=target_says,
    ),
)
