"""List the statistics of a summary: the fields that ``document.statistic`` marks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from msgspec import UNSET, Meta

from detector.core.session.document import Summary


@dataclass(frozen=True, slots=True)
class Statistic:
    """A number in a summary. ``name``: the keys that lead to it in the document, joined by "/"."""

    name: str
    title: str
    unit: str

    def of(self, summary: Summary) -> float | None:
        """Return the value in a summary, an int for counts; None if it is missing."""
        value: Any = summary
        for key in self.name.split("/"):
            value = getattr(value, key)
            if value is None or value is UNSET:
                return None
        found: float = value
        return found


@cache
def list_statistics(kind: type[Any] = Summary) -> tuple[Statistic, ...]:
    return tuple(_yield_statistics(kind, ""))


def _yield_statistics(kind: type[Any], prefix: str) -> Iterator[Statistic]:
    hints = get_type_hints(kind, include_extras=True)
    for attribute in fields(kind):
        name = f"{prefix}{attribute.name}"
        for part in get_args(hints[attribute.name]):
            if isinstance(part, Meta) and "unit" in (part.extra_json_schema or {}):
                assert part.title is not None
                assert part.extra_json_schema is not None
                yield Statistic(name, part.title, part.extra_json_schema["unit"])
        for part in (hints[attribute.name], *get_args(hints[attribute.name])):
            if isinstance(part, type) and is_dataclass(part):
                yield from _yield_statistics(part, f"{name}/")
