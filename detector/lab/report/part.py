"""A part of a report: a section of the page and its form on a terminal. parts/ lists all parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from detector.core import wings
from detector.core.tables import Table
from detector.lab.report.html.drawings import section, text
from detector.lab.session.passes import PassRecord
from detector.lab.session.read import SavedSession

FOLDER = Path(__file__).with_name("parts")


@dataclass(frozen=True, slots=True)
class How:
    """How numbers are measured, in brief. ``heading``, ``file``: where the docs say more."""

    name: str
    what: str
    text: str
    heading: str
    file: str = "docs/reading.md"


@dataclass(frozen=True, slots=True)
class Part:
    """``name``: the anchor. ``place``: sort key. ``page``: returns the HTML below the heading, or
    "" to omit the part. If ``facts`` is a type, ``page`` also gets the facts of this type.
    ``says``: returns tables and lines for a terminal; ``brief``: returns fewer. ``detail``: short
    output only names the pass.
    """

    name: str
    title: str
    place: int
    page: Callable[..., str] | None = None
    _: KW_ONLY
    how: How | None = None
    facts: type[Any] | None = None
    says: Callable[[Any], Iterable[Table | str]] | None = None
    brief: Callable[[Any], Iterable[Table | str]] | None = None
    detail: bool = False

    def draw(self, session: SavedSession) -> str:
        if self.page is None:
            return ""
        if self.facts is None:
            inside = self.page(session)
        else:
            records, kind = session.passes.values(), self.facts
            record = next((one for one in records if isinstance(one.facts, kind)), None)
            if record is None:
                return ""
            inside = self.page(session, record.facts)
            if inside and record.ran is not None:
                ran = f"Measured with {record.ran.text}."
                inside = text(ran).replace("<p>", '<p class="note">', 1) + inside
        how = self.how.name if self.how else ""
        return section(self.name, self.title, inside, how=how) if inside else ""


def list_stages(session: SavedSession) -> list[str]:
    return [name for name, stage in session.document.stages.items() if stage.calls]


@cache
def list_parts() -> tuple[Part, ...]:
    modules = wings.import_files(f"{__name__.rpartition('.')[0]}.{FOLDER.name}", str(FOLDER))
    return tuple(sorted((one for each in modules for one in each.PARTS), key=lambda one: one.place))


def find_part(record: PassRecord) -> Part | None:
    return next(
        (one for one in list_parts() if one.facts and isinstance(record.facts, one.facts)), None
    )
