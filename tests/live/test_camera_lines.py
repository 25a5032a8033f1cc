"""The lines that a live run prints about its cameras, on a clock that the test moves."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from detector.live.camera_lines import CAUGHT_UP_S, CameraLines
from detector.live.sources.base import CONNECTING, LAG, LIVE, NEWER, WAITING, FeedFacts

SECOND = 1_000_000_000
UP = FeedFacts(LIVE, 0, width=64, height=48, codec="h264")


@pytest.fixture
def states() -> list[str]:
    return []


@pytest.fixture
def faults() -> list[str]:
    return []


@pytest.fixture
def every(states: list[str], faults: list[str]) -> CameraLines:
    return CameraLines(states.append, faults.append, 2.0)


def dropped(lag: int) -> dict[str, FeedFacts]:
    return {"door": replace(UP, dropped={LAG: lag, NEWER: 7})}


def test_camera_state_is_printed_once(every: CameraLines, states: list[str]) -> None:
    down = FeedFacts(WAITING, 0, error="nothing listens", next_try_ns=5 * SECOND)
    every.report({"door": FeedFacts(CONNECTING, 0)}, 0)
    for now_s in (0, 1):
        every.report({"door": down}, now_s * SECOND)
    for now_s in (2, 3):
        every.report({"door": UP}, now_s * SECOND)
    assert re.fullmatch("door: nothing listens; .* 5 s\ndoor: live, 64x48 h264", "\n".join(states))
    assert every.has_reported("door", "live, 64x48 h264")
    assert not every.has_reported("door", "nothing listens")


def test_every_says_when_it_gives_up_and_not_each_time(
    every: CameraLines, faults: list[str]
) -> None:
    for now_s, lag in ((0, 0), (1, 10), (2, 20), (CAUGHT_UP_S, 30)):
        every.report(dropped(lag), round(now_s * SECOND))
    assert len(faults) == 1
    assert faults[0].startswith("door: ")
    assert "older than --max-age 2 s" in faults[0]
    every.report(dropped(30), round(3 * CAUGHT_UP_S * SECOND))
    assert len(faults) == 1, "nothing more was left out"
    every.report(dropped(40), round(3 * CAUGHT_UP_S * SECOND))
    assert len(faults) == 2, "it had caught up"


def test_latest_promises_no_picture(states: list[str], faults: list[str]) -> None:
    CameraLines(states.append, faults.append, None).report(dropped(10), 0)
    assert faults == []
