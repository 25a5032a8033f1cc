"""Each pin of constraints.txt has hashes. The audit of the pins is tested with a fake PyPI."""

import re
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import CHECKOUT, load_program


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    return load_program("scripts/audit_pins")


def test_each_pin_has_hashes(audit):
    """If this fails after a pin has changed, run ``scripts/audit_pins --hashes``."""
    text = (CHECKOUT / "constraints-hashed.txt").read_text()
    pins = audit.read_pins(CHECKOUT / "constraints.txt")
    hashed = audit.read_pins(CHECKOUT / "constraints-hashed.txt")
    canonical = audit.canonical
    assert {canonical(name): version for name, version in hashed.items()} == {
        canonical(name): version for name, version in pins.items()
    }
    assert len(pins) == len((CHECKOUT / "constraints.txt").read_text().splitlines()) - 1
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]
    assert len(blocks) == len(pins)
    for block in blocks:
        first, *others = block.strip().split("\n")
        assert others, first
        for line in others:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line


def pages(known: list[dict[str, Any]], newest: str, all_versions: bool) -> Any:
    """Return a fake of ``_get`` for PyPI, or for a mirror that has only the newest version."""
    document = {"info": {"version": newest}, "vulnerabilities": known}

    def get(address: str) -> dict[str, Any] | None:
        return document if all_versions or address.count("/") == 5 else None

    return get


VULNERABLE = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["2.1"], "summary": "bad"}


@pytest.mark.parametrize(
    ("newest", "all_versions", "known", "status", "message"),
    [
        ("2.0", True, [VULNERABLE], 1, "thing==2.0: PYSEC-1, CVE-1: fixed in 2.1: bad"),
        ("2.0", False, [VULNERABLE], 1, "1 checked by PyPI, 0 not; 1 vulnerable, 1 reports"),
        ("2.0", True, [], 0, "1 checked by PyPI, 0 not; 0 vulnerable"),
        ("3.0", True, [], 0, "1 checked by PyPI"),
        ("3.0", False, [], 3, "thing==2.0: PyPI reports only on the newest version, 3.0"),
        ("2.0", True, [{**VULNERABLE, "withdrawn": "2021"}], 0, "0 vulnerable"),
    ],
)
def test_report_of_a_pin_depends_on_the_answer_of_pypi(
    audit, monkeypatch, capsys, newest, all_versions, known, status, message
):
    monkeypatch.setattr(audit, "_get", pages(known, newest, all_versions))
    assert audit.report([audit.ask_pypi("thing", "2.0")]) == status
    assert message in capsys.readouterr().out


def test_status_is_3_if_pypi_does_not_answer(audit, monkeypatch, capsys):
    monkeypatch.setattr(audit, "_get", lambda address: None)
    assert audit.report([audit.ask_pypi("thing", "2.0")]) == 3
    assert "thing==2.0" in capsys.readouterr().out
