"""constraints.txt with hashes, and the audit of its versions: without a network."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.conftest import CHECKOUT, load_program

REPORT: dict[str, Any] = {
    "id": "PYSEC-2021-1",
    "details": "Reads what\nit should not.",
    "aliases": ["CVE-2021-1"],
    "affected": [
        {
            "package": {"name": "some-thing", "ecosystem": "PyPI"},
            "ranges": [
                {
                    "type": "ECOSYSTEM",
                    "events": [
                        {"introduced": "1.0"},
                        {"fixed": "1.5"},
                        {"introduced": "2.0"},
                        {"fixed": "2.0.3"},
                    ],
                }
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    return load_program("scripts/audit_pins")


def test_every_pin_has_its_hashes(audit):
    """Written anew by ``scripts/audit_pins --hashes`` whenever a pin changes."""
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


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.9", False),
        ("1.0", True),
        ("1.4.9", True),
        ("1.5", False),
        ("2.0.2", True),
        ("2.0.3", False),
        ("2.0rc1", False),
    ],
)
def test_a_version_of_the_database_is_found(audit, tmp_path, version, known):
    place = tmp_path / "vulns/some-thing"
    place.mkdir(parents=True)
    (place / "PYSEC-2021-1.yaml").write_text(yaml.safe_dump(REPORT))
    (place / "PYSEC-2021-2.yaml").write_text(yaml.safe_dump({**REPORT, "withdrawn": "2021"}))
    (found,) = audit.read_database(tmp_path, {"Some_Thing": version}).values()
    assert [one.id for one in found] == ["PYSEC-2021-1"] * known
    if known:
        assert found[0].fixed == ("1.5", "2.0.3")


def pages(known: list[dict[str, Any]], newest: str, all_versions: bool) -> Any:
    """What PyPI gives; a mirror has the newest version only."""
    document = {"info": {"version": newest}, "vulnerabilities": known}

    def get(address: str) -> dict[str, Any] | None:
        return document if all_versions or address.count("/") == 5 else None

    return get


VULNERABLE = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["2.1"], "summary": "bad"}


@pytest.mark.parametrize(
    ("newest", "all_versions", "known", "status", "says"),
    [
        ("2.0", True, [VULNERABLE], 1, "thing==2.0: PYSEC-1, CVE-1: fixed in 2.1: bad"),
        ("2.0", False, [VULNERABLE], 1, "1 checked by PyPI, 0 not; 1 vulnerable, 1 reports"),
        ("2.0", True, [], 0, "1 checked by PyPI, 0 not; 0 vulnerable"),
        ("3.0", True, [], 0, "1 checked by PyPI"),
        ("3.0", False, [], 3, "thing==2.0: the index only knows the newest version, 3.0"),
        ("2.0", True, [{**VULNERABLE, "withdrawn": "2021"}], 0, "0 vulnerable"),
    ],
)
def test_what_pypi_says_of_a_pin(
    audit, monkeypatch, capsys, newest, all_versions, known, status, says
):
    monkeypatch.setattr(audit, "_get", pages(known, newest, all_versions))
    assert audit.report([audit.ask_pypi("thing", "2.0")]) == status
    assert says in capsys.readouterr().out


def test_a_pin_that_nobody_answers_for_is_told(audit, monkeypatch, capsys):
    monkeypatch.setattr(audit, "_get", lambda address: None)
    assert audit.report([audit.ask_pypi("thing", "2.0")]) == 3
    assert "thing==2.0" in capsys.readouterr().out
