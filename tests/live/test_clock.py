"""A clock that jumps. ``scripts/live_check clock`` does it twenty times, with both recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.clock_jumps import check_clock
from tests.live.program import UnavailableError

pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.mark.nightly
def test_a_day_an_hour_and_a_year_ahead_and_back_lose_no_row_and_no_file(tmp_path: Path) -> None:
    try:
        found = check_clock(tmp_path, "annotated", 6, 3.0, "null", 0)
    except UnavailableError as why:
        pytest.skip(str(why))
    assert found.wrong == []
    assert found.days >= 2
