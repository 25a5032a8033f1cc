"""A run audits its own figures when it ends."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from detector.core import wings
from detector.core.session.codec import from_builtins
from detector.core.session.document import Summary
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.run import print_run
from detector.lab.audit.case import Case, audit
from detector.lab.audit.closing import closing_line
from detector.lab.audit.documents import tables_of_runs
from detector.lab.audit.gather import gather
from detector.lab.audit.machine import Machine
from detector.lab.report.parts.audit import findings
from detector.lab.session.read import read_session
from tests.conformance.test_audit_rules import CLEAN_COMPARISON, CLEAN_RUN, ROW
from tests.lab.report.sessions import layer, ran, with_passes
from tests.session.documents import DOCUMENT


@pytest.fixture
def clean() -> Summary:
    names = set(Summary.__dataclass_fields__)
    content = {key: value for key, value in CLEAN_RUN.items() if key in names}
    return from_builtins(content, Summary, "clean")


def test_run_without_findings_prints_no_line(clean: Summary) -> None:
    assert closing_line(clean, verbose=True) is None
    assert wings.closing_lines(clean, verbose=True) == []


def test_closing_line_has_warnings_only_if_verbose(clean: Summary) -> None:
    warned = replace(clean, engine_threads=8)
    assert closing_line(warned, verbose=False) is None
    assert "more-threads-than-cores" in (closing_line(warned, verbose=True) or "")
    wrong = replace(warned, precision_effect="int8 changed nothing")
    for verbose in (False, True):
        lines = wings.closing_lines(wrong, verbose)
        assert len(lines) == 1
        assert "run-precision-not-executed" in lines[0]


@pytest.mark.parametrize("verbose", [False, True])
def test_terminal_prints_each_closing_line_once(clean: Summary, verbose: bool) -> None:
    out = io.StringIO()
    print_run(SafeConsole(file=out, width=80), clean, verbose, ["audit: 1 error"])
    assert out.getvalue().splitlines().count("audit: 1 error") == 1


@pytest.mark.slow
def test_report_lists_the_findings_of_the_run(tmp_path: Path) -> None:
    folder = with_passes(ran(tmp_path))
    document = audit(gather([str(folder)], {}, Machine()))
    assert document.counts["error"] == 0
    drawn = findings(read_session(folder))
    assert all(one.rule in drawn for one in document.findings)


@pytest.mark.slow
def test_figures_of_several_runs_are_compared(tmp_path: Path) -> None:
    one, two = ran(tmp_path / "one"), ran(tmp_path / "two", batch=2)
    case = gather([str(one), str(two)], {}, Machine())
    third = case.runs[str(one)]
    faster = replace(third, fps=replace(third.fps, end_to_end=2 * (third.fps.end_to_end or 0)))
    again = Case(list(tables_of_runs({"one": third, "again": faster})))
    (hit,) = [found for found in audit(again).findings if found.rule == "same-thing-differs"]
    assert "100%" in hit.evidence
    (side_by_side,) = [table for table in case.tables if table.name == "runs side by side"]
    assert side_by_side.rows == 2
    assert side_by_side.unread == []
    assert list(side_by_side.texts("batch")) == ["1", "2"]


def test_printed_documents_are_audited(tmp_path: Path) -> None:
    """The kind of each document is recognised by its keys."""
    layers = {"layers": {"rows": [layer(number) for number in range(9)]}}
    rates = {"median": 40.0, "low": 39.0, "high": 41.0}
    row = {**ROW, "fps": {"inference": rates, "end_to_end": rates}}
    compared = {**CLEAN_COMPARISON, "rows": [row]}
    run = {key: value for key, value in CLEAN_RUN.items() if key in Summary.__dataclass_fields__}
    result = {"engine": "ort", "fps": {"end_to_end": 9.0}, "ap": 0.4, "model_input": [256, 416]}
    documents = {
        "profile": (layers, "layers: rows"),
        "compare": (compared, "rows"),
        "run": (run, "stages"),
        "session": (DOCUMENT, "stages"),
        "eval": ({"dataset": {}, "results": [result]}, "results"),
        "rows": ([{"model": "a", "latency_ms": 5.0}], "rows"),
    }
    for name, (content, table) in documents.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        case = gather([str(path)], {}, Machine())
        assert f"{path}: {table}" in [one.name for one in case.tables], name
        assert (name in ("run", "session")) == bool(case.runs)
        assert (name == "compare") == bool(case.comparisons)
        assert audit(case).counts["error"] == 0, name


SETTINGS = [
    {"engine": "ort", "precision": "fp32"},
    {"engine": "ort", "precision": "int8", "batch": 2},
    {"engine": "ort", "sync": True, "size": "320"},
    {"engine": "openvino", "precision": "fp32", "threads": 1},
]


@pytest.mark.slow
@pytest.mark.parametrize("flags", SETTINGS, ids=str)
def test_real_run_has_no_errors(flags, tmp_path: Path) -> None:
    if flags["engine"] == "openvino":
        pytest.importorskip("openvino", reason="machine: openvino is not installed")
    folder = ran(tmp_path, **flags)
    found = audit(gather([str(folder)], {}, Machine())).findings
    assert [one for one in found if one.severity == "error"] == []
