"""The figures of ``eval`` on a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

MANY = 20  # classes: beyond these the worst and the best are printed, the rest is in the session
COLUMNS = (
    ("AP", "ap"),
    ("AP50", "ap50"),
    ("AP75", "ap75"),
    ("small", "ap_small"),
    ("medium", "ap_medium"),
    ("large", "ap_large"),
)


def print_evaluation(console: Console, document: dict[str, Any]) -> None:
    results = [row for row in document["results"] if "ap50" in row]
    parts: list[RenderableType] = [Text(_dataset(document))]
    if results:
        parts.append(_means(results))
    parts += [_classes(row, several=len(results) > 1) for row in results]
    parts += [Text(line) for line in _lines(document)]
    console.print(Group(*parts))


def _dataset(document: dict[str, Any]) -> str:
    data = document["dataset"]
    part = f", subset {data['subset']}" if data["subset"] else ""
    mapped = f"; classes by {document['mapping']}" if document["mapping"] else ""
    what = "frames" if data["video"] else "pictures"
    line = f"{data['path']} ({data['format']}{part}): {data['pictures']} {what}, {data['boxes']} boxes{mapped}"
    models = dict.fromkeys(_model(row) for row in document["results"] if "model" in row)
    return "\n".join([line, *(f"model: {model}" for model in models)])


def _model(row: dict[str, Any]) -> str:
    height, width = row["model_input"]
    return f"{row['model']}, input {width}x{height}" + (
        f", batch {row['batch']}" if row["batch"] > 1 else ""
    )


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


def _means(results: list[dict[str, Any]]) -> Table:
    """A line for each engine, and below it what it differs from the first."""
    names = [name if name != "AP50" else "AP50 [95 %]" for name, _ in COLUMNS]
    table = _table("", "engine", "precision", *names, "inference FPS", "end-to-end FPS")
    for row in results:
        fps = row.get("fps", {})
        figures = [_figure(row, key) for _, key in COLUMNS]
        table.add_row(
            row.get("engine", "(a file)"),
            row.get("precision", "-"),
            *figures,
            _rate(fps.get("inference")),
            _rate(fps.get("end_to_end")),
        )
        if "difference" in row:
            changes = [_signed(row["difference"][key]) for _, key in COLUMNS]
            ratios = [
                _ratio(fps.get(key), results[0].get("fps", {}).get(key))
                for key in ("inference", "end_to_end")
            ]
            table.add_row("  to the first", "", *changes, *ratios, style="dim")
    return table


def _classes(row: dict[str, Any], several: bool) -> Table:
    title = f"by class, {row['engine']}" if several else "by class"
    names = [name if name != "AP50" else "AP50 [95 %]" for name, _ in COLUMNS]
    table = _table(
        title, "class", "pictures", "boxes", *names, "recall", "at .25: recall", "precision"
    )
    per_class = row["per_class"]
    shown = (
        sorted(per_class, key=lambda name: -(per_class[name]["ap"] or 0))
        if len(per_class) > MANY
        else per_class
    )
    if len(per_class) > MANY:
        shown = [*list(shown)[: MANY // 2], *list(shown)[-MANY // 2 :]]
        table.title = f"{title}: best and worst of {len(per_class)}"
    for name in shown:
        one = per_class[name]
        figures = [_figure(one, key) for _, key in COLUMNS]
        rates = [_share(one[key]) for key in ("recall", "recall_conf25", "precision_conf25")]
        table.add_row(name, str(one["pictures"]), str(one["boxes"]), *figures, *rates)
    return table


def _lines(document: dict[str, Any]) -> list[str]:
    settings = document["settings"]
    lines = []
    if "conf" in settings:
        way = "over all classes" if settings["agnostic"] else "within a class"
        lines.append(
            f"settings: score {settings['conf']:g} and more, NMS IoU {settings['iou']:g} {way}, at most "
            f"{settings['max_det']} a frame, best {settings['max_det_class']} a class; every class of a box counts by "
            "itself; classes are mapped before NMS"
        )
    notes = [
        *document["notes"],
        *(note for row in document["results"] for note in row.get("notes", [])),
    ]
    lines += [f"note: {note}" for note in dict.fromkeys(notes)]
    for row in document["results"]:
        lines += [f"{name}: {path}" for name, path in row.get("plots", {}).items()]
        if row.get("session"):
            lines.append(f"session: {row['session']}")
    return lines


def _figure(row: dict[str, Any], key: str) -> str:
    text = _share(row[key])
    low, high = row["ap50_interval"] if key == "ap50" else (None, None)
    return text if low is None else f"{text} [{low:.2f}, {high:.2f}]"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(value: float | None, first: float | None) -> str:
    return "-" if not value or not first else f"x {value / first:.2f}"
