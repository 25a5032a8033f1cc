"""Runs audit themselves as they end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from detector.core import wings
from detector.core.session.codec import from_builtins
from detector.core.session.document import Summary
from detector.lab.audit.case import audit
from detector.lab.audit.finished import closing_line
from detector.lab.audit.gather import gather
from detector.lab.audit.machine import Machine
from detector.lab.report.parts.audit import findings
from detector.lab.session.read import read_session
from tests.conformance.test_audit_rules import CLEAN_RUN
from tests.lab.report.sessions import ran


@pytest.fixture
def clean() -> Summary:
    names = set(Summary.__dataclass_fields__)
    content = {key: value for key, value in CLEAN_RUN.items() if key in names}
    return from_builtins(content, Summary, "clean")


def test_a_sound_run_says_nothing(clean: Summary) -> None:
    assert closing_line(clean, verbose=True) is None
    assert wings.closing_lines(clean, verbose=True) == []


def test_the_short_end_tells_errors_alone(clean: Summary) -> None:
    warned = replace(clean, engine_threads=8)
    assert closing_line(warned, verbose=False) is None
    assert "more-threads-than-cores" in (closing_line(warned, verbose=True) or "")
    wrong = replace(warned, precision_effect="int8 changed nothing")
    for verbose in (False, True):
        lines = wings.closing_lines(wrong, verbose)
        assert len(lines) == 1
        assert "run-precision-not-executed" in lines[0]


def test_a_run_and_its_report_tell_the_same(tmp_path: Path) -> None:
    folder = ran(tmp_path)
    document = audit(gather([str(folder)], {}, Machine()))
    assert document.counts["error"] == 0
    drawn = findings(read_session(folder))
    assert all(one.rule in drawn for one in document.findings)


def test_several_runs_are_set_side_by_side(tmp_path: Path) -> None:
    one, two = ran(tmp_path / "one"), ran(tmp_path / "two", batch=2)
    case = gather([str(one), str(two)], {}, Machine())
    (beside,) = [table for table in case.tables if table.name == "runs side by side"]
    assert beside.rows == 2
    assert beside.unread == []
    assert list(beside.texts("batch")) == ["1", "2"]


REAL = [
    {"engine": "ort", "precision": "fp32"},
    {"engine": "ort", "precision": "int8", "batch": 2},
    {"engine": "ort", "sync": True, "size": "320"},
    {"engine": "openvino", "precision": "fp32", "threads": 1},
]


@pytest.mark.slow
@pytest.mark.parametrize("flags", REAL, ids=str)
def test_a_real_run_has_no_error(flags, tmp_path: Path) -> None:
    if flags["engine"] == "openvino":
        pytest.importorskip("openvino", reason="machine: openvino is not installed")
    folder = ran(tmp_path, **flags)
    found = audit(gather([str(folder)], {}, Machine())).findings
    assert [one for one in found if one.severity == "error"] == []
