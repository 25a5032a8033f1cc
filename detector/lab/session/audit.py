"""The document of ``audit --json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = 1
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # the worst first


@dataclass(frozen=True, slots=True)
class Finding:
    """``rule``: its id. ``where``: the tables or runs that show it; ``rows``: their rows.
    ``evidence``: the numbers and the arithmetic. ``cure``: what to do."""

    rule: str
    severity: Severity
    where: tuple[str, ...]
    rows: tuple[str, ...]
    evidence: str
    cure: str


@dataclass(frozen=True, slots=True)
class Audited:
    """One table or document that was looked at. ``read``: title of a column -> what it was read
    as. ``unread``: what was left out because it is ambiguous, and why."""

    name: str
    rows: int
    read: dict[str, str]
    unread: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AuditDocument:
    """``runs``: of ``audited``. ``machine``: the facts given. ``counts``: findings by severity."""

    schema: int = SCHEMA
    audited: tuple[Audited, ...]
    runs: int
    machine: dict[str, float | str]
    rules: int
    counts: dict[Severity, int]
    findings: tuple[Finding, ...]
