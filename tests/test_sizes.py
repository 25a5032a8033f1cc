"""Rooms keep to their budgets (scripts/budgets.yaml), and a run imports what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT


@pytest.mark.slow
def test_nothing_is_above_its_budget() -> None:
    """If one is: raise the budget in the commit that needs it, and give the reason there."""
    command = [sys.executable, str(CHECKOUT / "scripts/sizes"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
