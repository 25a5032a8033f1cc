"""Run every rule on its subjects: each table, all tables together, each run or comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from detector.core.session.document import Summary
from detector.lab.audit.machine import Machine
from detector.lab.audit.rule import Rule, list_rules
from detector.lab.audit.tables import AuditTable
from detector.lab.session.audit import SEVERITIES, AuditDocument, Audited, Finding
from detector.lab.session.comparison import Comparison


@dataclass(frozen=True, slots=True)
class Case:
    """Everything to audit, by name. ``comparisons``: documents of ``compare --json``."""

    tables: list[AuditTable] = field(default_factory=list)
    runs: dict[str, Summary] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)

    @property
    def on_gpu(self) -> bool:
        return "card" in self.machine.given or any(
            column.has("cuda", "gpu")
            or any("gpu" in text.lower() or "cuda" in text.lower() for text in column.texts)
            for table in self.tables
            for column in table.columns
        )


def audit(case: Case) -> AuditDocument:
    rules = list_rules()
    findings = [finding for rule in rules for finding in _apply_rule(rule, case)]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return AuditDocument(
        audited=(*map(_describe, case.tables), *(Audited(name, 1, {}, ()) for name in case.runs)),
        runs=len(case.runs),
        machine=case.machine.given,
        rules=len(rules),
        counts={
            severity: sum(one.severity == severity for one in findings) for severity in SEVERITIES
        },
        findings=tuple(findings),
    )


def _apply_rule(rule: Rule, case: Case) -> Iterator[Finding]:
    subjects: dict[str, Iterable[tuple[str, object]]] = {
        "all": [("", case)],
        "table": [(table.name, table) for table in case.tables],
        "run": case.runs.items(),
        "comparison": case.comparisons.items(),
    }
    for name, subject in subjects[rule.over]:
        yield from rule.findings(subject, name)


def _describe(table: AuditTable) -> Audited:
    read = {one.title: str(one.meaning) for one in table.columns if not one.meaning.why}
    return Audited(table.name, table.rows, read, tuple(table.unread))
