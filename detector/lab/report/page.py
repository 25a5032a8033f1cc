"""Render a session as one HTML file for screen and paper. The page loads no other file."""

from __future__ import annotations

from html import escape
from operator import itemgetter
from pathlib import Path

from detector.core import wings
from detector.core.errors.text import printable_page
from detector.core.tables import Column, Curve, Section, Table, TextTable
from detector.lab.report.html.drawings import curve, figure, section, table, text
from detector.lab.report.html.first import first_screen
from detector.lab.report.part import How, list_parts
from detector.lab.session.read import SavedSession

FILES = Path(__file__).parent / "html/page"
AGES = How(  # explains the sections that detector/live adds
    "ages",
    "age of a frame",
    "Time from a frame's arrival to its detections (the end of nms) and to each output. Ages by "
    "the camera's clock start at the capture time that the camera reports (RTCP).",
    "Policies and frame age",
    "docs/live.md",
)


def page(session: SavedSession) -> bytes:
    document = session.document
    first, *others = document.each
    source = f"{len(document.each)} sources" if others else Path(first.video.path).name
    title = escape(f"{document.model} on {document.engine}: {source}")
    parts = [first_screen(session), *map(_draw_section, wings.sections(document))]
    body = "".join([*parts, *(part.draw(session) for part in list_parts())])
    body += _explain_numbers(body)
    style = (FILES / "style.css").read_text(encoding="utf-8")
    script = (FILES / "script.js").read_text(encoding="utf-8")
    html = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><meta '
        'name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" '
        f'href="data:,"><style>{style}</style></head><body><h1>{title}</h1>{body}<script>{script}</script></body></html>\n'
    )
    return printable_page(html).encode()


def _draw_section(part: Section) -> str:
    inside = []
    for piece in part.pieces:
        if isinstance(piece, TextTable):
            columns = [Column(name, value=itemgetter(at)) for at, name in enumerate(piece.columns)]
            drawn = table(Table(piece.name, columns, piece.rows, most=piece.most, rest=piece.rest))
        elif isinstance(piece, Curve):
            drawn = figure(curve(piece.points, piece.x_unit, piece.y_unit), piece.caption)
        else:
            drawn = text(piece)
        inside.append(drawn)
    return section(part.name, part.title, *inside, how=part.how)


def list_hows() -> list[How]:
    return list(dict.fromkeys([*(part.how for part in list_parts() if part.how), AGES]))


def _explain_numbers(body: str) -> str:
    rows = "".join(
        f'<dt id="how-{one.name}">{escape(one.what)}</dt><dd>{escape(one.text)} '
        f"<cite>documentation, {Path(one.file).stem}: {escape(one.heading)}</cite></dd>"
        for one in list_hows()
        if f'href="#how-{one.name}"' in body
    )
    return section("how", "How each number is measured", f"<dl>{rows}</dl>")
