"""What ``profile`` prints: what to act on first; every table with -v."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from detector.core.terminal.console import SafeConsole
from detector.lab.report import part
from detector.lab.report.part import Part
from detector.lab.terminal.profile import print_profile

OF_PASSES = [one for one in part.list_parts() if one.says]


@pytest.fixture
def printed(monkeypatch):
    """Each pass says a line of its own name here; one of them could not run."""

    def says(one, text):
        return lambda facts: [f"<{one.name}: {text}>"]

    parts = [
        Part(
            name=one.name,
            title="",
            place=one.place,
            facts=type(one.name, (), {}),
            says=says(one, "whole"),
            brief=says(one, "short") if one.brief else None,
            detail=one.detail,
        )
        for one in OF_PASSES
    ]
    monkeypatch.setattr(part, "list_parts", lambda: parts)
    same = {"slowdown": None, "undisturbed": "x", "ran": None}
    passes = {one.name: SimpleNamespace(available=True, facts=one.facts(), **same) for one in parts}
    passes["energy"] = SimpleNamespace(available=False, reason="no RAPL", facts=None, **same)
    session = SimpleNamespace(passes=passes, folder="runs/x")

    def run(**how):
        out = io.StringIO()
        print_profile(SafeConsole(file=out, width=140), session, **how)
        return out.getvalue()

    return run


def test_all_of_it(printed):
    text = printed()
    for one in OF_PASSES:
        assert (f"<{one.name}: whole>" in text) == (one.name != "energy")
    assert "not available: no RAPL" in text
    assert "not shown" not in text
    assert "saved run: runs/x" in text


def test_the_short_form_names_what_it_leaves_out(printed):
    text = printed(short=True)
    [left] = [line for line in text.splitlines() if line.startswith("not shown: ")]
    for one in OF_PASSES:
        if one.detail:
            assert f"<{one.name}: " not in text
            assert one.name in left
        elif one.name != "energy":
            assert f"<{one.name}: {'short' if one.brief else 'whole'}>" in text
    assert "the other layers" in left
    assert "saved run: runs/x" in text
