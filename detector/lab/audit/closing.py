"""Audit a run as it ends, with the rules that need only its summary."""

from __future__ import annotations

from msgspec import UNSET

from detector.core.errors.text import counted
from detector.core.session.document import Summary
from detector.lab.audit.rule import rules_in
from detector.lab.audit.rules import runs
from detector.lab.session.audit import SEVERITIES


def closing_line(summary: Summary, verbose: bool) -> str | None:
    findings = [finding for rule in rules_in(runs) for finding in rule.findings(summary)]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    severities = [finding.severity for finding in findings]
    counts = [
        counted(severities.count(severity), severity)
        for severity in ("error", "warning")[: 2 if verbose else 1]
        if severity in severities
    ]
    if not counts:
        return None
    names = list(dict.fromkeys(one.rule for one in findings if one.severity != "note"))
    listed = ", ".join(names) if verbose else names[0]
    folder = "" if summary.session is UNSET else f"; details: detect-video audit {summary.session}"
    return f"audit: {', '.join(counts)} ({listed}){folder}"
