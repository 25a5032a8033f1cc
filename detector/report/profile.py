"""The end of a profile on a terminal: the path, the levers, and what each pass found or why it could not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from detector.session.reading import SavedSession


def print_profile(console: Console, session: SavedSession) -> None:
    parts: list[RenderableType] = []
    for name, facts in session.passes.items():
        if facts.get("available", True):
            parts += [part(facts) for key, part in PARTS.items() if key == name]
    parts += [Text(line) for line in _lines(session)]
    console.print(Group(*parts))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    return table


def critical_path_table(facts: dict[str, Any]) -> Table:
    title = f"critical path of {facts['frames']} frames, {facts['wall_s']:.3f} s of steady state = 100%"
    table = _table(title, "stage", "share", "self s", "wait s", "calls", "waits because of")
    for row in facts["stages"]:
        causes = ", ".join(f"{cause} {seconds:.3f}" for cause, seconds in row["wait_causes"].items())
        table.add_row(
            row["name"],
            f"{row['share']:.1%}",
            f"{row['self_s']:.3f}",
            f"{row['wait_s']:.3f}",
            str(row["calls"]),
            causes,
        )
    return table


def what_if_table(facts: dict[str, Any]) -> Table:
    title = f"what if (replay off by {facts['replay_error']:+.1%} at 1x, {facts['measured_fps']:.2f} FPS measured)"
    proofs = {row["change"]: row for row in facts.get("proofs", [])}
    table = _table(title, "change", "predicted FPS", "gain", *(["measured gain", "off by"] if proofs else []))
    for row in facts["predictions"]:
        proof = proofs.get(row["change"])
        shown = [f"{proof['measured_gain']:+.1%}", f"{proof['off_by']:+.1%}"] if proof else ["", ""]
        fps = f"{row['predicted_fps']:.2f}"
        table.add_row(row["change"], fps, f"{row['gain']:+.1%}", *(shown if proofs else []))
    return table


def loop_text(facts: dict[str, Any]) -> Text:
    cost = facts["instruments"]
    text = f"instruments: {cost['median']:+.2%} of a frame's time [{cost['low']:+.2%} .. {cost['high']:+.2%}]"
    return Text(text + (f"; warning: {facts['warning']}" if facts["warning"] else ""))


PARTS: dict[str, Callable[[dict[str, Any]], RenderableType]] = {
    "critical_path": critical_path_table,
    "what_if": what_if_table,
    "loop": loop_text,
}


def _lines(session: SavedSession) -> list[str]:
    lines = []
    for name, facts in session.passes.items():
        if not facts.get("available", True):
            lines.append(f"{name}: not available: {facts['reason']}")
        elif "slowdown" in facts and name != "loop":
            lines.append(f"{name}: its run took {facts['slowdown']:.2f} times the plain run's time a frame")
    return [*lines, f"session: {session.folder}"]


def print_recorded(console: Console, facts: dict[str, Any]) -> None:
    """An nsys recording: stages, waits, what blocked inside the stages, the critical path."""
    stages = _table("stages of the recording, ms", "stage", "calls", "avg", "p50", "p90", "max", "share")
    for row in facts["stages"]:
        times = ("-" if row[key] is None else f"{row[key]:.2f}" for key in ("avg", "p50", "p90", "max"))
        stages.add_row(row["step"], str(row["count"]), *times, f"{row['share']:.1%}")
    waits = _table("waits, s", "thread", "waited for", "s")
    for thread, each in facts["waits"].items():
        for what, seconds in sorted(each.items(), key=lambda item: -item[1]):
            waits.add_row(thread, what, f"{seconds:.3f}")
    parts: list[RenderableType] = [stages, waits]
    if facts["blocked"]:
        blocked = _table("blocked in system calls, s", "stage", "call", "s")
        for stage, calls in facts["blocked"].items():
            for call, seconds in list(calls.items())[:3]:
                blocked.add_row(stage, call, f"{seconds:.3f}")
        parts.append(blocked)
    if facts["critical_path"]:
        parts.append(critical_path_table(facts["critical_path"]))
    gpu = facts["gpu"]
    parts.append(Text(f"GPU busy {gpu['busy_share']:.1%} of the run" if gpu["available"] else f"GPU: {gpu['reason']}"))
    if not facts["loop_is_known"]:
        parts.append(Text("note: the recording does not say how long the queues were; the defaults are taken"))
    console.print(Group(*parts))
