"""Draw precision-recall curves and a confusion matrix as SVG, without a plotting library."""

from __future__ import annotations

from xml.sax.saxutils import escape

from detector.core.errors.text import printable_page
from detector.lab.session.evaluation import ConfusionMatrix, EngineResult, FileResult

COLOURS = ("#1f5fa8", "#c8501e", "#2c8a4b", "#8a3f9c", "#b08a00", "#0f8f96", "#a52a44", "#5a5a5a")
SIDE = 400  # pixels; a side of the drawing's square
LEFT, TOP, RIGHT, BOTTOM = 60, 40, 220, 50
FEW = 12  # with more classes, the legend omits some and the matrix shows no numbers


def plots(result: EngineResult | FileResult) -> dict[str, str]:
    if isinstance(result, EngineResult):
        title = f"{result.model} on {result.engine}"
    else:
        title = result.detections
    return {
        "precision-recall.svg": precision_recall(title, result),
        "confusion.svg": confusion(title, result.confusion),
    }


def precision_recall(title: str, result: EngineResult | FileResult) -> str:
    parts = [
        _text(LEFT, TOP - 18, f"{title}: precision and recall at IoU 0.5", "start", 14),
        *_axes(),
    ]
    ranked = sorted(result.curves, key=lambda name: -(result.per_class[name].ap50 or 0))
    for at, name in enumerate(ranked):
        curve = [value for value in result.curves[name] if value is not None]
        if not curve:
            continue  # the class has no labelled box
        colour = COLOURS[at % len(COLOURS)]
        points = " ".join(
            f"{_x(recall / 100):.1f},{_y(value):.1f}" for recall, value in enumerate(curve)
        )
        faint = "" if at < FEW else ' opacity="0.3"'
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"{faint}/>'
        )
        if at < FEW:
            line = TOP + 10 + 18 * at
            parts.append(
                f'<rect x="{LEFT + SIDE + 16}" y="{line - 8}" width="12" height="8" '
                f'fill="{colour}"/>'
            )
            ap50 = result.per_class[name].ap50
            parts.append(_text(LEFT + SIDE + 34, line, f"{name} {ap50:.3f}", "start"))
    if len(ranked) > FEW:
        more = f"and {len(ranked) - FEW} more"
        parts.append(_text(LEFT + SIDE + 34, TOP + 10 + 18 * FEW, more, "start"))
    return _document(LEFT + SIDE + RIGHT, TOP + SIDE + BOTTOM, parts)


def _axes() -> list[str]:
    parts = [
        f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#888"/>'
    ]
    for step in range(6):
        value = step / 5
        parts.append(_text(_x(value), TOP + SIDE + 18, f"{value:.1f}"))
        parts.append(_text(LEFT - 8, _y(value) + 4, f"{value:.1f}", "end"))
        parts.append(
            f'<path d="M{_x(value):.1f} {TOP}v{SIDE}M{LEFT} {_y(value):.1f}h{SIDE}" '
            'stroke="#e4e4e4"/>'
        )
    parts.append(_text(LEFT + SIDE / 2, TOP + SIDE + 38, "recall"))
    parts.append(_text(16, TOP + SIDE / 2, "precision", turn=True))
    return parts


def _x(value: float) -> float:
    return LEFT + SIDE * value


def _y(value: float) -> float:
    return TOP + SIDE * (1 - value)


def confusion(title: str, matrix: ConfusionMatrix) -> str:
    """Draw the matrix: rows are labels, columns are detections, darker cells are larger shares."""
    names, counts = matrix.names, matrix.counts
    cell = max(12, min(70, SIDE // len(names)))
    left, top = 130, 130
    parts = [
        _text(10, 20, f"{title}: confusion matrix", "start", 14),
        _text(
            10,
            38,
            f"scores from {matrix.conf:g}, IoU {matrix.iou:g}; rows: labels, columns: detections",
            "start",
        ),
    ]
    for row, name in enumerate(names):
        total = sum(counts[row]) or 1
        row_title = name if row < len(names) - 1 else "(no label)"
        parts.append(_text(left - 8, top + cell * (row + 0.5) + 4, row_title, "end"))
        column_title = name if row < len(names) - 1 else "(not found)"
        parts.append(
            _text(left + cell * (row + 0.5) + 4, top - 8, column_title, "start", turn=True)
        )
        for column, count in enumerate(counts[row]):
            x, y = left + cell * column, top + cell * row
            share = count / total
            parts.append(
                f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="#1f5fa8" '
                f'fill-opacity="{share:.3f}" stroke="#ccc"/>'
            )
            if len(names) <= FEW + 1:
                colour = "#fff" if share > 0.5 else "#222"
                parts.append(_text(x + cell / 2, y + cell / 2 + 4, str(count), colour=colour))
    side = cell * len(names)
    legend = [
        "The shade of a cell shows its share, 0 to 1, of all boxes with",
        "its row's label; in the last row, its share of all detections",
        "that match no label.",
    ]
    if len(names) <= FEW + 1:
        legend.append("The numbers are counts, not normalized.")
    parts += [
        _text(10, top + side + 20 + 18 * line, text, "start") for line, text in enumerate(legend)
    ]
    height = top + side + 20 + 18 * len(legend)
    return _document(max(left + side + 40, 420), height, parts)


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "middle",
    size: int = 12,
    turn: bool = False,
    colour: str = "#222",
) -> str:
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}"{turned}>{escape(text)}</text>'
    )


def _document(width: int, height: int, parts: list[str]) -> str:
    body = printable_page("\n".join(parts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )
