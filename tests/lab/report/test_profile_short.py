"""What ``profile`` prints: what to act on first; every table with -v."""

from __future__ import annotations

import io
from types import SimpleNamespace

from rich.text import Text

from detector.core.terminal.console import SafeConsole
from detector.lab.terminal import profile
from detector.lab.terminal.profile import DETAILS, PARTS, print_profile


def printed(monkeypatch, **how):
    """Each pass is a line of its own name here."""
    parts = {name: lambda facts: Text(f"<{facts}>") for name in PARTS}
    monkeypatch.setattr(profile, "PARTS", parts)
    monkeypatch.setattr(profile, "longest_layers", lambda facts: Text("<few layers>"))
    passes = {
        name: SimpleNamespace(
            available=name != "energy", reason="no RAPL", facts=name, slowdown=None, undisturbed="x"
        )
        for name in PARTS
    }
    out = io.StringIO()
    session = SimpleNamespace(passes=passes, folder="runs/x")
    print_profile(SafeConsole(file=out, width=140), session, **how)
    return out.getvalue()


def test_all_of_it(monkeypatch):
    text = printed(monkeypatch)
    assert [name for name in PARTS if name != "energy" and f"<{name}>" not in text] == []
    assert "energy: not available: no RAPL" in text
    assert "not shown" not in text
    assert "session: runs/x" in text


def test_the_short_form_names_what_it_leaves_out(monkeypatch):
    text = printed(monkeypatch, short=True)
    [left] = [line for line in text.splitlines() if line.startswith("not shown: ")]
    for name in PARTS:
        if name in DETAILS:
            assert f"<{name}>" not in text
            assert name in left
        elif name not in ("layers", "energy"):
            assert f"<{name}>" in text
    assert "<few layers>" in text
    assert "<layers>" not in text
    assert "session: runs/x" in text
