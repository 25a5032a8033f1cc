"""The slowdown that scripts/noise_check plants: how long it is, and that it is measured, not
believed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from measuring.planted import PAIRS, PLAIN, SPIN_S, Sleep, plant

FRAME_S = 0.020


class Clock:
    """Time passes where somebody sleeps, always ``late``, and 10 us at each look."""

    def __init__(self, late: float = 0.0) -> None:
        self.now, self.late = 0.0, late
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += 1e-5
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late


def rounds(asleep: Sleep, hidden: float) -> tuple[Callable[[], float], list[float]]:
    """A round whose frames take FRAME_S and what is not ``hidden`` of the sleep; and its sleeps."""
    sleeps: list[float] = []

    def run() -> float:
        sleeps.append(asleep.seconds)
        return FRAME_S + asleep.seconds * (1 - hidden)

    return run, sleeps


@pytest.mark.parametrize("late", [0.0, 0.0002])
def test_a_sleep_ends_when_it_was_to_end(late: float) -> None:
    clock = Clock(late)
    began = clock.now
    Sleep(0.001, clock, clock.sleep).take()
    assert clock.slept == [pytest.approx(0.001 - SPIN_S)]
    assert clock.now - began == pytest.approx(0.001, abs=3e-5)


def test_no_sleep_asks_no_clock() -> None:
    clock = Clock()
    Sleep(0.0, clock, clock.sleep).take()
    assert clock.now == 0
    assert not clock.slept


def test_a_sleep_too_short_to_be_slept_is_a_loop() -> None:
    clock = Clock()
    Sleep(SPIN_S / 2, clock, clock.sleep).take()
    assert not clock.slept
    assert clock.now >= SPIN_S / 2


@pytest.mark.parametrize(
    ("hidden", "ratio"),
    [
        (0.0, 1 / 1.05),
        (0.6, 1 / 1.02),  # other threads of the run caught up meanwhile
        (1.0, 1.0),
    ],
)
def test_what_the_sleep_did_is_measured(hidden: float, ratio: float) -> None:
    asleep = Sleep()
    run, sleeps = rounds(asleep, hidden)
    told = plant(asleep, 0.05, run, random.Random(1))
    assert told.ms == pytest.approx(1.0)
    assert told.frame_ms == pytest.approx(20.0)
    assert (told.low, told.ratio, told.high) == pytest.approx((ratio,) * 3)
    assert asleep.seconds == pytest.approx(0.001), "it stays for the rounds of the comparison"
    assert sleeps[:PLAIN] == [0.0] * PLAIN
    assert sum(one > 0 for one in sleeps) == sum(one == 0 for one in sleeps[PLAIN:]) == PAIRS
