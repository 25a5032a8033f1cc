"""Every option does something: code reads it, and a command that offers it acts by it."""

from __future__ import annotations

import pytest

from detector.core.config import schema
from tests.config import option_reads
from tests.conftest import CHECKOUT

PACKAGE = CHECKOUT / "detector"


@pytest.mark.slow
def test_every_option_is_read_by_something():
    assert option_reads.unread(PACKAGE) == []


@pytest.mark.slow
def test_an_option_that_nothing_reads_is_found(monkeypatch):
    """Of the same name in another group, or of another thing's attribute, is not that option."""
    planted = ("output", next(leaf for _, leaf in schema.options() if leaf.name == "stride"))
    monkeypatch.setattr(option_reads, "options", lambda: [*schema.options(), planted])
    assert option_reads.unread(PACKAGE) == ["output.stride"]
