"""What is audited at once: every rule is asked about each table, all of them, and each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from detector.core.session.document import Summary
from detector.lab.audit.machine import Machine
from detector.lab.audit.rule import Rule, list_rules
from detector.lab.audit.tables import AuditTable
from detector.lab.session.audit import SEVERITIES, AuditDocument, Audited, Finding
from detector.lab.session.comparison import Comparison
from detector.lab.session.read import SavedSession


@dataclass(frozen=True, slots=True)
class Case:
    """``runs``: name -> the summary of a finished run; ``sessions``: -> its folder, where that is
    what was given; ``comparisons``: -> what compare printed."""

    tables: Sequence[AuditTable] = ()
    runs: dict[str, Summary] = field(default_factory=dict)
    sessions: dict[str, SavedSession] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)

    @property
    def on_gpu(self) -> bool:
        return self.machine.card is not None or any(
            one.has("cuda", "gpu")
            or any("gpu" in text.lower() or "cuda" in text.lower() for text in one.texts)
            for table in self.tables
            for one in table.columns
        )


def audit(case: Case) -> AuditDocument:
    rules = list_rules()
    findings = [one for rule in rules for one in _findings(rule, case)]
    findings.sort(key=lambda one: SEVERITIES.index(one.severity))
    return AuditDocument(
        audited=(*map(_audited, case.tables), *(Audited(name, 1, {}, ()) for name in case.runs)),
        runs=len(case.runs),
        machine=case.machine.given,
        rules=len(rules),
        counts={
            severity: sum(one.severity == severity for one in findings) for severity in SEVERITIES
        },
        findings=tuple(findings),
    )


def _findings(rule: Rule, case: Case) -> Iterator[Finding]:
    if rule.over == "all":
        yield from rule.findings(case)
    elif rule.over != "table":
        documents: dict[str, Mapping[str, object]] = {
            "run": case.runs,
            "session": case.sessions,
            "comparison": case.comparisons,
        }
        for name, document in documents[rule.over].items():
            yield from rule.findings(document, name)
    else:
        for table in case.tables:
            yield from rule.findings(table, table.name)


def _audited(table: AuditTable) -> Audited:
    read = {one.title: str(one.meaning) for one in table.columns if not one.meaning.why}
    return Audited(table.name, table.rows, read, tuple(table.unread))
