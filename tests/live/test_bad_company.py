"""Runs with misbehaving peers. ``scripts/live_check broker`` and ``readers`` take longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.bad_company import check_broker, check_readers

pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["a packet of 256 MB", "leaves at each packet"])
def test_a_run_outlives_its_broker(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("paho.mqtt")
    found = check_broker(tmp_path, kind, 8.0)
    assert found.wrong == []
    assert found.lines == 1


def test_visitors_who_do_not_read_cost_nothing_that_stays(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    found, _ = check_readers(tmp_path, 5, 0.3)
    assert found.wrong == []
    assert found.visits >= 20
