"""A planted slowdown in one process of `compare`, and its measured size.

Each call of the engine sleeps. A sleep lengthens a frame's time in full only if no other thread
uses the sleep to catch up. With video encoding, or an engine thread per core, the codecs' threads
catch up: on two busy cores they worked for 0.5 to 0.7 ms of each 2 ms sleep, and hid that part. So
the check runs one engine thread and writes no video. The process that sleeps measures the effect.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from detector.lab.analysis.statistics import ALPHA, rank_interval

SHARE = "NOISE_CHECK_SHARE"  # environment variable: each sleep as a share of a frame's time
RESULT = "NOISE_CHECK_RESULT"  # environment variable: path of the file for the measurement
# Rounds that measure a frame's time; then pairs of rounds, one with the sleep and one without.
PLAIN, PAIRS = 5, 10
SPIN_S = 0.0003  # sleeps end late, so the last part is a busy loop


@dataclass(frozen=True, slots=True)
class Measurement:
    """The effect of a sleep of ``ms``: (FPS with it) / (FPS without it), and its 95% interval."""

    ms: float
    frame_ms: float
    ratio: float
    low: float
    high: float


@dataclass(slots=True)
class Sleep:
    """Sleeps for ``seconds``, with an error of some microseconds. A sleep of 0 costs little."""

    seconds: float = 0.0
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], object] = time.sleep

    def take(self) -> None:
        if not self.seconds:
            return
        until = self.clock() + self.seconds
        if self.seconds > SPIN_S:
            self.sleep(self.seconds - SPIN_S)
        while self.clock() < until:
            pass


def plant(
    asleep: Sleep, share: float, run: Callable[[], float], dice: random.Random
) -> Measurement:
    """Set the sleep to ``share`` of a frame's time, and measure its effect. ``run``: runs a round
    with one sleep per frame; returns seconds per frame."""
    asleep.seconds = 0.0
    frame_s = median(run() for _ in range(PLAIN))
    seconds, ratios = share * frame_s, []
    for _ in range(PAIRS):
        seconds_per_frame = {}
        for sleeps in dice.sample((False, True), 2):
            asleep.seconds = seconds if sleeps else 0.0
            seconds_per_frame[sleeps] = run()
        ratios.append(math.log(seconds_per_frame[False] / seconds_per_frame[True]))
    asleep.seconds = seconds
    low, middle, high = (math.exp(value) for value in rank_interval(ratios, ALPHA))
    return Measurement(1e3 * seconds, 1e3 * frame_s, middle, low, high)


def hook() -> None:
    """Plant the sleep in the process of `compare` that runs the second variant (folder "1")."""
    share = float(os.environ.get(SHARE, 0))
    if not share:
        return
    import detector.lab.compare.worker as worker

    check = worker._OpenVariant.check

    def planted(self: Any) -> Any:
        result = check(self)
        if self.folder.name == "1":
            asleep = Sleep()
            _sleep_in(type(self.machine.engine.requests[0]), asleep)
            measured = plant(asleep, share, lambda: _seconds_a_frame(self), random.Random())
            Path(os.environ[RESULT]).write_text(json.dumps(asdict(measured)))
            self._mark_idle()
        return result

    worker._OpenVariant.check = planted  # type: ignore[method-assign]


def _sleep_in(kind: Any, asleep: Sleep) -> None:
    infer = kind.infer

    def slow(request: Any, count: int) -> Any:
        asleep.take()
        return infer(request, count)

    kind.infer = slow


def _seconds_a_frame(variant: Any) -> float:
    rate = variant.round(keeps=False).fps["end_to_end"]
    assert rate is not None, "a round without a frame"
    return float(1 / rate)
