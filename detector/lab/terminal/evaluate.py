"""Print the figures of ``eval``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from detector.core.errors.text import counted
from detector.core.run.tiling import NONE
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.session.evaluation import (
    ClassAccuracy,
    EngineResult,
    Evaluation,
    FileResult,
    MeanAccuracy,
    Thresholds,
)

MANY = 20  # with more classes, only the best and worst are printed; the session has all of them
Scored = EngineResult | FileResult


def _ap50(row: ClassAccuracy | MeanAccuracy) -> str | None:
    if row.ap50 is None:
        return None
    low, high = row.ap50_interval
    return f"{row.ap50:.3f}" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


PRECISION = (
    Column("ap", "AP", ".3f"),
    Column("ap50", "AP50 [95 %]", value=_ap50, right=True, whole=True),
    Column("ap75", "AP75", ".3f", out=5),
    Column("ap_small", "small", ".3f", out=1),
    Column("ap_medium", "medium", ".3f", out=2),
    Column("ap_large", "large", ".3f", out=3),
)
FPS = {"inference_fps": "inference FPS", "end_to_end_fps": "end-to-end FPS"}
COLUMNS = (
    Column("engine"),
    Column("precision", out=9, right=False),
    Column("tiles"),
    *(replace(one, form=".3f", value=None, right=True) for one in PRECISION),
    *(Column(name, title, ".2f", right=True) for name, title in FPS.items()),
)
OF_TRACKS = (
    *(Column(name, form=".3f") for name in ("hota", "detection", "association", "idf1", "mota")),
    *map(Column, ("switches", "fragmentations", "objects", "tracks")),
)
FIGURES = (  # of one class
    Column("pictures", out=6),
    Column("boxes", out=7),
    *PRECISION,
    Column("recall", form=".3f", out=4),
    Column("recall_conf25", "recall at .25", ".3f", out=8),
    Column("precision_conf25", "precision at .25", ".3f", out=9),
)


def print_evaluation(console: SafeConsole, document: Evaluation) -> None:
    results = _scored_rows(document)
    tables = [_means(results)] if results else []
    tables += [table] if (table := _tracks(results)) is not None else []
    tables += [_classes(row, several=len(results) > 1) for row in results]
    print_pieces(console, [*_dataset(document), *tables, *_lines(document)])


def _dataset(document: Evaluation) -> list[str]:
    data = document.dataset
    part = f", subset {data.subset}" if data.subset else ""
    mapped = f"; classes mapped by {document.mapping}" if document.mapping else ""
    what = "frame" if data.video else "picture"
    classes = [one for row in _scored_rows(document)[:1] for one in row.per_class.values()]
    scored = sum(one.boxes for one in classes) if classes else data.boxes
    size = f"{counted(data.pictures, what)}, {counted(scored, 'box')}"
    if others := data.boxes - scored:
        size += f"; {others} more are not scored (distractors, ignored, or of other classes)"
    line = f"{data.path} ({data.format}{part}): {size}{mapped}"
    models = [_model(row) for row in document.results if isinstance(row, EngineResult)]
    return [line, *(f"model: {model}" for model in dict.fromkeys(models))]


def _scored_rows(document: Evaluation) -> list[Scored]:
    return [row for row in document.results if isinstance(row, Scored)]


def _model(row: EngineResult) -> str:
    height, width = row.model_input
    batch = f", batch {row.batch}" if row.batch > 1 else ""
    return f"{row.model}, input {width}x{height}{batch}"


def _who(row: Scored) -> str:
    if isinstance(row, FileResult):
        return row.detections
    return row.engine if row.tiles == NONE else f"{row.engine}, tiles {row.tiles}"


def _means(results: list[Scored]) -> Table:
    rows: list[dict[str, Any]] = []
    changes: list[int] = []
    for row in results:
        figures = _flatten(row)
        rows.append(figures | {"ap50": _ap50(row)})
        if isinstance(row, EngineResult) and row.difference:
            signed = ((one.key, getattr(row.difference, one.key)) for one in PRECISION)
            texts = {key: None if value is None else f"{value:+.4f}" for key, value in signed}
            ratios = {name: _ratio(figures[name], rows[0][name]) for name in FPS}
            changes.append(len(rows))
            rows.append({"engine": "  change", "precision": "", "tiles": "", **texts, **ratios})
    table = Table("means", COLUMNS, rows, dim=changes)
    return table if len({row["tiles"] for row in rows} - {""}) > 1 else table.without("tiles")


def _flatten(row: Scored) -> dict[str, Any]:
    own = {"engine": _who(row), "precision": None, "tiles": NONE, **dict.fromkeys(FPS)}
    if isinstance(row, EngineResult):
        own = {"engine": row.engine, "precision": row.precision, "tiles": row.tiles}
        own |= {name: getattr(row.fps, name.removesuffix("_fps")) for name in FPS}
    return {**vars(row), **vars(row.tracking or row), **own}


def result_table(document: Evaluation) -> Table:
    """Return the table of --table: a row for each engine or file, numbers only."""
    rows = [_flatten(row) for row in _scored_rows(document)]
    columns = [replace(one, title="AP50" if one.key == "ap50" else one.title) for one in COLUMNS]
    empty = (None, NONE)  # a column with no other values is omitted
    filled = [one for one in (*columns, *OF_TRACKS) if any(one.of(r) not in empty for r in rows)]
    return Table("results", filled, rows)


def _tracks(results: list[Scored]) -> Table | None:
    rows = [
        {"tracks of": _who(row), "sequence": name, **vars(figures)}
        for row in results
        if row.tracking
        for name, figures in {**(row.tracking.sequences or {}), "combined": row.tracking}.items()
    ]
    columns = (
        Column("tracks of"),
        *([Column("sequence")] if any(row["sequence"] != "combined" for row in rows) else []),
        *OF_TRACKS,
    )
    return Table("tracks", columns, rows) if rows else None


def _classes(row: Scored, several: bool) -> Table:
    title = f"by class, {_who(row)}" if several else "by class"
    per_class = row.per_class
    shown = [name for name, one in per_class.items() if one.boxes or len(per_class) <= MANY]
    if len(shown) > MANY:
        shown.sort(key=lambda name: -(per_class[name].ap or 0))
        title += f": best and worst of {len(shown)}"
        shown = shown[: MANY // 2] + shown[-MANY // 2 :]
    rows = [
        {one.key: one.of(per_class[name]) for one in FIGURES} | {"class": name} for name in shown
    ]
    columns = [Column("class"), *(replace(one, value=None) for one in FIGURES)]
    return Table("classes", columns, rows, title)


def _lines(document: Evaluation) -> list[str]:
    settings, results = document.settings, _scored_rows(document)
    lines = []
    if isinstance(settings, Thresholds):
        way = "across all classes" if settings.agnostic else "within a class"
        lines.append(
            f"settings: scores from {settings.conf:g} up, NMS IoU {settings.iou:g} {way}, at most "
            f"{settings.max_det} detections per frame and the best {settings.max_det_class} per "
            "class; each class of a box is a separate detection; classes are mapped before NMS"
        )
    notes = [*document.notes, *(note for row in results for note in row.notes)]
    lines += [f"note: {note}" for note in dict.fromkeys(notes)]
    for row in results:
        lines += [f"{name}: {path}" for name, path in (row.plots or {}).items()]
        if row.coco_results:
            lines.append(f"results in COCO's format, with the labels' ids: {row.coco_results}")
        if row.session:
            kind = "folder" if isinstance(row, FileResult) else "session"
            lines.append(f"{kind}: {row.session}")
    return lines


def _ratio(value: float | None, first: float | None) -> str | None:
    return None if not value or not first else f"x {value / first:.2f}"
