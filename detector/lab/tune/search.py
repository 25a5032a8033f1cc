"""The search of ``tune``: which settings run a source fastest, or reach a target at least cost.

Settings are measured as ``compare`` measures its rows: each in a process of its own, with all that
it writes, in rounds by turns (``compare/rounds.py``).

1. What loses nothing, axis by axis: engine and precision; then requests, threads and batch; without
   a target also queue and encoding. After each round the slower half takes no part in the next one
   (successive halving; Jamieson and Talwalkar, arXiv:1502.07943).
2. With a target that this does not reach: each change with a cost, alone on top of the best. Then
   sets of these, the cheapest first, if the product of their gains comes within REACH of the target
   (gains need not multiply: two stages may limit a run in turn). The cost is the loss of agreement
   with fp32 (in steps of STEP, from that of the defaults), then of video quality (the order of
   ``VIDEO``), then the number of options. A set is skipped where not even a run without inference
   reaches the target.
3. The best takes turns with the defaults. It has to meet the goal in every round: the target, or
   the fastest round of the defaults. With a target the next set follows if it does not; after the
   time limit, the cheapest LATE that reached it before, else the fastest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf, prod
from statistics import median

from detector.core import engines
from detector.core.analysis.agreement import agreement
from detector.core.config.schema import Config
from detector.core.errors import EngineError
from detector.core.run.choose import format_options
from detector.core.session.measured import Interval
from detector.core.types import Detections
from detector.lab.session.tuning import VIDEO, Settings, Trial, Tuning
from detector.lab.tune.candidates import Adjustment, Plain, combine, list_changes, video_of

TRIAL_S = 0.8  # of a round
FEWEST_FRAMES, MOST_FRAMES = 16, 400
MOST_OPEN = 6  # processes side by side: each has the network in memory
LEAST_ROUNDS, ROUNDS = 3, 6  # at the end: by chance all of one kind in 1 of 32
LONGER = 2  # at the end than before: 26 frames gave a run of 75 FPS 61, for its start and end
FOR_THE_END = 0.3  # of the time
FOR_FREE = 0.35  # of it, with a target: what loses nothing
STEP = 0.005  # of agreement; less is not told from none on the few frames of a round
UNKNOWN = 1.0  # the loss of what nothing tells of, so that it comes last
REACH = 0.6  # of the target
NEAR = 0.95  # of it: one round may be an unlucky one
DOUBT = 1.1  # a run without inference is measured in one round, too
LATE = 3  # sets that still run in rounds after the time limit
NULL: Settings = {"engine": "null", "precision": "fp32"}

Watch = Callable[[str, float, float], object]
"""(what is being tried, seconds that passed, seconds in all)"""


@dataclass(slots=True)
class TuneRun:
    """FPS of the source's frames by round, what the first one detected, the size of its video."""

    rates: list[float] = field(default_factory=list)
    detections: list[Detections] = field(default_factory=list)
    video_bytes: int = 0
    error: str | None = None

    @property
    def fps(self) -> float:
        return median(self.rates) if self.rates else 0.0


Stays = Callable[[Sequence[TuneRun]], Collection[int]]
Turns = Callable[[Sequence[Settings], int, Callable[[int], bool], Stays], list[TuneRun]]
"""Settings, frames of a round, and ``opens`` and ``stays`` of ``rounds.run_in_turns``."""


@dataclass(frozen=True, slots=True)
class Final:
    settings: Settings
    defaults: TuneRun
    own: TuneRun


@dataclass(frozen=True, slots=True)
class TuneStep:
    """A change, measured on top of the best. ``gain``: FPS with it over FPS without."""

    change: Adjustment
    gain: float
    loss: float


