"""The sizes of rooms and the imports of a run are within scripts/budgets.yaml."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT


@pytest.mark.slow
def test_sizes_are_within_their_budgets() -> None:
    """If a size exceeds its budget, raise the budget in the same commit, and give the reason."""
    command = [sys.executable, str(CHECKOUT / "scripts/sizes"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
