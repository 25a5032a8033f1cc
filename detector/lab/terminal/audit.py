"""Print the findings of ``audit`` by rule, and the columns that could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.padding import Padding
from rich.text import Text

from detector.core.errors import UsageError
from detector.core.errors.parsing import quote
from detector.core.errors.text import counted
from detector.core.terminal.console import SafeConsole
from detector.lab.audit.rule import Rule, find_rule, list_rules
from detector.lab.session.audit import AuditDocument, Finding

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}
SHOWN = 6  # findings shown of one rule
SHOWN_ROWS = 4


def print_audit(console: SafeConsole, document: AuditDocument) -> None:
    for rule, findings in groupby(document.findings, key=lambda one: one.rule):
        _print_rule(console, rule, list(findings))
    for audited in document.audited:
        for line in audited.unread:
            console.print(Text(f"not read: {audited.name}: {line} (use --columns to name it)"))
    counts = [counted(count, severity) for severity, count in document.counts.items() if count]
    tables = counted(len(document.audited) - document.runs, "table")
    what = f"{tables} and {counted(document.runs, 'run')}, {document.rules} rules"
    console.print(Text(f"{what}: {', '.join(counts) or 'no findings'}", style="bold"))


def _print_rule(console: SafeConsole, rule: str, findings: list[Finding]) -> None:
    first, known = findings[0], find_rule(rule)
    head = Text.assemble(
        (first.severity, STYLES[first.severity]), f" {rule}: {known.what if known else ''}"
    )
    console.print(head)
    for one in findings[:SHOWN]:
        where = ", ".join(one.where)
        _print_under(console, f"{where}: {one.evidence}{_rows(one)}" if where else one.evidence)
    if len(findings) > SHOWN:
        _print_under(console, f"and {len(findings) - SHOWN} more (--json prints all)")
    _print_under(console, f"-> {first.cure}", "dim")


def _rows(one: Finding) -> str:
    rows = [row for row in one.rows if row not in one.evidence]
    if not rows:
        return ""
    more = f", {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return f" ({', '.join(rows[:SHOWN_ROWS])}{more})"


def _print_under(console: SafeConsole, text: str, style: str = "") -> None:
    console.print(Padding(Text(text, style=style), (0, 0, 0, 2), expand=False))


def print_rules(console: SafeConsole, name: str) -> None:
    rule = find_rule(name)
    if rule is None and name != "all":
        raise UsageError(f"--explain {quote(name)}: no such rule; for a list, use --explain all")
    if rule is None:
        for one in list_rules():
            console.print(Text(f"{one.severity:<8}{one.id}: {one.what}"))
        return
    for line in _explained(rule):
        console.print(Text(line))


def _explained(rule: Rule) -> Iterator[str]:
    yield f"{rule.severity} {rule.id}: {rule.what}"
    yield f"-> {rule.cure}"
    if rule.machine:
        yield f"machine of the examples: {', '.join(f'{k}={v}' for k, v in rule.machine.items())}"
    for title, text in (("fires on", rule.bad), ("silent on", rule.clean)):
        if text:
            yield f"{title}:"
            yield from (f"    {line}" for line in text.strip().splitlines())
