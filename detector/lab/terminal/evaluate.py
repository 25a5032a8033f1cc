"""The figures of ``eval`` on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from detector.core.errors.text import counted
from detector.core.terminal.console import SafeConsole
from detector.lab.session.evaluation import (
    ClassAccuracy,
    EngineResult,
    Evaluation,
    FileResult,
    MeanAccuracy,
    Thresholds,
)

MANY = 20  # classes; of more only the best and the worst are printed, the session has all
COLUMNS = (
    ("AP", "ap"),
    ("AP50", "ap50"),
    ("AP75", "ap75"),
    ("small", "ap_small"),
    ("medium", "ap_medium"),
    ("large", "ap_large"),
)


Scored = EngineResult | FileResult


def print_evaluation(console: SafeConsole, document: Evaluation) -> None:
    results = _scored_rows(document)
    parts: list[RenderableType] = [Text(line) for line in _dataset(document)]
    if results:
        parts.append(_means(results))
    parts += [_classes(row, several=len(results) > 1) for row in results]
    parts += [Text(line) for line in _lines(document)]
    console.print(Group(*parts))


def _dataset(document: Evaluation) -> list[str]:
    data = document.dataset
    part = f", subset {data.subset}" if data.subset else ""
    mapped = f"; classes by {document.mapping}" if document.mapping else ""
    what = "frame" if data.video else "picture"
    size = f"{counted(data.pictures, what)}, {counted(data.boxes, 'box')}"
    line = f"{data.path} ({data.format}{part}): {size}{mapped}"
    runs = [row for row in document.results if isinstance(row, EngineResult)]
    models = dict.fromkeys(_model(row) for row in runs)
    return [line, *(f"model: {model}" for model in models)]


def _scored_rows(document: Evaluation) -> list[Scored]:
    return [row for row in document.results if isinstance(row, Scored)]


def _model(row: EngineResult) -> str:
    height, width = row.model_input
    batch = f", batch {row.batch}" if row.batch > 1 else ""
    return f"{row.model}, input {width}x{height}{batch}"


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _means(results: list[Scored]) -> Table:
    """A line for each engine, and below it its difference from the first engine."""
    names = [name if name != "AP50" else "AP50 [95 %]" for name, _ in COLUMNS]
    table = _table("", "engine", "precision", *names, "inference FPS", "end-to-end FPS")
    first = results[0]
    for row in results:
        figures = [_figure(row, key) for _, key in COLUMNS]
        if isinstance(row, FileResult):
            table.add_row("(a file)", "-", *figures, "-", "-")
            continue
        table.add_row(row.engine, row.precision, *figures, *map(_rate, _rates(row)))
        if row.difference and isinstance(first, EngineResult):
            changes = [_signed_text(getattr(row.difference, key)) for _, key in COLUMNS]
            ratios = list(map(_ratio, _rates(row), _rates(first)))
            table.add_row("  to the first", "", *changes, *ratios, style="dim")
    return table


def _rates(row: EngineResult) -> tuple[float | None, float | None]:
    return row.fps.inference, row.fps.end_to_end


def _classes(row: Scored, several: bool) -> Table:
    several = several and isinstance(row, EngineResult)
    title = f"by class, {row.engine}" if isinstance(row, EngineResult) and several else "by class"
    names = [name if name != "AP50" else "AP50 [95 %]" for name, _ in COLUMNS]
    table = _table(
        title, "class", "pictures", "boxes", *names, "recall", "at .25: recall", "precision"
    )
    per_class = row.per_class
    shown = list(per_class)
    if len(shown) > MANY:
        shown.sort(key=lambda name: -(per_class[name].ap or 0))
        shown = shown[: MANY // 2] + shown[-MANY // 2 :]
        table.title = f"{title}: best and worst of {len(per_class)}"
    for name in shown:
        one = per_class[name]
        figures = [_figure(one, key) for _, key in COLUMNS]
        rates = [_share(rate) for rate in (one.recall, one.recall_conf25, one.precision_conf25)]
        table.add_row(name, str(one.pictures), str(one.boxes), *figures, *rates)
    return table


def _lines(document: Evaluation) -> list[str]:
    settings, results = document.settings, _scored_rows(document)
    lines = []
    if isinstance(settings, Thresholds):
        way = "over all classes" if settings.agnostic else "within a class"
        lines.append(
            f"settings: scores from {settings.conf:g}, NMS IoU {settings.iou:g} {way}, at most "
            f"{settings.max_det} detections a frame, of which the best {settings.max_det_class} of "
            "each class; each class of a box is a detection of its own; classes are mapped before "
            "NMS"
        )
    notes = [*document.notes, *(note for row in results for note in row.notes)]
    lines += [f"note: {note}" for note in dict.fromkeys(notes)]
    for row in results:
        lines += [f"{name}: {path}" for name, path in (row.plots or {}).items()]
        if row.session:
            lines.append(f"session: {row.session}")
    return lines


def _figure(row: ClassAccuracy | MeanAccuracy, key: str) -> str:
    text = _share(getattr(row, key))
    low, high = row.ap50_interval if key == "ap50" else (None, None)
    return text if low is None or high is None else f"{text} [{low:.2f}, {high:.2f}]"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _signed_text(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(value: float | None, first: float | None) -> str:
    return "-" if not value or not first else f"x {value / first:.2f}"
