"""What a rule is: one mistake, and the function that finds it.

Rules are found by standing in a file in ``rules/``. A rule over tables brings its own examples:
``bad`` fires it, ``clean`` does not.
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
MOST_HITS = 40  # of one rule; a table of thousands of rows says the same thousands of times


class Hit(NamedTuple):
    evidence: str
    where: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """``find`` takes one table, all of them (``over`` = "all": ``Case``), a finished run ("run":
    ``Summary``), its folder ("session": ``SavedSession``) or "comparison": ``Comparison``. ``bad``,
    ``clean``: Markdown or CSV tables. ``machine``: facts that the examples need."""

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

    def findings(self, what: Any, name: str = "") -> Iterator[Finding]:
        for number, hit in enumerate(self.find(what)):
            if number == MOST_HITS:
                return
            where = hit.where or ((name,) if name else ())
            yield Finding(self.id, self.severity, where, hit.rows, hit.evidence, self.cure)


def rule(
    severity: Severity, what: str, cure: str, **others: Any
) -> Callable[[Callable[[Any], Iterable[Hit]]], Rule]:
    """The rule whose id is the name of the decorated function."""

    def named(find: Callable[[Any], Iterable[Hit]]) -> Rule:
        return Rule(find.__name__.replace("_", "-"), severity, what, cure, find, **others)

    return named


def rules_of(module: ModuleType) -> list[Rule]:
    return [one for one in vars(module).values() if isinstance(one, Rule)]


@cache
def list_rules() -> tuple[Rule, ...]:
    modules = wings.import_files(f"{__name__.rpartition('.')[0]}.{FOLDER.name}", str(FOLDER))
    return tuple(rule for module in modules for rule in rules_of(module))


def find_rule(name: str) -> Rule | None:
    return next((rule for rule in list_rules() if rule.id == name), None)
