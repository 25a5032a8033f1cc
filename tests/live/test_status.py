"""Test a feed's states and counts, on a clock that the test sets."""

import pytest

from detector.live.sources.base import CONNECTING, ENDED, LIVE, STALLED, WAITING
from detector.live.sources.status import LOGIN_S, SECOND, Backoff, Status

S = 1_000_000_000  # ns


def no_jitter() -> float:
    return 0.5  # jitter is drawn from 0..1, and 0.5 changes no wait


def make_live(status: Status, at_s: float) -> None:
    epoch = status.connect(round(at_s * S))
    status.arrive(round(at_s * S))
    status.show(round(at_s * S), epoch, 640, 360, "h264")


def test_camera_that_rarely_sends_pictures_stalls_only_after_three_intervals():
    status = Status(0)
    status.expect(4.0, "")
    epoch = status.connect(0)
    for now_ns in (0, SECOND // 10):
        status.arrive(now_ns)
    status.show(1, epoch, 64, 48)
    status.tick(10 * SECOND)
    assert status.state == LIVE
    status.tick(13 * SECOND)
    assert status.state == STALLED


def test_backoff_waits_as_go2rtc_does_and_for_minutes_after_a_wrong_login() -> None:
    backoff = Backoff(no_jitter)
    waits = [backoff.wait_s() for _ in range(22)]
    assert waits == [1.0] * 5 + [5.0] * 5 + [10.0] * 10 + [60.0] * 2
    backoff.reset()
    assert backoff.wait_s() == 1.0
    assert backoff.wait_s(login=True) == LOGIN_S == 300.0


@pytest.mark.parametrize(("drawn", "expected"), [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)])
def test_jitter_changes_the_wait_by_up_to_a_fifth(drawn: float, expected: float) -> None:
    assert Backoff(lambda: drawn).wait_s() == pytest.approx(expected)


def test_states_from_connecting_to_ended() -> None:
    status = Status(0, Backoff(no_jitter))
    assert status.state == CONNECTING
    assert status.connect(0) == 1
    status.arrive(1 * S)
    assert status.state == CONNECTING  # no picture is decoded yet
    status.show(1 * S, 1, 640, 360)
    assert status.state == LIVE
    status.tick(3 * S)
    assert status.state == LIVE
    status.tick(3 * S + 1)  # a little more than two seconds without a picture
    assert (status.state, status.facts(4 * S).stalls) == (STALLED, 1)
    assert not status.is_lost(11 * S, 20)
    status.arrive(11 * S)
    assert status.state == LIVE
    status.tick(17 * S)
    assert status.state == LIVE  # pictures are 10 s apart, and a stall takes three intervals
    next_try = status.fail(50 * S, "gone")
    facts = status.facts(50 * S)
    assert (facts.state, facts.next_try_ns, facts.error) == (WAITING, next_try, "gone")
    assert next_try == 51 * S
    assert status.connect(51 * S) == 2  # the second epoch
    status.end(52 * S)
    assert status.state == ENDED


def test_camera_is_lost_after_ten_silent_seconds_or_a_start_timeout() -> None:
    silent, starts = Status(0), Status(0)
    make_live(silent, 1)
    silent.tick(4 * S)
    starts.connect(5 * S)
    for status, last_ns in ((silent, 11 * S), (starts, 25 * S)):
        assert not status.is_lost(last_ns, 20)
        assert status.is_lost(last_ns + 1, 20)


def test_epoch_counts_connections_with_pictures() -> None:
    status = Status(0, Backoff(no_jitter))
    assert status.connect(0) == 1
    status.fail(1 * S, "refused")
    assert status.connect(2 * S) == 1
    make_live(status, 3)
    status.fail(4 * S, "gone")
    assert status.connect(5 * S) == 2
    assert status.facts(5 * S).connects == 1


@pytest.mark.parametrize(
    ("live_s", "stalls", "wait_s"), [(1, False, 5), (2, False, 1), (4, True, 1)]
)
def test_backoff_restarts_after_two_seconds_of_pictures_or_after_a_stall(
    live_s: int, stalls: bool, wait_s: int
) -> None:
    status = Status(0, Backoff(no_jitter))
    for at in range(7):
        status.fail(at * S, "refused")
    make_live(status, 10)
    end = (10 + live_s) * S
    if stalls:
        status.tick(end - S)
        status.arrive(end)
        assert status.state == LIVE
    assert status.fail(end, "gone") - end == wait_s * S


def test_late_picture_of_an_earlier_connection_does_not_make_the_camera_live() -> None:
    status = Status(0, Backoff(no_jitter))
    make_live(status, 0)
    status.fail(1 * S, "gone")
    status.connect(2 * S)
    status.show(2 * S, 1, 640, 360)
    assert status.state == CONNECTING


def test_rate_is_measured_while_live_and_unknown_during_an_outage() -> None:
    status = Status(0, Backoff(no_jitter))
    make_live(status, 0)
    for at in range(1, 51):  # 25 a second, in bursts of two
        status.arrive((at - at % 2) * S // 25)
    assert status.facts(2 * S).fps == pytest.approx(25, rel=0.05)
    status.fail(3 * S, "gone")
    assert status.facts(3 * S).fps is None


def test_burst_while_connecting_does_not_count_in_the_rate() -> None:
    status = Status(0)
    status.connect(100 * S)
    for at_ms in [*range(25), *range(40, 1040, 40)]:
        status.arrive(100 * S + at_ms * S // 1000)
    status.show(101 * S, 1, 640, 360)
    facts = status.facts(101 * S)
    assert facts.received == 50
    assert facts.fps == pytest.approx(25, abs=0.1)


def test_frozen_picture_is_not_a_stall() -> None:
    status = Status(0)
    make_live(status, 0)
    for at in range(1, 12):
        status.arrive(at * S)
        status.show(at * S, 1, 640, 360, "h264", fingerprint=7)
        status.tick(at * S)
        assert status.state == LIVE
    assert status.facts(11 * S).frozen
    status.show(12 * S, 1, 640, 360, "h264", fingerprint=8)
    assert not status.facts(12 * S).frozen


def test_unknown_drop_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown reason"):
        Status(0).drop("weather")
