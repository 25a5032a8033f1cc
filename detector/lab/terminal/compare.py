"""The tables of a comparison: speeds with intervals and agreement, then what each row costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from detector.core.errors.text import counted
from detector.core.session.measured import Interval, Metric
from detector.core.terminal.console import SafeConsole, fit_columns, fits
from detector.lab.analysis.compare import ROUNDS_FOR_A_WINNER, find_contenders
from detector.lab.session.comparison import METRICS, Comparison, Row
from detector.lab.session.evaluation import Figure

WORDS: dict[Metric, str] = {"inference": "inference FPS", "end_to_end": "end-to-end FPS"}
FEW_CLASSES = 4  # up to so many have a column each
MEANINGLESS = "random weights: boxes are meaningless, and so is the agreement"


@contextmanager
def progress_bar(console: SafeConsole, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar, where one is to be shown."""
    if not shown:
        yield lambda doing, done, of: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda doing, done, of: progress.update(
            task, description=doing, completed=done, total=of
        )


def print_comparison(
    console: SafeConsole, document: Comparison, would_take: str | None = None
) -> None:
    """``would_take``: what ``--engine auto`` would take from now on, if the result were kept."""
    parts: list[RenderableType] = [
        Text(_title(document), style="bold"),
        _speeds(console, document),
        _costs(console, document),
    ]
    if document.labels is not None and any(row.ap for row in document.rows):
        parts.append(_accuracies(document))
    parts += [Text(line) for line in _failures(document)]
    parts += [Text(line) for line in _notes(document)]
    parts += [Text(f"warning: {warning}", style="bold") for warning in document.warnings]
    parts += [
        Text(_sentence(document, metric), style="bold") for metric in METRICS if document.baseline
    ]
    if would_take is not None:
        parts.append(Text(f"auto would take: {would_take}"))
    console.print(Group(*parts))


def _title(document: Comparison) -> str:
    parts = [str(document.model or "no model could be opened")]
    if document.model_input:
        height, width = document.model_input
        parts.append(f"input {width}x{height}")
    if document.video:
        video = document.video
        parts.append(f"{video.path} ({video.width}x{video.height})")
    if document.frames:
        parts.append(
            f"{counted(document.rounds, 'round')} of {counted(document.frames, 'frame')}, in turn"
        )
    return ", ".join(parts)


