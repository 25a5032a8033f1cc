"""kill -9 while recording. ``scripts/live_kill`` does it twenty times and more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.live.killing import kill_once, make_source


@pytest.mark.slow
def test_a_kill_costs_at_most_the_last_second(tmp_path: Path) -> None:
    stream = make_source(tmp_path, 6)
    for loss in kill_once(tmp_path / "live", stream, random.uniform(2.5, 4.5)):
        assert loss.kept > 40
        assert loss.partial == 1
        assert loss.lost_s <= 1.0
