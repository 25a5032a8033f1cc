"""Test the lines that a live run prints about its cameras. The tests move the clock."""

import re
from dataclasses import replace

from detector.live.camera_lines import CAUGHT_UP_S, CameraLines
from detector.live.sources.base import CONNECTING, LAG, LIVE, NEWER, WAITING, FeedFacts

SECOND = 1_000_000_000
UP = FeedFacts(LIVE, 0, width=64, height=48, codec="h264")


def dropped(lag: int) -> dict[str, FeedFacts]:
    return {"door": replace(UP, dropped={LAG: lag, NEWER: 7})}


def test_camera_state_is_printed_once() -> None:
    state_lines: list[str] = []
    camera_lines = CameraLines(state_lines.append, print, 2.0)
    down = FeedFacts(WAITING, 0, error="nothing listens", next_try_ns=5 * SECOND)
    camera_lines.report({"door": FeedFacts(CONNECTING, 0)}, 0)
    for now_s in (0, 1):
        camera_lines.report({"door": down}, now_s * SECOND)
    for now_s in (2, 3):
        camera_lines.report({"door": UP}, now_s * SECOND)
    assert re.fullmatch(
        "door: nothing listens; .* 5 s\ndoor: live, 64x48 h264", "\n".join(state_lines)
    )
    assert camera_lines.has_reported("door", "live, 64x48 h264")
    assert not camera_lines.has_reported("door", "nothing listens")


def test_dropped_backlog_is_reported_once_under_policy_every() -> None:
    fault_lines: list[str] = []
    camera_lines = CameraLines(print, fault_lines.append, 2.0)
    for now_s, lag in ((0, 0), (1, 10), (2, 20), (CAUGHT_UP_S, 30)):
        camera_lines.report(dropped(lag), round(now_s * SECOND))
    assert len(fault_lines) == 1
    assert fault_lines[0].startswith("door: ")
    assert "older than --max-age 2 s" in fault_lines[0]
    camera_lines.report(dropped(30), round(3 * CAUGHT_UP_S * SECOND))
    assert len(fault_lines) == 1, "nothing more was dropped"
    camera_lines.report(dropped(40), round(3 * CAUGHT_UP_S * SECOND))
    assert len(fault_lines) == 2, "the camera had caught up before this drop"


def test_dropped_backlog_is_not_reported_under_policy_latest() -> None:
    fault_lines: list[str] = []
    CameraLines(print, fault_lines.append, None).report(dropped(10), 0)
    assert fault_lines == []