@dataclass(slots=True)
class Search:
    """``config``: as the user has it, whose choices stay. ``floor``: of agreement."""

    turns: Turns
    config: Config
    plain: Plain
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
    _share: float = 1 - FOR_THE_END  # of the time, until the search goes on to what follows
    _frames: int = field(init=False)
    _changes: list[Adjustment] = field(init=False)
    _reference: list[Detections] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._frames = min(MOST_FRAMES, max(FEWEST_FRAMES, round(self.plain.fps * TRIAL_S)))
        self._changes = list_changes(self.config, self.plain)

    def find(self, source: str) -> Tuning:
        defaults = self._run_defaults()
        if self.target is None:
            best: Settings = {}
            for axis in ("engine", "requests", "queue", "video"):
                best = self._halve(axis, best, self.floor)
            won = bool(best) and self._holds(best)
            return self._result(source, best if won else {}, None)
        settings, reached = self._reach(self.target, defaults)
        last = self.finals[-1] if self.finals else None
        if reached and last is not None and min(last.defaults.rates) >= self.target:
            self.finals.append(Final({}, last.defaults, last.defaults))  # these cost nothing
            settings = {}
        return self._result(source, settings, reached)

    # ---- rounds

    def _race(
        self, several: Sequence[Settings], stays: Stays, *, frames: int = 0, hurries: bool = True
    ) -> list[TuneRun]:
        """Run rounds of these in turns. ``hurries``: skips those that there is no time for."""

        def opens(at: int) -> bool:
            self.watch(format_options(several[at]), self.clock() - self.start, self.seconds)
            return not hurries or self.has_time()

        return self.turns(several, frames or self._frames, opens, stays)

    def _try(self, several: Sequence[Settings], stays: Stays = lambda rans: ()) -> list[TuneRun]:
        found = self._race(several, stays)
        for settings, ran in zip(several, found, strict=True):
            if ran.rates or ran.error:
                self._keep(settings, ran)
        return found

    def _keep(self, settings: Settings, ran: TuneRun) -> None:
        fine = ran.error is None
        self.trials.append(
            Trial(
                settings=settings,
                frames=self._frames * len(ran.rates),
                fps=ran.fps if fine else None,
                agreement=self._agreement(ran) if fine else None,
                error=ran.error,
            )
        )

    def _run_defaults(self) -> TuneRun:
        """The defaults, the same engine's fp32 to agree with, and with a target the ceiling."""
        reference = {"engine": self.plain.engine, "precision": "fp32"}
        several = [{}, *([reference] if self.plain.precision != "fp32" else [])]
        tops: dict[str, Settings] = {}
        if self.target is not None:
            tops = {"inference": NULL, "inference and video": {**NULL, "no_video": True}}
        found = self._race([*several, *tops.values()], lambda rans: (), hurries=False)
        defaults, exact = found[0], found[len(several) - 1]
        if defaults.error is not None or not defaults.rates:
            raise EngineError(defaults.error or "the source gave no frame")
        if exact.error is not None:
            said = f"fp32 failed to run ({exact.error}), so agreement is with the defaults"
            self.notes.append(said)
        self._reference = (defaults if exact.error else exact).detections
        self.ceilings = {
            name: ran.fps
            for name, ran in zip(tops, found[len(several) :], strict=True)
            if ran.rates
        }
        self._keep({}, defaults)
        return defaults

    def _halve(self, axis: str, best: Settings, floor: float) -> Settings:
        """The fastest of ``best`` and the changes of an axis on top of it that cost no video."""
        changes = [
            combine(best, one, self.plain)
            for one in self._changes
            if one.axis == axis and (axis != "video" or one.settings.keys() == {"quality"})
        ]
        for at in range(0, len(changes), MOST_OPEN - 1):
            if not self.has_time():
                break
            several = [best, *changes[at : at + MOST_OPEN - 1]]
            ranked = partial(self._rank, several, floor)
            if found := ranked(self._try(several, partial(self._choose_half, ranked))):
                best = several[found[0]]
        return best

    def _rank(
        self, several: Sequence[Settings], floor: float, rans: Sequence[TuneRun]
    ) -> list[int]:
        """Rank settings that keep to the floor: most rounds first, then the fastest."""
        allowed = [
            at
            for at, (settings, ran) in enumerate(zip(several, rans, strict=True))
            if ran.rates and ran.error is None and self._is_allowed(settings, ran, floor)
        ]
        return sorted(allowed, key=lambda at: (-len(rans[at].rates), -rans[at].fps))

    def _choose_half(
        self, rank: Callable[[Sequence[TuneRun]], list[int]], rans: Sequence[TuneRun]
    ) -> Sequence[int]:
        most = max(len(one.rates) for one in rans)
        left = [at for at in rank(rans) if len(rans[at].rates) == most]
        half = left[: len(left) // 2]
        return half if len(half) > 1 and self.has_time() else ()

    def _is_allowed(self, settings: Settings, ran: TuneRun, floor: float) -> bool:
        share = self._agreement(ran)
        if share is None:  # nothing tells what another precision loses
            own = self.plain.precision
            return settings.get("precision", own) in ("fp32", own)
        return share >= floor

    def _agreement(self, ran: TuneRun) -> float | None:
        """Agreement with fp32 on shared frames. None: fp32 finds nothing, or random weights."""
        both = min(len(self._reference), len(ran.detections))
        reference = self._reference[:both]
        if not any(map(len, reference)) or self.config.network.random_weights is not None:
            return None
        return agreement(reference, ran.detections[:both]).share

    def has_time(self) -> bool:
        return self.clock() - self.start < self.seconds * self._share

    def _holds(self, settings: Settings) -> bool:
        """Return whether these meet the goal in each round, in turns with the defaults. It ends
        with the first round that does not, from LEAST_ROUNDS on."""
        several = [{}, settings] if settings else [{}]
        left_s = max(0.0, self.seconds - (self.clock() - self.start))
        affordable = round(left_s * self.plain.fps / (2 * ROUNDS) * 0.8)  # the rest is loading
        frames = max(self._frames, min(MOST_FRAMES, LONGER * self._frames, affordable))

        def meets(rans: Sequence[TuneRun]) -> bool:
            own = min(rans[-1].rates)
            return own > max(rans[0].rates) if self.target is None else own >= self.target

        def stays(rans: Sequence[TuneRun]) -> Collection[int]:
            done = min(len(one.rates) for one in rans)
            goes_on = done < ROUNDS and (done < LEAST_ROUNDS or meets(rans))
            return range(len(rans)) if goes_on and not any(one.error for one in rans) else ()

        rans = self._race(several, stays, frames=frames, hurries=False)
        if any(one.error for one in rans):
            return False
        self.finals.append(Final(settings, rans[0], rans[-1]))
        return meets(rans)

    # ---- a target

    def _reach(self, target: float, defaults: TuneRun) -> tuple[Settings, bool]:
        near, own = NEAR * target, self._agreement(defaults)
        if own is None:
            self.notes.append("fp32 detected nothing, so the accuracy lost by a change is unknown")
        if defaults.fps >= near and self._holds({}):
            return {}, True
        most = max(self.ceilings.values(), default=inf) * _stride_of(*self._changes)
        if DOUBT * most < target:
            self.notes.append("no change reaches it; omit --target for the fastest settings")
            return {}, False
        best: Settings = {}
        self._share = FOR_FREE
        for axis in ("engine", "requests"):
            best = self._halve(axis, best, (own or 0.0) - STEP / 2)
        self._share = 1 - FOR_THE_END
        if best and self._fps_of(best) >= near and self._holds(best):
            return best, True
        steps = list(self._steps(best))
        for settings in self._sets(best, steps, target):
            if not self.has_time():
                break
            if self._tried(settings) is None:
                self._try([settings])
            fast = self._keeps_floor(settings) and self._fps_of(settings) >= near
            if fast and self._holds(settings):
                return settings, True
        return self._choose_last(target)

    def _choose_last(self, target: float) -> tuple[Settings, bool]:
        late = not self.has_time()
        tried = [one.settings for one in sorted(self.trials, key=self._cost_of)]
        allowed = [one for one in tried if self._keeps_floor(one)]
        fast = [one for one in allowed if late and self._fps_of(one) >= target]
        fastest = max(allowed, key=self._fps_of)
        raced = [one.settings for one in self.finals]
        left = [one for one in fast or [fastest] if one not in raced]
        found = next((one for one in left[:LATE] if self._holds(one)), None)
        if late:
            untried = "sets untried" if found is None else "cheaper sets untried"
            self.notes.append(f"{self.seconds:g} s left {untried}; give more --seconds")
        if found is None:
            best = max(self.finals, key=lambda one: one.own.fps, default=None)
            return fastest if best is None else best.settings, False
        return found, True

    def _tried(self, settings: Settings) -> Trial | None:
        tried = [one for one in self.trials if one.settings == settings]
        return max(tried, key=lambda one: one.frames, default=None)

    def _fps_of(self, settings: Settings) -> float:
        tried = self._tried(settings)
        return 0.0 if tried is None else tried.fps or 0.0

    def _keeps_floor(self, settings: Settings) -> bool:
        tried = self._tried(settings)
        share = None if tried is None else tried.agreement
        return share is None or share >= self.floor

    def _loss_of(self, tried: Trial | None, axis: str = "") -> float:
        own = self.trials[0].agreement  # of the defaults
        if axis == "video":  # it changes no detection
            return 0.0
        if own is None or tried is None or tried.agreement is None:
            return UNKNOWN
        return max(0.0, own - tried.agreement)

    def _cost_of(self, tried: Trial) -> tuple[int, int, int]:
        return _cost(self._loss_of(tried), [tried.settings])

    def _steps(self, best: Settings) -> Iterator[TuneStep]:
        free = ("requests", "queue")
        changes = [one for one in self._changes if one.axis not in free and self._costs(one)]
        for at in range(0, len(changes), MOST_OPEN - 1):
            if not self.has_time():
                return
            chosen = changes[at : at + MOST_OPEN - 1]
            several = [best, *(combine(best, one, self.plain) for one in chosen)]
            plain, *rans = self._try(several)
            for change, settings, ran in zip(chosen, several[1:], rans, strict=True):
                if ran.rates and ran.error is None and plain.rates:
                    loss = self._loss_of(self._tried(settings), change.axis)
                    yield TuneStep(change, ran.fps / plain.fps, loss)

    def _costs(self, change: Adjustment) -> bool:
        """Of an engine that ran before: whether it lost some agreement."""
        tried = self._tried(change.settings)
        if change.axis != "engine" or tried is None:
            return True
        return tried.error is None and self._loss_of(tried) > STEP / 2

    def _sets(self, best: Settings, steps: Sequence[TuneStep], target: float) -> Iterator[Settings]:
        """Yield the cheapest first. Last the fastest change of each axis, whatever they promise."""
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
        """Return whether a run without inference, or without video too, would not do either."""
        video = any(one.change.axis == "video" for one in taken)
        top = self.ceilings.get("inference and video" if video else "inference", inf)
        return DOUBT * top * _stride_of(*(one.change for one in taken)) < target

    # ---- the result

    def _result(self, source: str, settings: Settings, reached: bool | None) -> Tuning:
        raced = [one for one in self.finals if one.settings == settings]
        final = raced[-1] if raced else self.finals[-1] if self.finals else None
        defaults = [self._fps_of({})] if final is None else final.defaults.rates
        found = Tuning(
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
            return found
        own, before = final.own, final.defaults
        sizes = own.video_bytes, before.video_bytes
        return replace(
            found,
            rounds=len(own.rates),
            after=Interval.over(own.rates),
            ratio=Interval.over([a / b for a, b in zip(own.rates, before.rates, strict=True)]),
            agreement=self._agreement(own),
            video_bytes_ratio=sizes[0] / sizes[1] if all(sizes) else None,
        )

    def _remarks(self) -> Iterator[str]:
        yield from self.notes
        if hint := engines.suggest_library(self.config.runtime.device):
            yield hint
        tried = any(one.settings for one in self.trials)
        if not tried and self.target is None:
            yield f"{self.seconds:g} s left no time to try anything; give more --seconds"
        failed = {format_options(one.settings): one.error for one in self.trials if one.error}
        yield from (f"{settings}: skipped: {error}" for settings, error in failed.items())
        if not any(map(len, self._reference)) and self.target is None:
            yield (
                "nothing was detected in these frames, so only fp32 was tried: use a source "
                "that shows objects to detect"
            )


def _stride_of(*changes: Adjustment) -> int:
    return max([1, *(int(one.settings.get("stride", 1)) for one in changes)])


def _cost(loss: float, several: Sequence[Settings]) -> tuple[int, int, int]:
    video = max((VIDEO.index(video_of(one)) for one in several), default=0)
    return round(loss / STEP), video, sum(map(len, several))
