"""The document of ``audit --json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = 1
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # the worst first


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake. ``rule``: id of the rule that found it. ``where``: tables or runs; ``rows``: their
    rows. ``evidence``: the numbers and the arithmetic. ``cure``: what to do."""

    rule: str
    severity: Severity
    where: tuple[str, ...]
    rows: tuple[str, ...]
    evidence: str
    cure: str


@dataclass(frozen=True, slots=True)
class Audited:
    """An audited table or run. ``read``: column title -> the meaning assigned to the column.
    ``unread``: columns that were skipped as ambiguous, and why."""

    name: str
    rows: int
    read: dict[str, str]
    unread: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AuditDocument:
    """``runs``: how many of ``audited`` are runs. ``machine``: facts given by the user. ``rules``:
    how many rules were checked. ``counts``: number of findings by severity."""

    schema: int = SCHEMA
    audited: tuple[Audited, ...]
    runs: int
    machine: dict[str, float | str]
    rules: int
    counts: dict[Severity, int]
    findings: tuple[Finding, ...]
