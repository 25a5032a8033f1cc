"""The output of ``profile``: a short form or, with ``-v``, every table."""

import io
from types import SimpleNamespace

import pytest

from detector.core.terminal.console import SafeConsole
from detector.lab.report import part
from detector.lab.report.part import Part
from detector.lab.terminal.profile import print_profile

PASS_PARTS = [pass_part for pass_part in part.list_parts() if pass_part.says]


@pytest.fixture
def printed(monkeypatch):
    """Return a function that prints a line for each stub pass. ``energy`` is unavailable."""

    def text_of_pass(pass_part, text):
        return lambda facts: [f"<{pass_part.name}: {text}>"]

    parts = [
        Part(
            name=pass_part.name,
            title="",
            place=pass_part.place,
            facts=type(pass_part.name, (), {}),
            says=text_of_pass(pass_part, "whole"),
            brief=text_of_pass(pass_part, "short") if pass_part.brief else None,
            detail=pass_part.detail,
        )
        for pass_part in PASS_PARTS
    ]
    monkeypatch.setattr(part, "list_parts", lambda: parts)
    same = {"slowdown": None, "undisturbed": "x", "ran": None}
    passes = {
        pass_part.name: SimpleNamespace(available=True, facts=pass_part.facts(), **same)
        for pass_part in parts
    }
    passes["energy"] = SimpleNamespace(available=False, reason="no RAPL", facts=None, **same)
    session = SimpleNamespace(passes=passes, folder="runs/x")

    def run(**how):
        out = io.StringIO()
        print_profile(SafeConsole(file=out, width=140), session, **how)
        return out.getvalue()

    return run


def test_full_form_prints_every_pass(printed):
    text = printed()
    for pass_part in PASS_PARTS:
        assert (f"<{pass_part.name}: whole>" in text) == (pass_part.name != "energy")
    assert "not available: no RAPL" in text
    assert "not shown" not in text
    assert "saved run: runs/x" in text


def test_short_form_lists_the_omitted_passes(printed):
    text = printed(short=True)
    [omitted] = [line for line in text.splitlines() if line.startswith("not shown: ")]
    for pass_part in PASS_PARTS:
        if pass_part.detail:
            assert f"<{pass_part.name}: " not in text
            assert pass_part.name in omitted
        elif pass_part.name != "energy":
            assert f"<{pass_part.name}: {'short' if pass_part.brief else 'whole'}>" in text
    assert "the other layers" in omitted
    assert "saved run: runs/x" in text
