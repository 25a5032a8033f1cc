"""Search for the settings that run a source fastest, or reach a target at least cost.

Settings are measured like the rows of ``compare``: each in its own process, with all its outputs,
in alternating rounds (``compare/rounds.py``).

1. Try changes by axis (a group of options): engine and precision; then requests, threads and batch;
   then, without a target, queue and encoding. After each round, drop settings that agree too little
   with fp32, and the slower half (successive halving; Jamieson and Talwalkar, arXiv:1502.07943).
2. If a target is not reached, try the best settings with each single change that has a cost. Then
   try sets of these changes, the cheapest first. The cost is the loss of agreement with fp32 (in
   steps of STEP); among equals, the change of the video, then the number of options. A set is tried
   only if both hold: a run without inference reaches the target, and (speed of the best settings) x
   (gains of the set) is at least REACH x target. REACH is below 1, since gains may overlap.
3. In a final, the best settings alternate with the defaults. In every round they must reach the
   target or, without a target, beat the fastest round of the defaults. If they miss a target, the
   next set gets a final. After the time limit, at most LATE sets get a final: the cheapest that
   reached the target in a trial or, if none did, the fastest set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf, prod
from statistics import median

from detector.core.analysis.agreement import agreement
from detector.core.config.schema import Config
from detector.core.engines import _ranking
from detector.core.errors import EngineError
from detector.core.run.judging import format_options
from detector.core.session.measured import Interval
from detector.core.types import Detections
from detector.lab.session.tuning import VIDEO, Settings, Trial, Tuning
from detector.lab.tune.candidates import Adjustment, DefaultRun, combine, list_changes, video_of

TRIAL_S = 0.8  # length of a round in trials
FEWEST_FRAMES, MOST_FRAMES = 16, 400
MOST_OPEN = 6  # processes at the same time, since each has the network in memory
LEAST_ROUNDS, ROUNDS = 3, 6  # in finals; by chance, all 6 have the same winner in 1 of 32 cases
FINAL_FACTOR = 2  # longer rounds in finals; start and end slow down short ones (61, not 75 FPS)
FINAL_SHARE = 0.3  # share of the time that is reserved for the final
FREE_SHARE = 0.35  # with a target, share of the time for changes without a loss
STEP = 0.005  # least difference in agreement; a round has too few frames to show less
UNKNOWN = 1.0  # assumed loss of changes whose loss is unknown, so that they come last
REACH = 0.6  # share of the target that the expected speed of a set has to reach
NEAR = 0.95  # share of the target that is enough in a trial, since one round may be slow by chance
DOUBT = 1.1  # factor for the FPS of runs without inference, since one round may be slow by chance
LATE = 3  # number of sets that get a final after the time limit
FREE = ("engine", "requests", "queue", "video")  # axes to search without a target
COSTLY = {"preset", "save", "no_video"}  # changes of the video that need a target
NULL: Settings = {"engine": "null", "precision": "fp32"}

Watch = Callable[[str, float, float], object]
"""A function called with the settings to try, the seconds passed and the seconds in all."""


@dataclass(slots=True)
class TuneRun:
    """``rates``: FPS of the source in each round. ``detections``: found in the first round."""

    rates: list[float] = field(default_factory=list)
    detections: list[Detections] = field(default_factory=list)
    video_bytes: int = 0
    error: str | None = None

    @property
    def fps(self) -> float:
        return median(self.rates) if self.rates else 0.0


Stays = Callable[[Sequence[TuneRun]], Collection[int]]
Turns = Callable[[Sequence[Settings], int, Callable[[int], bool], Stays], list[TuneRun]]
"""Arguments: settings, frames per round, ``opens`` and ``stays`` of ``rounds.run_in_turns``."""


@dataclass(frozen=True, slots=True)
class Final:
    settings: Settings
    defaults: TuneRun
    own: TuneRun


@dataclass(frozen=True, slots=True)
class TuneStep:
    """A change, added alone to the best settings. ``gain``: FPS with the change / FPS without."""

    change: Adjustment
    gain: float
    loss: float


@dataclass(slots=True)
class Search:
    """``config``: the user's options, which stay fixed. ``floor``: least agreement with fp32."""

    turns: Turns
    config: Config
    plain: DefaultRun
    floor: float
    seconds: float
    watch: Watch
    target: float | None = None
    clock: Callable[[], float] = time.monotonic
    start: float = 0.0
    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    finals: list[Final] = field(default_factory=list)
    ceilings: dict[str, float] = field(default_factory=dict)
    _share: float = 1 - FINAL_SHARE  # a step ends after this share of the time
    _frames: int = field(init=False)
    _changes: list[Adjustment] = field(init=False)
    _reference: list[Detections] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._frames = min(MOST_FRAMES, max(FEWEST_FRAMES, round(self.plain.fps * TRIAL_S)))
        free = self.target is None  # then only changes that keep all outputs are tried
        self._changes = [
            one
            for one in list_changes(self.config, self.plain)
            if not free or (one.axis in FREE and not one.settings.keys() & COSTLY)
        ]

    def find(self, source: str) -> Tuning:
        defaults = self._run_defaults()
        if self.target is None:
            best: Settings = {}
            for axis in FREE:
                best = self._halve(axis, best, self.floor)
            won = bool(best) and self._holds(best)
            return self._result(source, best if won else {}, None)
        settings, reached = self._reach(self.target, defaults)
        last = self.finals[-1] if self.finals else None
        if reached and last is not None and min(last.defaults.rates) >= self.target:
            self.finals.append(Final({}, last.defaults, last.defaults))
            settings = {}  # the defaults reach the target, too
        return self._result(source, settings, reached)

    # ---- rounds

    def _race(
        self, choices: Sequence[Settings], stays: Stays, *, frames: int = 0, hurries: bool = True
    ) -> list[TuneRun]:
        """Run settings in alternating rounds. ``hurries``: skip settings once time is short."""

        def opens(at: int) -> bool:
            self.watch(format_options(choices[at]), self.clock() - self.start, self.seconds)
            return not hurries or self.has_time()

        return self.turns(choices, frames or self._frames, opens, stays)

    def _try(self, choices: Sequence[Settings], stays: Stays = lambda runs: ()) -> list[TuneRun]:
        runs = self._race(choices, stays)
        for settings, run in zip(choices, runs, strict=True):
            if run.rates or run.error:
                self._keep(settings, run)
        return runs

    def _keep(self, settings: Settings, run: TuneRun) -> None:
        fine = run.error is None
        self.trials.append(
            Trial(
                settings=settings,
                frames=self._frames * len(run.rates),
                fps=run.fps if fine else None,
                rounds=tuple(run.rates),
                agreement=self._agreement(run) if fine else None,
                error=run.error,
            )
        )

    def _run_defaults(self) -> TuneRun:
        """Run the defaults, fp32 (the reference) and, for a target, settings without inference."""
        reference = {"engine": self.plain.engine, "precision": "fp32"}
        choices = [{}, *([reference] if self.plain.precision != "fp32" else [])]
        tops: dict[str, Settings] = {}
        if self.target is not None:
            tops = {"inference": NULL, "inference and video": {**NULL, "no_video": True}}
        runs = self._race([*choices, *tops.values()], lambda runs: (), hurries=False)
        defaults, reference_run = runs[0], runs[len(choices) - 1]
        if defaults.error is not None or not defaults.rates:
            raise EngineError(defaults.error or "the source gave no frame")
        if reference_run.error is not None:
            note = f"fp32 failed ({reference_run.error}), so agreement with the defaults is shown"
            self.notes.append(note)
        self._reference = (defaults if reference_run.error else reference_run).detections
        for name, run in zip(tops, runs[len(choices) :], strict=True):
            if run.rates:  # each run omits more work than the one before, so it cannot be slower
                self.ceilings[name] = max([run.fps, *self.ceilings.values()])
        self._keep({}, defaults)
        return defaults

    def _halve(self, axis: str, best: Settings, floor: float) -> Settings:
        """Return the fastest settings: ``best``, or ``best`` with a change in ``axis``."""
        combined = [combine(best, one, self.plain) for one in self._changes if one.axis == axis]
        changes = [one for one in combined if one != {**self.plain.named, **self.plain.loop}]
        for at in range(0, len(changes), MOST_OPEN - 1):
            if not self.has_time():
                break
            choices = [best, *changes[at : at + MOST_OPEN - 1]]
            ranked = partial(self._rank, choices, floor)
            if ranking := ranked(self._try(choices, partial(self._choose_half, ranked))):
                best = choices[ranking[0]]
        return best

    def _rank(
        self, choices: Sequence[Settings], floor: float, runs: Sequence[TuneRun]
    ) -> list[int]:
        """Rank settings with enough agreement: by number of rounds, then by speed."""
        allowed = [
            at
            for at, (settings, run) in enumerate(zip(choices, runs, strict=True))
            if run.rates and run.error is None and self._is_allowed(settings, run, floor)
        ]
        return sorted(allowed, key=lambda at: (-len(runs[at].rates), -runs[at].fps))

    def _choose_half(
        self, rank: Callable[[Sequence[TuneRun]], list[int]], runs: Sequence[TuneRun]
    ) -> Sequence[int]:
        most = max(len(one.rates) for one in runs)
        left = [at for at in rank(runs) if len(runs[at].rates) == most]
        half = left[: len(left) // 2]
        return half if len(half) > 1 and self.has_time() else ()

    def _is_allowed(self, settings: Settings, run: TuneRun, floor: float) -> bool:
        share = self._agreement(run)
        if share is None:  # the loss of another precision is unknown
            own = self.plain.precision
            return settings.get("precision", own) in ("fp32", own)
        return share >= floor

    def _agreement(self, run: TuneRun) -> float | None:
        both = min(len(self._reference), len(run.detections))
        reference = self._reference[:both]
        if not any(map(len, reference)) or self.config.network.random_weights is not None:
            return None
        return agreement(reference, run.detections[:both]).share

    def has_time(self) -> bool:
        return self.clock() - self.start < self.seconds * self._share

    def _holds(self, settings: Settings) -> bool:
        """Run a final against the defaults. Return whether the settings meet the goal in each
        round. The final ends early if they miss it after LEAST_ROUNDS or more."""
        choices = [{}, settings] if settings else [{}]
        left_s = max(0.0, self.seconds - (self.clock() - self.start))
        affordable = round(left_s * self.plain.fps / (2 * ROUNDS) * 0.8)  # 20% is for loading
        frames = max(self._frames, min(MOST_FRAMES, FINAL_FACTOR * self._frames, affordable))

        def meets(runs: Sequence[TuneRun]) -> bool:
            own = min(runs[-1].rates)
            return own > max(runs[0].rates) if self.target is None else own >= self.target

        def stays(runs: Sequence[TuneRun]) -> Collection[int]:
            done = min(len(one.rates) for one in runs)
            goes_on = done < ROUNDS and (done < LEAST_ROUNDS or meets(runs))
            return range(len(runs)) if goes_on and not any(one.error for one in runs) else ()

        runs = self._race(choices, stays, frames=frames, hurries=False)
        if any(one.error for one in runs):
            return False
        self.finals.append(Final(settings, runs[0], runs[-1]))
        return meets(runs)

    # ---- a target

    def _reach(self, target: float, defaults: TuneRun) -> tuple[Settings, bool]:
        near, own = NEAR * target, self._agreement(defaults)
        if own is None:
            self.notes.append("fp32 detected nothing, so the accuracy lost by a change is unknown")
        if defaults.fps >= near and self._holds({}):
            return {}, True
        most = DOUBT * max(self.ceilings.values(), default=inf)
        if most * _stride_of(*self._changes) < target:
            self.notes.append("no change meets the target; omit --target for the fastest settings")
            return {}, False
        if most < target:
            self.notes.append("only a --stride, which skips frames, can reach the target")
        best: Settings = {}
        self._share = FREE_SHARE
        for axis in ("engine", "requests"):
            best = self._halve(axis, best, (own or 0.0) - STEP / 2)
        self._share = 1 - FINAL_SHARE
        if best and self._fps_of(best) >= near and self._holds(best):
            return best, True
        steps = list(self._steps(best))
        for settings in self._sets(best, steps, target):
            if not self.has_time():
                break
            if self._find_trial(settings) is None:
                self._try([settings])
            fast = self._keeps_floor(settings) and self._fps_of(settings) >= near
            if fast and self._holds(settings):
                return settings, True
        return self._choose_last(target)

    def _choose_last(self, target: float) -> tuple[Settings, bool]:
        late = not self.has_time()
        tried = sorted(self.trials, key=lambda one: _cost(self._loss_of(one), [one.settings]))
        allowed = [one.settings for one in tried if self._keeps_floor(one.settings)]
        fast = [one for one in allowed if late and self._fps_of(one) >= target]
        fastest = max(allowed, key=self._fps_of)
        raced = [one.settings for one in self.finals]
        untested = [one for one in fast or [fastest] if one not in raced]
        settings = next((one for one in untested[:LATE] if self._holds(one)), None)
        if late:
            untried = "some settings" if settings is None else "some cheaper settings"
            self.notes.append(f"{self.seconds:g} s is too short to try {untried}; raise --seconds")
        if settings is None:
            best = max(self.finals, key=lambda one: one.own.fps, default=None)
            return fastest if best is None else best.settings, False
        return settings, True

    def _find_trial(self, settings: Settings) -> Trial | None:
        trials = [one for one in self.trials if one.settings == settings]
        return max(trials, key=lambda one: one.frames, default=None)

    def _fps_of(self, settings: Settings) -> float:
        trial = self._find_trial(settings)
        return 0.0 if trial is None else trial.fps or 0.0

    def _keeps_floor(self, settings: Settings) -> bool:
        trial = self._find_trial(settings)
        share = None if trial is None else trial.agreement
        return share is None or share >= self.floor

    def _loss_of(self, trial: Trial | None, axis: str = "") -> float:
        own = self.trials[0].agreement  # the first trial ran the defaults
        if axis == "video":  # this axis changes no detection
            return 0.0
        if own is None or trial is None or trial.agreement is None:
            return UNKNOWN
        return max(0.0, own - trial.agreement)

    def _steps(self, best: Settings) -> Iterator[TuneStep]:
        free = ("requests", "queue")
        changes = [one for one in self._changes if one.axis not in free and self._has_cost(one)]
        for at in range(0, len(changes), MOST_OPEN - 1):
            if not self.has_time():
                return
            chosen = changes[at : at + MOST_OPEN - 1]
            choices = [best, *(combine(best, one, self.plain) for one in chosen)]
            plain, *runs = self._try(choices)
            for change, settings, run in zip(chosen, choices[1:], runs, strict=True):
                if run.rates and run.error is None and plain.rates:
                    loss = self._loss_of(self._find_trial(settings), change.axis)
                    yield TuneStep(change, run.fps / plain.fps, loss)

    def _has_cost(self, change: Adjustment) -> bool:
        """Return False for a tried engine that failed or lost no agreement; else True."""
        trial = self._find_trial(change.settings)
        if change.axis != "engine" or trial is None:
            return True
        return trial.error is None and self._loss_of(trial) > STEP / 2

    def _sets(self, best: Settings, steps: Sequence[TuneStep], target: float) -> Iterator[Settings]:
        """Yield the cheapest sets first, and last the set with the fastest change of each axis."""
        axes: dict[str, list[TuneStep | None]] = {}
        for step in steps:
            axes.setdefault(step.change.axis, [None]).append(step)
        chosen, speed = [], self._fps_of(best)
        for parts in product(*axes.values()):
            taken = [one for one in parts if one is not None]
            gain = speed * prod(max(1.0, one.gain) for one in taken)
            if taken and gain >= REACH * target and not self._is_bounded(taken, target):
                cost = _cost(sum(one.loss for one in taken), [one.change.settings for one in taken])
                chosen.append((cost, -gain, taken))
        fastest = [
            max((one for one in parts if one is not None), key=lambda one: one.gain)
            for parts in axes.values()
        ]
        ordered = [taken for _, _, taken in sorted(chosen, key=lambda one: one[:2])]
        for taken in [*ordered, [one for one in fastest if one.gain > 1]]:
            settings = best
            for one in taken:
                settings = combine(settings, one.change, self.plain)
            yield settings

    def _is_bounded(self, taken: Sequence[TuneStep], target: float) -> bool:
        """Return whether even a run without inference (and video, if changed) misses the target."""
        video = any(one.change.axis == "video" for one in taken)
        top = self.ceilings.get("inference and video" if video else "inference", inf)
        return DOUBT * top * _stride_of(*(one.change for one in taken)) < target

    # ---- the result

    def _result(self, source: str, settings: Settings, reached: bool | None) -> Tuning:
        raced = [one for one in self.finals if one.settings == settings]
        final = raced[-1] if raced else self.finals[-1] if self.finals else None
        defaults = [self._fps_of({})] if final is None else final.defaults.rates
        result = Tuning(
            model=self.plain.model,
            engine=self.plain.engine,
            precision=self.plain.precision,
            source=source,
            seconds=self.clock() - self.start,
            floor=self.floor,
            target_fps=self.target,
            reached=reached,
            settings=settings,
            frames_share=1 / int(settings.get("stride", 1)),
            video=video_of(settings),
            ceilings=self.ceilings,
            before=Interval.over(defaults),
            trials=tuple(self.trials),
            notes=tuple(self._remarks()),
        )
        if final is None:
            return result
        own, before = final.own, final.defaults
        sizes = own.video_bytes, before.video_bytes
        return replace(
            result,
            rounds=len(own.rates),
            after=Interval.over(own.rates),
            ratio=Interval.over([a / b for a, b in zip(own.rates, before.rates, strict=True)]),
            agreement=self._agreement(own),
            video_bytes_ratio=sizes[0] / sizes[1] if all(sizes) else None,
        )

    def _remarks(self) -> Iterator[str]:
        yield from self.notes
        if hint := _ranking.suggest_library(self.config.runtime.device):
            yield hint
        tried = [{**self.plain.named, **self.plain.loop}, *(one.settings for one in self.trials)]
        left = [one.settings for one in self._changes]
        left = [one for one in left if not any(one.items() <= each.items() for each in tried)]
        if left and self.target is None:
            needed = self.seconds * (1 + len(left) / (len(self._changes) - len(left) + 1))
            yield (
                f"not tried in {self.seconds:g} s: {', '.join(map(format_options, left))}; give "
                f"--seconds {needed:.0f} or more, or choose options yourself, such as --engine"
            )
        failed = {format_options(one.settings): one.error for one in self.trials if one.error}
        yield from (f"{settings}: skipped: {error}" for settings, error in failed.items())
        if not any(map(len, self._reference)) and self.target is None:
            yield (
                "nothing was detected in these frames, so only fp32 was tried: use a source "
                "that shows objects to detect"
            )


def _stride_of(*changes: Adjustment) -> int:
    return max([1, *(int(one.settings.get("stride", 1)) for one in changes)])


def _cost(loss: float, choices: Sequence[Settings]) -> tuple[int, int, int]:
    video = max((VIDEO.index(video_of(one)) for one in choices), default=0)
    return round(loss / STEP), video, sum(map(len, choices))
