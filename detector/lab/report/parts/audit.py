"""The part of the report that lists the mistakes that an audit finds in the run."""

from __future__ import annotations

from detector.core.tables import Column, Table
from detector.lab.audit.case import Case, audit
from detector.lab.audit.documents import add_session
from detector.lab.report.html.drawings import table, text
from detector.lab.report.part import How, Part
from detector.lab.session.read import SavedSession

FINDINGS = (Column("severity"), Column("rule"), Column("evidence"), Column("cure", "what to do"))


def findings(session: SavedSession) -> str:
    case = Case()
    add_session(case, session, session.folder.name)
    document = audit(case)
    if not document.findings:
        return text(f"{document.rules} rules found no problem.")
    return table(Table("audit", FINDINGS, document.findings))


AUDIT = How(
    "audit",
    "caveats",
    "Rules that check the figures of this run; they need no extra measurement.",
    "Every rule",
    "docs/pitfalls.md",
)
PARTS = (Part("audit", "Caveats", 12, findings, how=AUDIT),)
