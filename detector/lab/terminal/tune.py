"""The result of ``tune`` on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.text import Text

from detector.core.errors.text import counted
from detector.core.run.choose import in_words
from detector.core.session.measured import Interval
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.session.tuning import AS_ASKED, LARGER, Settings, Trial, Tuning

SHOWN = 15  # trials
TRIALS = (
    Column("settings", value=lambda one: shorten(one.settings)),
    Column("frames", out=1),
    Column("fps", "FPS", ".1f"),
    Column("agreement", form=".3f"),
)


def print_tuning(console: SafeConsole, found: Tuning) -> None:
    """Each settings once, in their longest trial; then the answer."""
    longest: dict[str, Trial] = {}
    for one in sorted(found.trials, key=lambda one: one.frames):
        if one.error is None:
            longest[in_words(one.settings)] = one
    ranked = sorted(longest.values(), key=lambda one: -(one.fps or 0.0))
    more = len(ranked) - SHOWN
    rest = f"{counted(more, 'slower one')} more with --json" if more > 0 else ""
    trials = Table("trials", TRIALS, ranked[:SHOWN], "tried, the fastest first", rest)
    print_pieces(console, [trials, *(f"note: {note}" for note in found.notes)])
    print_pieces(console, verdict(found) if found.target_fps is None else target_verdict(found))
    if found.command and found.settings:
        console.print(Text(f"  {shlex.join(found.command)}"), soft_wrap=True)  # to be copied


def shorten(settings: Settings) -> str:
    """``openvino int8, 2x1 threads, 416x224``: so short that no line of a table folds."""
    left = dict(settings)
    words = [" ".join(str(left.pop(one)) for one in ("engine", "precision") if one in left)]
    if "concurrency" in left:
        words.append(f"{left.pop('concurrency')}x{left.pop('threads')} threads")
    for name, value in left.items():
        text = name.replace("_", " ")
        if name == "save":
            text = "boxes as subtitles"
        elif name == "size":
            text = str(value)
        elif value is not True:
            text += f" {value}"
        words.append(text)
    return ", ".join(filter(None, words)) or "the defaults"


def verdict(found: Tuning) -> list[str]:
    """The last lines without a target."""
    plain = f"{found.engine} {found.precision}"
    if not found.settings and not found.rounds:
        speed = f"{found.before.median:.1f} FPS in the longest trial"
        was = "faster" if any(one.settings for one in found.trials) else "tried"
        return [f"Keep the defaults ({plain}, {speed}): no other setting was {was}."]
    if not found.settings:
        reached = f"They reached {_spread(found.before)} FPS end to end in the final rounds"
        return [f"Keep the defaults ({plain}). {reached}; no setting beat that beyond the noise."]
    assert found.after is not None
    assert found.ratio is not None
    lines = [
        f"Fastest: {in_words(found.settings)}",
        f"{_spread(found.after)} FPS end to end in {counted(found.rounds, 'round')}.",
        f"The defaults ({plain}): {_spread(found.before)}. Ratio: {found.ratio.median:.2f} "
        f"[{found.ratio.low:.2f} .. {found.ratio.high:.2f}].",
    ]
    if found.agreement is not None:
        lines.append(f"Agreement with fp32: {found.agreement:.3f} (floor {found.floor:g}).")
    lines += _video(found)
    if found.kept is not None:
        lines += [
            f"Kept for {found.input_kind}; later runs use it. Undo: detect-video tune --undo",
            f"-> {found.kept}",
        ]
    if found.file is None and found.kept is None:
        lines.append("Use --use to keep them for later runs, or -o FILE for --config.")
    return [*lines, *_file(found)]


def target_verdict(found: Tuning) -> list[str]:
    """Whether the target is reached, at which cost, and what to type."""
    assert found.target_fps is not None
    goal = f"{found.target_fps:g} FPS"
    what = shorten(found.settings)
    speed = "" if found.after is None else f"{_spread(found.after)} FPS"
    if found.reached:
        lines = [f"{goal}: reached by {what}."]
        lines.append(f"{speed} in each of {counted(found.rounds, 'round')}.")
    else:
        lines = [f"{goal}: not reached in every round. Fastest: {what}."]
        if found.after is not None:
            lines.append(f"{speed}, {found.after.median / found.target_fps:.0%} of the target.")
        for what, fps in found.ceilings.items():
            lines.append(f"Without {what}: {fps:.0f} FPS at most.")
    if found.settings:
        lines.append(f"The defaults: {_spread(found.before)} FPS.")
        lines.append(f"Cost: {', '.join(_costs(found)) or 'none that was measured'}.")
    return [*lines, *_file(found), *(["Type:"] if found.settings else [])]


def _costs(found: Tuning) -> Iterator[str]:
    if found.agreement is not None:
        yield f"agreement with fp32 {found.agreement:.3f}"
    if found.frames_share < 1:
        yield f"detections in {found.frames_share:.0%} of the frames"
    if found.video == LARGER and found.video_bytes_ratio:
        yield f"the video is {found.video_bytes_ratio:.1f} times as large"
    elif found.video != AS_ASKED:
        yield found.video


def _video(found: Tuning) -> list[str]:
    ratio = found.video_bytes_ratio
    if ratio is None or abs(ratio - 1) <= 0.02:
        return []
    return [f"The video is {ratio:.2f} times as large."]


def _file(found: Tuning) -> list[str]:
    return [] if found.file is None else [f"Use it: detect-video IN --config {found.file}"]


def _spread(speed: Interval) -> str:
    return f"{speed.median:.1f} [{speed.low:.1f} .. {speed.high:.1f}]"
