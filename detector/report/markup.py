"""Tables and small pieces of the HTML report; every number carries its full value beside the shown one."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from detector.report.drawings import SERIES

STAGES = ("read", "preprocess", "infer", "head", "nms", "annotate", "write")
LONG = 36  # characters of a cell that wraps
MOST_POINTS = 600  # of a drawn series


class Share(float):
    """A number that is shown as a percentage; None stays empty."""

    def __new__(cls, value: float | None) -> Share:
        return super().__new__(cls, float("nan") if value is None else value)


def section(name: str, title: str, *content: str, how: str = "") -> str:
    """A part of the page with a heading; ``how``: a link to how its numbers are taken."""
    link = f' <a class="how screen" href="#how-{how}">how it is taken</a>' if how else ""
    return f'<section id="{name}-part"><h2>{escape(title)}{link}</h2>{"".join(content)}</section>'


def key(names: Sequence[str] = (*STAGES, "wait", "other")) -> str:
    """What the colours mean."""
    return key_of([(name, name) for name in names])


def key_of(parts: Sequence[tuple[str, str]]) -> str:
    """The same for (class, name)."""
    inside = "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for kind, name in parts)
    return f'<div class="key">{inside}</div>'


def legend(names: Sequence[str]) -> str:
    """The colours of ``drawings.lines``' curves."""
    return key_of([(f"series-{at % SERIES}", name) for at, name in enumerate(names)])


def zoom_buttons(note: str) -> str:
    buttons = "".join(f'<button type="button" data-zoom="{factor}">{name}</button>'
                      for name, factor in (("zoom in", 0.5), ("zoom out", 2), ("all", 0)))  # fmt: skip
    return f'<p class="screen zooming">{buttons} {note}</p>'


def folded(summary: str, *content: str) -> str:
    """Shown when it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(content)}</details>"


def figure(drawn: str, caption: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure><div class="scroll">{drawn}</div>{below}</figure>'


def table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], sortable: bool = True) -> str:
    """``name`` is its id. A column whose first value is text stands at the left."""
    heads = []
    for at, column in enumerate(columns):
        kind = ' class="text"' if rows and isinstance(rows[0][at], str) else ""
        inside = f'<button type="button">{escape(column)}</button>' if sortable else escape(column)
        heads.append(f'<th scope="col"{kind}>{inside}</th>')
    body = "".join("<tr>" + "".join(cell(value) for value in row) + "</tr>" for row in rows)
    kind = ' class="sortable"' if sortable else ""
    inside = f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table id="{name}"{kind}>{inside}</table></div>'


def filter_of(name: str, what: str) -> str:
    label = escape(f"filter {what}")
    return f'<input class="filter screen" type="search" data-table="{name}" placeholder="{label}" aria-label="{label}">'


def cell(value: Any) -> str:
    """Numbers carry their full value for sorting, and for whoever checks the page against the session."""
    if value is None or (isinstance(value, float) and value != value):
        return '<td class="none">–</td>'
    if isinstance(value, Share):
        return f'<td data-value="{float(value)!r}">{value:.1%}</td>'
    if isinstance(value, (int, float)):
        shown = str(value) if isinstance(value, int) else f"{value:.{3 if abs(value) < 100 else 1}f}"
        return f'<td data-value="{value!r}">{shown}</td>'
    text = str(value)
    return f'<td class="text{" long" if len(text) > LONG else ""}">{escape(text)}</td>'
