"""Audit texts and files and return the findings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from detector.lab.audit.case import Case, audit
from detector.lab.audit.machine import Machine, read_machine
from detector.lab.audit.read import parse_tables, read_tables
from detector.lab.session.audit import AuditDocument


def of_text(text: str, machine: Mapping[str, float | str] | None = None) -> AuditDocument:
    return audit(Case(parse_tables(text, "t"), machine=Machine(dict(machine or {}))))


def of_files(paths: Sequence[Path], facts: Sequence[str] = ()) -> AuditDocument:
    tables = [table for path in paths for table in read_tables(path)]
    return audit(Case(tables, machine=read_machine(facts)))


def rules_of(document: AuditDocument) -> set[str]:
    return {finding.rule for finding in document.findings}
