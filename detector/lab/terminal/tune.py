"""Print the result of ``tune``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from rich.text import Text

from detector.core.errors.text import counted
from detector.core.run.judging import format_options
from detector.core.session.measured import Interval
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.session.tuning import AS_ASKED, LARGER, Settings, Trial, Tuning

SHOWN, LONGEST = 15, 54  # limits: rows of trials, and characters of a trial's settings
MEASURED = (
    Column("frames", out=1),
    Column("fps", "FPS [rounds]", value=lambda one: _spread(Interval.over(one.rounds)), right=True),
    Column("agreement", form=".3f"),
)
# Texts for options whose name and value would be too long or unclear.
SHORT = {"save": "subtitles", "size": "{}", "preset": "{}", "infer_every": "infer 1/{}"}


def print_tuning(console: SafeConsole, tuning: Tuning) -> None:
    by_settings: dict[str, Trial] = {}
    for one in sorted(tuning.trials, key=lambda one: one.frames):
        if one.error is None:
            known = by_settings.get(key := format_options(one.settings))
            rounds = (*(known.rounds if known else ()), *one.rounds)
            by_settings[key] = replace(one, rounds=rounds)
    ranked = sorted(by_settings.values(), key=lambda one: -Interval.over(one.rounds).median)
    more = len(ranked) - SHOWN
    rest = f"{counted(more, 'slower one')} omitted; --json has all" if more > 0 else ""
    named = Column(
        "settings", value=lambda one: shorten(one.settings, tuning), whole=True, longest=LONGEST
    )
    title = f"tried, the fastest first ({tuning.engine} {tuning.precision} unless another is named)"
    trials = Table("trials", (named, *MEASURED), ranked[:SHOWN], title, rest)
    print_pieces(console, [trials, *(f"note: {note}" for note in tuning.notes)])
    print_pieces(console, verdict(tuning))
    if tuning.command and tuning.settings and tuning.file is None:
        command = Text(f"  {shlex.join(tuning.command)}")
        console.print(command, soft_wrap=True)  # no line breaks, so that it can be copied


def shorten(settings: Settings, tuning: Tuning) -> str:
    """Return a text such as ``ort int8, 2 requests x 1 thread``. The default engine is omitted."""
    left = dict(settings)
    engine = left.pop("engine", tuning.engine), left.pop("precision", tuning.precision)
    words = [" ".join(engine)] if engine != (tuning.engine, tuning.precision) else []
    if "concurrency" in left:
        requests, threads = left.pop("concurrency"), left.pop("threads")
        words.append(f"{counted(requests, 'request')} x {counted(threads, 'thread')}")
    for name, value in left.items():
        text = name.replace("_", " ") + ("" if value is True else " {}")
        words.append(SHORT.get(name, text).format(value))
    return ", ".join(words) or "the defaults"


def verdict(tuning: Tuning) -> list[str]:
    plain = f"{tuning.engine} {tuning.precision}"
    if tuning.target_fps is None and not tuning.settings:
        if tuning.rounds:
            reached = f"They reached {_spread(tuning.before)} FPS end to end in the final rounds"
            return [f"Keep the defaults ({plain}). {reached}; no setting that was tried beat that."]
        was = "faster" if any(one.settings for one in tuning.trials) else "tried"
        speed = f"{tuning.before.median:.1f} FPS in the longest trial"
        return [f"Keep the defaults ({plain}, {speed}): no other setting was {was}."]
    goal, what, share = tuning.target_fps, shorten(tuning.settings, tuning), ""
    if goal is None:
        lines = [f"Fastest: {format_options(tuning.settings)}"]
    elif tuning.reached:
        lines = [f"{goal:g} FPS: reached by {what}."]
    elif tuning.after is None and not tuning.settings:
        lines = [f"{goal:g} FPS: out of reach. The defaults: {tuning.before.median:.1f} FPS."]
    else:
        lines = [f"{goal:g} FPS: not reached in every round. Fastest: {what}."]
        share = f", {tuning.after.median / goal:.0%} of the target" if tuning.after else ""
    if tuning.after is not None:
        rounds = counted(tuning.rounds, "round")
        lines.append(f"{_spread(tuning.after)} FPS end to end in {rounds}{share}.")
    if tuning.settings and tuning.ratio is not None:
        lines.append(
            f"The defaults ({plain}): {_spread(tuning.before)}. Ratio: {tuning.ratio.median:.2f} "
            f"[{tuning.ratio.low:.2f} .. {tuning.ratio.high:.2f}]."
        )
        lines.append(f"Cost: {', '.join(_costs(tuning)) or 'none that was measured'}.")
    if tuning.reached is False:
        lines += [
            f"Without {what}: {fps:.0f} FPS at most." for what, fps in tuning.ceilings.items()
        ]
    return [*lines, *_kept(tuning)]


def _kept(tuning: Tuning) -> Iterator[str]:
    if tuning.kept is not None:
        yield f"Kept for later runs on {tuning.input_kind}. To undo, run: detect-video tune --undo"
        yield f"-> {tuning.kept}"
    if tuning.file is not None:
        yield f"To use these settings, run: detect-video IN --config {tuning.file}"
    elif tuning.kept is None and tuning.target_fps is None:
        yield "Add --use to keep these for later runs, or -o FILE to write a file for --config."
    elif tuning.settings and tuning.command:
        yield "Type:"


def _costs(tuning: Tuning) -> Iterator[str]:
    ratio = tuning.video_bytes_ratio
    if tuning.agreement is not None:
        floor = f" (floor {tuning.floor:g})" if tuning.floor else ""
        yield f"agreement with fp32 {tuning.agreement:.3f}{floor}"
    if tuning.frames_share < 1:
        yield f"detections in {tuning.frames_share:.0%} of the frames"
    if tuning.video not in (AS_ASKED, LARGER):
        yield tuning.video
    elif ratio is not None and abs(ratio - 1) > 0.02:
        yield f"the video is {ratio:.2f} times as large"


def _spread(speed: Interval) -> str:
    return f"{speed.median:.1f} [{speed.low:.1f} .. {speed.high:.1f}]"
