"""The result of ``tune`` on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.text import Text

from detector.core.errors.text import counted
from detector.core.run.choose import format_options
from detector.core.session.measured import Interval
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.session.tuning import AS_ASKED, LARGER, Settings, Trial, Tuning

SHOWN, LONGEST = 15, 54  # trials, and letters of one
MEASURED = (Column("frames", out=1), Column("fps", "FPS", ".1f"), Column("agreement", form=".3f"))
# Of an option whose name and value would be too long, or say nothing.
SHORT = {"save": "subtitles", "size": "{}", "preset": "{}", "infer_every": "infer 1/{}"}


def print_tuning(console: SafeConsole, found: Tuning) -> None:
    longest: dict[str, Trial] = {}
    for one in sorted(found.trials, key=lambda one: one.frames):
        if one.error is None:
            longest[format_options(one.settings)] = one
    ranked = sorted(longest.values(), key=lambda one: -(one.fps or 0.0))
    more = len(ranked) - SHOWN
    rest = f"{counted(more, 'slower one')} more with --json" if more > 0 else ""
    named = Column(
        "settings", value=lambda one: shorten(one.settings, found), whole=True, longest=LONGEST
    )
    title = f"tried, the fastest first ({found.engine} {found.precision} unless another is named)"
    trials = Table("trials", (named, *MEASURED), ranked[:SHOWN], title, rest)
    print_pieces(console, [trials, *(f"note: {note}" for note in found.notes)])
    print_pieces(console, verdict(found))
    if found.command and found.settings and found.file is None:
        console.print(Text(f"  {shlex.join(found.command)}"), soft_wrap=True)  # to be copied


def shorten(settings: Settings, found: Tuning) -> str:
    """``ort int8, 2x1 threads, 416x224``; the engine only where it is not that of the defaults."""
    left = dict(settings)
    engine = left.pop("engine", found.engine), left.pop("precision", found.precision)
    words = [" ".join(engine)] if engine != (found.engine, found.precision) else []
    if "concurrency" in left:
        words.append(f"{left.pop('concurrency')}x{left.pop('threads')} threads")
    for name, value in left.items():
        text = name.replace("_", " ") + ("" if value is True else " {}")
        words.append(SHORT.get(name, text).format(value))
    return ", ".join(words) or "the defaults"


def verdict(found: Tuning) -> list[str]:
    plain = f"{found.engine} {found.precision}"
    if found.target_fps is None and not found.settings:
        if found.rounds:
            reached = f"They reached {_spread(found.before)} FPS end to end in the final rounds"
            return [f"Keep the defaults ({plain}). {reached}; no setting beat that beyond noise."]
        was = "faster" if any(one.settings for one in found.trials) else "tried"
        speed = f"{found.before.median:.1f} FPS in the longest trial"
        return [f"Keep the defaults ({plain}, {speed}): no other setting was {was}."]
    goal, what, share = found.target_fps, shorten(found.settings, found), ""
    if goal is None:
        lines = [f"Fastest: {format_options(found.settings)}"]
    elif found.reached:
        lines = [f"{goal:g} FPS: reached by {what}."]
    elif found.after is None and not found.settings:
        lines = [f"{goal:g} FPS: out of reach. The defaults: {found.before.median:.1f} FPS."]
    else:
        lines = [f"{goal:g} FPS: not reached in every round. Fastest: {what}."]
        share = f", {found.after.median / goal:.0%} of the target" if found.after else ""
    if found.after is not None:
        rounds = counted(found.rounds, "round")
        lines.append(f"{_spread(found.after)} FPS end to end in {rounds}{share}.")
    if found.settings and found.ratio is not None:
        lines.append(
            f"The defaults ({plain}): {_spread(found.before)}. Ratio: {found.ratio.median:.2f} "
            f"[{found.ratio.low:.2f} .. {found.ratio.high:.2f}]."
        )
        lines.append(f"Cost: {', '.join(_costs(found)) or 'none that was measured'}.")
    if found.reached is False:
        lines += [f"Without {what}: {fps:.0f} FPS at most." for what, fps in found.ceilings.items()]
    return [*lines, *_kept(found)]


def _kept(found: Tuning) -> Iterator[str]:
    if found.kept is not None:
        yield f"Kept for {found.input_kind}; later runs use it. Undo: detect-video tune --undo"
        yield f"-> {found.kept}"
    if found.file is not None:
        yield f"Use it: detect-video IN --config {found.file}"
    elif found.kept is None and found.target_fps is None:
        yield "Use --use to keep them for later runs, or -o FILE for --config."
    elif found.settings and found.command:
        yield "Type:"


def _costs(found: Tuning) -> Iterator[str]:
    ratio = found.video_bytes_ratio
    if found.agreement is not None:
        floor = f" (floor {found.floor:g})" if found.floor else ""
        yield f"agreement with fp32 {found.agreement:.3f}{floor}"
    if found.frames_share < 1:
        yield f"detections in {found.frames_share:.0%} of the frames"
    if found.video not in (AS_ASKED, LARGER):
        yield found.video
    elif ratio is not None and abs(ratio - 1) > 0.02:
        yield f"the video is {ratio:.2f} times as large"


def _spread(speed: Interval) -> str:
    return f"{speed.median:.1f} [{speed.low:.1f} .. {speed.high:.1f}]"
