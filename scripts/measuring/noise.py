"""A simulated computer with known noise, to test the decisions of `compare` and `diff`.

Its speed follows an autoregressive process, a drift, and bursts in which another job slows it down.
All seeds are fixed, so the counts of verdicts are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from detector.core.config.schema import Config
from detector.lab.analysis.compare import Variant, compare_variants
from detector.lab.analysis.diff import change
from detector.lab.compare.rounds import Rounds, take_rounds
from detector.lab.session.comparison import About, Comparison, Round

# A turn is one timed run. STEP, WHITE, DRIFT and BURST apply to the logarithm of its time.
MEMORY = 0.8  # coefficient of the autoregressive process
STEP, WHITE = 0.015, 0.015  # standard deviations of the process's steps, and of white noise
DRIFT = 0.2  # largest drift from the first turn to the last
BURST, ENTER, LEAVE = 0.3, 0.04, 0.25  # slow-down of a burst; probabilities that it starts and ends
CPU_MS = {"read": 1.0, "annotate": 0.5, "write": 2.0}


def slowness(dice: np.random.Generator, turns: int) -> Iterator[float]:
    """Yield the logarithm of each turn's time, relative to a quiet turn."""
    walk, burst = dice.normal(0, STEP / np.sqrt(1 - MEMORY**2)), False
    slope, phase = dice.uniform(-DRIFT, DRIFT) / turns, dice.uniform(0, 2 * np.pi)
    turn = 0
    while True:
        walk = MEMORY * walk + dice.normal(0, STEP)
        burst = dice.uniform() < (1 - LEAVE if burst else ENTER)
        wave = DRIFT / 4 * np.sin(2 * np.pi * turn / turns + phase)
        yield slope * turn + wave + walk + BURST * burst + dice.normal(0, WHITE)
        turn += 1


class FakeWorkers:
    """Replaces the processes of a comparison. ``slower``: variant number -> extra time (share)."""

    def __init__(self, seed: int, slower: dict[int, float]) -> None:
        self._dice = np.random.default_rng(seed)
        self._slow = slowness(self._dice, 90)
        self._slower = slower

    def open(self, at: int, variant: Variant, plan: Rounds) -> None:
        pass

    def request(self, at: int, variant: Variant, command: object, kind: object) -> Round:
        ms = 20 * np.exp(next(self._slow)) * (1 + self._slower.get(at, 0.0))
        inside = 0.6 * ms * np.exp(self._dice.normal(0, 0.01))
        fps = {"end_to_end": float(1e3 / ms), "inference": float(1e3 / inside)}
        return Round(fps=fps, cpu_ms=CPU_MS, frames=60)


def simulate(seed: int, slower: dict[int, float], rows: int = 2) -> Comparison:
    """Run the real comparison on simulated variants. All are equal, except those in ``slower``."""
    plan = Rounds("", Config(), ["ort"] * rows, ["fp32"], [1], None, seconds=1e9)
    plan.dice.seed(seed)
    variants = plan.variants()
    look = take_rounds(FakeWorkers(seed, slower), variants, plan, lambda text: None)  # type: ignore[arg-type]
    about = About(source="", rounds=look_rounds(variants), budget=0.95)
    return compare_variants(variants, about, look)


def look_rounds(variants: list[Variant]) -> int:
    return max(len(variant.rounds) for variant in variants)


def alarms(document: Comparison, outcomes: tuple[str, ...] = ("faster", "slower")) -> int:
    """Return 1 if any row's end-to-end verdict is in ``outcomes``; else 0."""
    verdicts = (row.verdict.get("end_to_end") for row in document.rows)
    return int(any(verdict is not None and verdict.outcome in outcomes for verdict in verdicts))


def run_of(dice: np.random.Generator, frames: int, slower: float = 0.0) -> NDArray[np.float64]:
    """Simulate a run; return the milliseconds of its frames, [frames] float64."""
    slow = slowness(dice, frames)
    return np.array([20 * np.exp(next(slow)) * (1 + slower) for _ in range(frames)])


def simulate_diff(seed: int, slower: float, frames: int = 600) -> str:
    """Return the verdict of `diff` on two runs, each with its own drift."""
    dice = np.random.default_rng(seed)
    before, after = run_of(dice, frames), run_of(dice, frames, slower)
    return change("", before, after).verdict
