"""The result of ``tune`` on a terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from detector.core.session.measured import Interval
from detector.core.terminal.console import SafeConsole, fit_columns
from detector.lab.session.tuning import Trial, Tuning


def print_tuning(console: SafeConsole, found: Tuning, words: dict[int, str]) -> None:
    """``words``: of each trial's settings, by its place, as they are typed."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("settings", "frames", "end-to-end FPS", "agreement"):
        table.add_column(name, justify="left" if name == "settings" else "right")
    trials = sorted(enumerate(found.trials), key=lambda pair: -(pair[1].fps or 0.0))
    for place, trial in trials:
        if trial.error is None:
            table.add_row(words[place], str(trial.frames), *_figures(trial))
    console.print(fit_columns(console, table, ("agreement", "frames")))
    for note in found.notes:
        console.print(Text(f"note: {note}"))


def _figures(trial: Trial) -> tuple[str, str]:
    fps = "-" if trial.fps is None else f"{trial.fps:.1f}"
    return fps, "-" if trial.agreement is None else f"{trial.agreement:.3f}"


def verdict(found: Tuning, best: str) -> list[str]:
    """The last lines. ``best``: the settings as they are typed."""
    before = f"{found.engine}, {found.precision}: {_spread(found.before)} FPS end to end"
    if not found.settings:
        return [f"The defaults stand ({before}): nothing beat them by more than the noise."]
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
        lines.append(f"Its video is {found.video_bytes_ratio:.2f} times as large.")
    if found.file is not None:
        lines.append(f"Kept in {found.file}: detect-video IN --config {found.file}")
    if found.kept is not None:
        lines.append(
            f"Kept for {found.input_kind} ({found.kept}): later runs take it. "
            "Undo it: detect-video tune --undo"
        )
    if found.file is None and found.kept is None:
        lines.append("--use lets later runs take it; -o FILE keeps it for --config.")
    return lines


def _spread(speed: Interval) -> str:
    return f"{speed.median:.1f} [{speed.low:.1f} .. {speed.high:.1f}]"