def _table(*columns: str, left: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(
            name,
            justify="left" if number < left else "right",
            overflow="fold",
            no_wrap="FPS" in name,
        )
    return table


def _speeds(console: SafeConsole, document: Comparison) -> Table:
    """With the intervals where there is room for them."""
    table = _speeds_table(document, bounds=True)
    if fits(console, table):
        return table
    table = _speeds_table(document, bounds=False)
    return fit_columns(console, table, ("batch", "agreement"))


def _speeds_table(document: Comparison, bounds: bool) -> Table:
    table = _table(
        "engine",
        "precision",
        "batch",
        "inference FPS",
        "ratio",
        "end-to-end FPS",
        "ratio",
        "agreement",
        left=2,
    )
    for row in document.rows:
        cells = []
        for metric in METRICS:
            cells += [_interval(row.fps[metric], bounds), _ratio(row.ratio[metric])]
        texts = (row.engine, row.precision, str(row.batch), *cells, _agreement(document, row))
        table.add_row(*map(Text, texts))  # Text: brackets are no markup
    if document.baseline:
        interval = f" [{document.interval}]" if bounds else ""
        caption = (
            f"median{interval}; ratio: median of the rounds' own ratios to {document.baseline}"
        )
        table.caption, table.caption_justify = Text(caption), "left"
    return table


def _costs(console: SafeConsole, document: Comparison) -> Table:
    table = _table(
        "engine",
        "precision",
        "batch",
        "executed",
        "mean IoU",
        "score diff",
        "peak MB",
        "load s",
        "build s",
        left=2,
    )
    table.columns[3].justify = "left"
    for row in document.rows:
        agreement = row.agreement
        table.add_row(
            row.engine,
            row.precision,
            str(row.batch),
            _executed_text(row),
            _number(agreement.mean_iou if agreement else None, 3),
            _number(agreement.mean_score_diff if agreement else None, 4),
            _number(row.memory_mb, 0),
            _number(row.load_s, 2),
            _number(row.build_s, 2),
        )
    return fit_columns(console, table, ("build s", "score diff", "batch", "load s", "mean IoU"))


def _accuracies(document: Comparison) -> Table:
    """Average precision; of each class too, where they are few."""
    labels = document.labels
    assert labels is not None
    classes = labels.classes or ()
    shown = classes if len(classes) <= FEW_CLASSES else ()
    table = _table(
        "engine",
        "precision",
        "batch",
        "AP50",
        "95 %",
        "AP",
        *(f"AP50 {name}" for name in shown),
        left=2,
    )
    for row in document.rows:
        cells = ["-"] * (3 + len(shown))
        if row.ap is not None:
            figures = [row.ap.ap, *(row.ap.per_class[name].ap50 for name in shown)]
            cells = [_number(row.ap.ap50, 3), _bounds(row.ap.ap50_interval)]
            cells += [_number(figure, 3) for figure in figures]
        table.add_row(*map(Text, (row.engine, row.precision, str(row.batch), *cells)))
    caption = (
        f"against {labels.path}: {counted(labels.pictures, 'frame')}, "
        f"{counted(labels.boxes, 'box')}; in a pass of its own, with scores from {labels.conf:g} "
        f"and NMS IoU {labels.iou:g}"
    )
    table.caption, table.caption_justify = Text(caption), "left"
    return table


def _bounds(interval: tuple[Figure, Figure]) -> str:
    low, high = interval
    return "-" if low is None or high is None else f"{low:.3f}..{high:.3f}"


def _executed_text(row: Row) -> str:
    if row.error is not None:
        return "failed"
    if row.precision_effect:
        return f"changed nothing: {row.precision_text}"
    return row.precision_text or "unknown"


def _failures(document: Comparison) -> list[str]:
    return [f"{row.name}: {row.error}" for row in document.rows if row.error is not None]


def _notes(document: Comparison) -> list[str]:
    lines = [
        f"agreement: 2 x matched / (A + B) at IoU 0.5 with {document.reference}, on the same "
        "pictures"
    ]
    if document.random_weights is not None:
        lines.append(f"note: {MEANINGLESS}")
    seen: dict[str, list[str]] = {}
    for row in document.rows:
        for note in row.notes:
            seen.setdefault(note, []).append(row.name)
    if document.labels is not None:
        lines += [f"note: {note}" for note in document.labels.notes]
    several = len(document.rows)
    for note, names in seen.items():
        lines.append(
            f"note: {note}" if len(names) == several else f"note, {', '.join(names)}: {note}"
        )
    return lines if document.baseline else lines[1:]


def _sentence(document: Comparison, metric: Metric) -> str:
    """Which row is fastest, or why none is."""
    name, what = document.fastest[metric], WORDS[metric]
    if name is None:
        near = find_contenders(document.rows, metric)
        if document.comparable is False:
            return f"{what}: no winner, because the rows are not comparable"
        if len(near) < 2 and document.rounds < ROUNDS_FOR_A_WINNER:
            rounds = counted(document.rounds, "round")
            return f"{what}: no winner from {rounds}; use --rounds {ROUNDS_FOR_A_WINNER} or more"
        if len([row for row in document.rows if row.error is None]) < 2:
            return f"{what}: there is only one row, so there is nothing to compare"
        return f"{what}: no winner; the noise does not tell {', '.join(near)} apart"
    row = next(row for row in document.rows if row.name == name)
    text = f"{what}: {name} is fastest"
    ratio, bounds = row.ratio[metric], row.ratio_interval[metric]
    if ratio is not None and bounds is not None:
        low, high = bounds
        text += f", {ratio:.2f}x [{low:.2f} .. {high:.2f}] of {document.baseline}"
    matched = row.agreement.matched if row.agreement is not None else None
    if matched is not None and matched < document.budget:
        text += f", but its agreement {matched:.2f} is below the budget of {document.budget:g}"
    return text


def _agreement(document: Comparison, row: Row) -> str:
    matched = row.agreement.matched if row.agreement is not None else None
    if matched is None:
        return "-"
    return f"({matched:.3f})" if document.random_weights is not None else f"{matched:.3f}"


def _interval(rate: Interval | None, bounds: bool) -> str:
    if rate is None:
        return "-"
    between = f" [{_fps(rate.low)}..{_fps(rate.high)}]" if bounds else ""
    return f"{_fps(rate.median)}{between}"


def _fps(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
