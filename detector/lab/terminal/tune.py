"""The result of ``tune`` on a terminal."""

from __future__ import annotations

from detector.core.session.measured import Interval
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.session.tuning import Tuning


def print_tuning(console: SafeConsole, found: Tuning, words: dict[int, str]) -> None:
    """``words``: of each trial's settings, as typed. Equal ones of one length are one row."""
    columns = (
        Column("settings", value=lambda one: words[one[0]]),
        Column("frames", value=lambda one: one[1].frames, out=2),
        Column("fps", "end-to-end FPS", ".1f", value=lambda one: one[1].fps),
        Column("agreement", form=".3f", value=lambda one: one[1].agreement, out=1),
    )
    ran = [pair for pair in enumerate(found.trials) if pair[1].error is None]
    tried = {(words[at], one.frames): (at, one) for at, one in ran}
    ranked = sorted(tried.values(), key=lambda pair: (-pair[1].frames, -(pair[1].fps or 0.0)))
    trials = Table("trials", columns, ranked, "trials, sorted by frames, then by FPS")
    print_pieces(console, [trials, *(f"note: {note}" for note in found.notes)])


def verdict(found: Tuning, best: str) -> list[str]:
    """The last lines. ``best``: the settings as they are typed."""
    plain = f"{found.engine} {found.precision}"
    if not found.settings and not found.rounds:
        speed = f"{found.before.median:.1f} FPS in the longest trial"
        was = "faster" if any(one.settings for one in found.trials) else "tried"
        return [f"Keep the defaults ({plain}, {speed}): no other setting was {was}."]
    before = f"{plain}: {_spread(found.before)} FPS end to end"
    if not found.settings:
        reached = f"They reached {_spread(found.before)} FPS end to end in the final rounds"
        return [f"Keep the defaults ({plain}). {reached}; no setting beat that beyond the noise."]
    assert found.after is not None
    assert found.ratio is not None
    lines = [
        f"Fastest: {best}",
        f"{_spread(found.after)} FPS end to end, {found.ratio.median:.2f} times the defaults "
        f"[{found.ratio.low:.2f} .. {found.ratio.high:.2f}] ({before}).",
    ]
    if found.agreement is not None:
        lines.append(f"Agreement with fp32: {found.agreement:.3f} (floor {found.floor:g}).")
    if found.video_bytes_ratio is not None and abs(found.video_bytes_ratio - 1) > 0.02:
        lines.append(f"The video is {found.video_bytes_ratio:.2f} times as large.")
    if found.file is not None:
        lines.append(f"Kept in {found.file}: detect-video IN --config {found.file}")
    if found.kept is not None:
        lines.append(
            f"Kept for {found.input_kind} ({found.kept}): later runs use it. To undo: "
            "detect-video tune --undo"
        )
    if found.file is None and found.kept is None:
        lines.append("Use --use to keep them for later runs, or -o FILE for --config.")
    return lines


def _spread(speed: Interval) -> str:
    return f"{speed.median:.1f} [{speed.low:.1f} .. {speed.high:.1f}]"
