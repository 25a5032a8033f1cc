"""The rule: one kind of mistake, and the function that finds it.

Every rule in a file of ``rules/`` is used. A rule about tables has two examples: it reports a hit
for ``bad`` and none for ``clean``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from detector.core import wings
from detector.lab.session.audit import Finding, Severity

FOLDER = Path(__file__).with_name("rules")
MOST_HITS = 40  # per rule and subject; a large table may repeat one mistake in every row


class Hit(NamedTuple):
    evidence: str
    where: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    severity: Severity | None = None  # None: that of the rule


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. ``over``: what ``find`` gets: "table", "run" (a ``Summary``), "comparison" (a
    ``Comparison``) or "all" (a ``Case``). ``bad``, ``clean``: examples in Markdown or CSV.
    ``machine``: facts that the examples need."""

    id: str
    severity: Severity
    what: str
    cure: str
    find: Callable[[Any], Iterable[Hit]]
    _: KW_ONLY
    over: str = "table"
    bad: str = ""
    clean: str = ""
    machine: Mapping[str, float | str] = field(default_factory=dict)

    def findings(self, subject: Any, name: str = "") -> Iterator[Finding]:
        for number, hit in enumerate(self.find(subject)):
            if number == MOST_HITS:
                return
            where = hit.where or ((name,) if name else ())
            labels = subject.labels_with_lines if self.over == "table" else {}
            rows = tuple(labels.get(row, row) for row in hit.rows)
            severity = hit.severity or self.severity
            yield Finding(self.id, severity, where, rows, hit.evidence, self.cure)


def rule(
    severity: Severity, what: str, cure: str, **others: Any
) -> Callable[[Callable[[Any], Iterable[Hit]]], Rule]:
    """Make a rule of the decorated function. Its id is the function's name, with hyphens."""

    def decorate(find: Callable[[Any], Iterable[Hit]]) -> Rule:
        return Rule(find.__name__.replace("_", "-"), severity, what, cure, find, **others)

    return decorate


def rules_in(module: ModuleType) -> list[Rule]:
    return [value for value in vars(module).values() if isinstance(value, Rule)]


@cache
def list_rules() -> tuple[Rule, ...]:
    modules = wings.import_files(f"{__name__.rpartition('.')[0]}.{FOLDER.name}", str(FOLDER))
    return tuple(rule for module in modules for rule in rules_in(module))


def find_rule(name: str) -> Rule | None:
    return next((rule for rule in list_rules() if rule.id == name), None)
