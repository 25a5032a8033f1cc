"""A run of ours audits itself as it ends: rules over its summary, which measure nothing."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from detector.core.errors.text import counted
from detector.core.session.document import Summary
from detector.lab.audit.rule import rules_of
from detector.lab.audit.rules import runs
from detector.lab.session.audit import SEVERITIES, Finding


def findings_of(summary: Summary) -> Iterator[Finding]:
    found = [one for rule in rules_of(runs) for one in rule.findings(summary, "")]
    yield from sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def closing_line(summary: Summary, verbose: bool) -> str | None:
    found = list(findings_of(summary))
    counts = [
        counted(sum(one.severity == severity for one in found), severity)
        for severity in ("error", "warning")[: 2 if verbose else 1]
        if any(one.severity == severity for one in found)
    ]
    if not counts:
        return None
    names = list(dict.fromkeys(one.rule for one in found if one.severity != "note"))
    said = ", ".join(names) if verbose else names[0]
    folder = "" if summary.session is UNSET else f"; details: detect-video audit {summary.session}"
    return f"audit: {', '.join(counts)} ({said}){folder}"
