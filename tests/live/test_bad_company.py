"""Test runs with misbehaving peers; ``scripts/live_check broker`` and ``readers`` run longer."""

from pathlib import Path

import pytest

from tests.live.bad_company import check_broker, check_readers

pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["a packet of 256 MB", "leaves at each packet"])
def test_run_survives_a_hostile_broker(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("paho.mqtt")
    outcome = check_broker(tmp_path, kind, 8.0)
    assert outcome.wrong == []
    assert outcome.lines == 1


def test_clients_that_do_not_read_leak_nothing(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    outcome, _ = check_readers(tmp_path, 5, 0.3)
    assert outcome.wrong == []
    assert outcome.visits >= 20
