"""``profile --target``: the cheapest set of changes with which this source runs so fast here.

Cheapest: the least loss of agreement with fp32 (in steps of STEP, from that of the unchanged run),
then the least loss of video quality (the order of ``VIDEO``), then the fewest options. It tries:

1. The unchanged run; then what costs no agreement: other engines in its precision, requests,
   threads, batches, by ``tune``'s halving.
2. Each costly change alone, on top of the best of those: precisions, smaller inputs, skipping still
   frames, inferring or taking every second or third frame, encodings of the video.
3. Sets of these, the cheapest first, if the product of their gains comes within REACH of the
   target. (Gains need not multiply: two stages may limit a run in turn.) A set that touches
   inference alone, or the video alone, is skipped if what_if measured that the run misses the
   target even without it.
4. The first set that comes NEAR the target in a trial runs in rounds, in turns with the defaults.
   It reaches the target if it does in each round; else the search continues. When the time is over,
   the cheapest LATE of those that reached it in a trial still run in rounds, else the fastest.

Every run is one of a comparison: in a process of its own, with all that it writes.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from detector.core.config.schema import Config
from detector.core.errors import EngineError, UsageError
from detector.core.run.choose import ENCODING, in_words
from detector.core.session.measured import Interval
from detector.core.session.store import Session
from detector.core.types import Detections
from detector.lab.compare.rounds import run_in_turns
from detector.lab.profile import Say, profile
from detector.lab.profile.base import pin_choices
from detector.lab.session.passes import (
    PINNED,
    Execution,
    PassRecord,
    TargetFacts,
    TargetTrial,
    WhatIfFacts,
)
from detector.lab.session.passes import Ran as MeasuredOn
from detector.lab.session.read import SavedSession, read_session
from detector.lab.session.tuning import Settings
from detector.lab.tune import Ran, Search, Watch, engine_axis, request_axis

STEP = 0.005  # of agreement; less is not told from none on the few frames of a trial
FOR_FREE = 0.35  # of the time: the first step
UNKNOWN = 1.0  # the loss of what nothing tells of, so that it comes last
REACH = 0.6  # of the target
NEAR = 0.95  # of it: a trial is one round, and may be an unlucky one
DOUBT = 1.1  # what-if measured the run as it is, and another engine leaves other stages more room
BOUNDED = {"infer free": {"precision", "size", "still", "infer_every"}, "write free": {"video"}}
LATE = 3  # sets that still run in rounds when the time is over
LONGER = 2  # than a trial: 26 frames gave a run of 75 FPS 61, for what it takes to begin and end
ROUNDS = 6  # at the end: by chance all of one kind in 1 of 32
SMALLER = (0.84, 0.68, 0.5)  # of each side of the network's input
GRID = 32  # pixels; the input's sides are multiples of it
STILL = "0.5%"
STRIDES = (2, 3)
# What happens to the video, the least loss first.
AS_ASKED, LARGER, SUBTITLES, NONE = ("as asked", "a larger file", "boxes as subtitles", "no video")
VIDEO = (AS_ASKED, LARGER, SUBTITLES, NONE)

Measure = Callable[[Settings, int], Ran]
Race = Callable[[Sequence[Settings], int], list[list[float]]]
"""FPS of each of these settings in each round, by turns, on so many frames."""


def parse_target(text: str) -> float:
    """60fps or 60 -> 60.0. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*(?:fps)?", text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise UsageError(f"--target {text[:40]}: give a frame rate, such as 60fps")
    return float(found[1])


@dataclass(frozen=True, slots=True)
class Step:
    """One change, measured on top of what is free. ``gain``: FPS with it over FPS without.
    ``loss``: of agreement."""

    axis: str
    settings: Mapping[str, object]
    gain: float = 1.0
    loss: float = 0.0
    video: str = AS_ASKED


NOTHING = Step("", {})


def reach(
    source: str,
    asked: Config,
    ran: Config,
    target: float,
    *,
    seconds: float,
    watch: Watch,
    what_if: WhatIfFacts | None = None,
    model_input: tuple[int, int],
    clock: Callable[[], float] = time.monotonic,
) -> TargetFacts:
    """``asked``: of the user, whose choices are left alone. ``ran``: with all that ``auto`` chose
    in the run, to which changes are added. ``what_if``: what a stage that costs nothing would
    bring. ``model_input``: height, width of the run's network. Raises what the defaults raise."""

    def measure(settings: Settings, frames: int) -> Ran:
        return _measure(source, ran, settings, frames)

    def race(several: Sequence[Settings], frames: int) -> list[list[float]]:
        return _race(source, ran, several, frames)

    search = Search(measure, asked, 0.0, seconds, watch, clock)
    return Reach(search, asked, target, race, model_input, what_if).find()


def profile_for_target(
    source: str,
    config: Config,
    target: float,
    *,
    only: Sequence[str],
    seconds: float,
    what_if_s: float,
    sheet: tuple[float, float] | None,
    command: Sequence[str],
    say: Say,
) -> SavedSession:
    """A profile with these passes, and then the search for what reaches ``target`` FPS. Its facts
    stand beside the passes', and it is none: it runs what the run did not."""
    session = profile(
        source, config, only=only, seconds=what_if_s, sheet=sheet, command=command, say=say
    )
    document = session.document
    pinned = pin_choices(config, document)
    start = time.perf_counter()
    say(f"searching for {target:g} FPS ... ", False)
    facts = reach(
        source,
        config,
        pinned,
        target,
        seconds=seconds,
        watch=lambda doing, done, of: None,
        what_if=session.facts(WhatIfFacts),
        model_input=document.model_input,
    )
    took = round(time.perf_counter() - start, 3)
    say(f"{took:.1f} s", True)
    execution = Execution.of(document)
    record = PassRecord(
        available=True,
        facts=facts,
        undisturbed="its runs use no profiler",
        seconds=took,
        ran=MeasuredOn(execution=execution, on_purpose=PINNED, text="the run and sets of changes"),
    )
    with Session.reopened(session.folder) as opened:
        opened.write_pass("target", record.as_builtins())
    found = read_session(session.folder)
    passes = dict(found.passes)
    asked = passes.pop("target")
    return replace(found, passes={**passes, "target": asked})  # the answer is printed last


# ---- runs, as those of a comparison


def _of(config: Config, settings: Settings, frames: int) -> tuple[Config, int]:
    """With the settings, and the frames of the source that it takes for a frame of the run."""
    made = config.with_options(settings)
    every = max(1, made.input.stride // max(1, config.input.stride))
    wanted = max(1, -(-frames // every))
    output = replace(made.output, output=None, run_dir=None)
    return replace(made, input=replace(made.input, frames=wanted), output=output), every


def _measure(source: str, config: Config, settings: Settings, frames: int) -> Ran:
    """FPS of the source's frames; a frame that was not taken has no detections."""
    made, every = _of(config, settings, frames)
    [variant], [found] = run_in_turns(source, [made], 1, random.Random(0))
    rates = [turn.fps["end_to_end"] for turn in variant.rounds]
    if variant.error is not None or not rates or rates[0] is None or variant.facts is None:
        raise EngineError(variant.error or "the source gave no frame")
    facts = variant.facts
    spread: list[Detections] = []
    for one in found:
        spread += [one, *[Detections.empty()] * (every - 1)]
    return Ran(
        rates[0] * every,
        spread[:frames],
        0,
        made.runtime.engine,
        made.runtime.precision,
        str(facts.model),
        str(facts.model_sha256),
        facts.model_input or (0, 0),
    )


def _race(
    source: str, config: Config, several: Sequence[Settings], frames: int
) -> list[list[float]]:
    made = [_of(config, settings, frames) for settings in several]
    variants, _ = run_in_turns(source, [one for one, _ in made], ROUNDS, random.Random())
    return [
        [rate * every for turn in variant.rounds if (rate := turn.fps["end_to_end"])]
        for variant, (_, every) in zip(variants, made, strict=True)
    ]


# ---- the search


@dataclass(slots=True)
class Reach:
    search: Search
    config: Config
    target: float
    race: Race
    model_input: tuple[int, int]
    what_if: WhatIfFacts | None = None
    notes: list[str] = field(default_factory=list)
    tried: dict[str, TargetTrial] = field(default_factory=dict)  # by the words of the settings
    settings: dict[str, Settings] = field(default_factory=dict)
    agreement: float | None = None  # of the run as it is
    raced: list[tuple[Settings, Interval]] = field(default_factory=list)
    before: Interval | None = None

    def find(self) -> TargetFacts:
        plain = self.search.begin()
        self.agreement = self.search.agreement(plain)
        self._keep({}, plain.fps, self.agreement, AS_ASKED, None)
        if self.agreement is None:
            self.notes.append("fp32 detected nothing, so the accuracy lost by a change is unknown")
        if plain.fps >= NEAR * self.target and self._holds({}):
            return self._facts({}, True)
        best = self._free(plain)
        speed = self._trial(best, AS_ASKED)
        if best and speed >= NEAR * self.target and self._holds(best):
            return self._facts(best, True)
        steps = list(self._steps(best, plain, speed))
        for settings, video in self._sets(best, steps, speed):
            if not self.search.has_time():
                break
            if self._trial(settings, video) >= NEAR * self.target and self._holds(settings):
                return self._facts(settings, True)
        out_of_time = not self.search.has_time()
        late = self._promising()[:LATE] if out_of_time else []
        found = next((one for one in late if self._holds(one)), None)
        best = self._fastest() if found is None else found
        reached = any(one == best and fps.low >= self.target for one, fps in self.raced)
        if out_of_time:
            left = "cheaper sets untried" if reached else "sets untried"
            self.notes.append(f"{self.search.seconds:g} s left {left}; give more --target-seconds")
        return self._facts(best, reached)

    def _free(self, plain: Ran) -> Settings:
        """The fastest of what costs no agreement."""
        search, seconds = self.search, self.search.seconds
        search.seconds = FOR_FREE * seconds
        search.floor = 0.0 if self.agreement is None else self.agreement - STEP / 2
        best: Settings = {}
        same = [one for one in self._engines(plain) if one.get("precision") == plain.precision]
        best = search.halve([best, *same], best)
        best = search.halve([best, *request_axis(self.config, best, plain)], best)
        search.seconds = seconds
        for one in self.search.trials:
            self._keep(one.settings, one.fps, one.agreement, AS_ASKED, one.error)
        return best

    def _engines(self, plain: Ran) -> list[Settings]:
        return engine_axis(self.config, {}, plain)

    # ---- steps

    def _steps(self, best: Settings, plain: Ran, speed: float) -> Iterator[Step]:
        for axis, video, settings in self._candidates(plain):
            if not self.search.has_time():
                return
            now = self._trial({**best, **settings}, video)
            if now > 0:
                trial = self.tried[as_typed({**best, **settings})]
                yield Step(axis, settings, now / max(speed, 1e-9), self._loss(trial, axis), video)

    def _loss(self, trial: TargetTrial, axis: str = "") -> float:
        if axis == "video":  # it changes no detection
            return 0.0
        if self.agreement is None or trial.agreement is None:
            return UNKNOWN
        return max(0.0, self.agreement - trial.agreement)

    def _candidates(self, plain: Ran) -> Iterator[tuple[str, str, Settings]]:
        """(axis, what happens to the video, settings); what the user named is left alone."""
        yield from self._of_video()
        for settings in self._engines(plain):
            if settings.get("precision") not in ("fp32", plain.precision):
                yield "precision", AS_ASKED, settings
        if self.config.runtime.size is None:
            height, width = self.model_input
            sizes = [
                tuple(max(GRID, round(side * share / GRID) * GRID) for side in (width, height))
                for share in SMALLER
            ]
            for wide, high in dict.fromkeys(sizes):
                if (high, wide) != (height, width):
                    yield "size", AS_ASKED, {"size": f"{wide}x{high}"}
        if self.config.input.skip_still is None and self.config.input.stride == 1:
            yield "still", AS_ASKED, {"skip_still": STILL}
        yield from self._of_tracks()
        if self.config.input.stride == 1:
            for every in STRIDES:
                yield "stride", AS_ASKED, {"stride": every}

    def _of_tracks(self) -> Iterator[tuple[str, str, Settings]]:
        """Inference of some frames alone, whose boxes tracks move on: all frames keep their rows,
        which get ids. Where faces are to be hidden, a run refuses it."""
        if self.config.tracking.infer_every is None and not self.config.drawing.blur:
            for every in STRIDES:
                yield "infer_every", AS_ASKED, {"infer_every": str(every)}

    def _of_video(self) -> Iterator[tuple[str, str, Settings]]:
        output = self.config.output
        saved = output.save or ("video", "jsonl")
        if output.no_video or "video" not in saved:
            return
        if all(getattr(output, name) is None for name in ENCODING):
            yield "video", LARGER, {"quality": "fast"}
            yield "video", LARGER, {"preset": "ultrafast"}
        if output.output is None or output.output.endswith("/"):
            others = tuple(name for name in saved if name != "video")
            yield "video", SUBTITLES, {"save": ("overlay", *others)}
        yield "video", NONE, {"no_video": True}

    # ---- sets

    def _sets(
        self, best: Settings, steps: Sequence[Step], speed: float
    ) -> Iterator[tuple[Settings, str]]:
        """Settings with what happens to the video, the cheapest first; single steps were
        measured already, and come again where they reach the target."""
        axes: dict[str, list[Step]] = {}
        for step in steps:
            axes.setdefault(step.axis, [NOTHING]).append(step)
        chosen = []
        for parts in product(*axes.values()):
            taken = [one for one in parts if one is not NOTHING]
            gain = speed
            for one in taken:
                gain *= max(1.0, one.gain)
            if taken and gain >= REACH * self.target and not self._is_bounded(taken):
                chosen.append((_cost(taken), -gain, taken))
        for _, _, taken in sorted(chosen, key=lambda one: one[:2]):
            settings = dict(best)
            for one in taken:
                settings.update(one.settings)
            video = max((one.video for one in taken), key=VIDEO.index)
            yield settings, video

    def _is_bounded(self, taken: Sequence[Step]) -> bool:
        """Whether a stage that costs nothing would not do either."""
        axes = {one.axis for one in taken}
        rows = self.what_if.changes if self.what_if is not None else ()
        return any(
            axes <= BOUNDED.get(row.change, set()) and DOUBT * row.fps.high < self.target
            for row in rows
        )

    # ---- measuring

    def _trial(self, settings: Settings, video: str) -> float:
        """FPS of a trial; 0 where it fails. No settings are tried twice."""
        words = as_typed(settings)
        if words not in self.tried or self.tried[words].video != video:
            trial, _ = self.search.measure(settings)
            self._keep(settings, trial.fps, trial.agreement, video, trial.error)
        return self.tried[words].fps or 0.0

    def _keep(
        self,
        settings: Settings,
        fps: float | None,
        agreement: float | None,
        video: str,
        error: str | None,
    ) -> None:
        words = as_typed(settings)
        self.settings[words] = settings
        stride = int(settings.get("stride", 1))
        self.tried[words] = TargetTrial(
            settings=settings,
            text=words,
            fps=fps,
            agreement=agreement,
            frames_share=1 / stride,
            video=video,
            error=error,
        )

    def _holds(self, settings: Settings) -> bool:
        """Whether it reaches the target in each round, in turns with the defaults."""
        self.search.watch(f"{as_typed(settings)}, in rounds", 0.0, self.search.seconds)
        frames = self.search.trials[-1].frames if self.search.trials else 60
        several = [settings] if not settings else [{}, settings]
        *others, own = self.race(several, LONGER * max(frames, 16))
        if not own:
            return False
        after = Interval.over(own)
        self.before = Interval.over(others[0]) if others and others[0] else self.before or after
        self.raced.append((settings, after))
        return after.low >= self.target

    def _promising(self) -> list[Settings]:
        """What reached the target in a trial and did not run in rounds yet, the cheapest first."""
        over = [
            (round(self._loss(one) / STEP), VIDEO.index(one.video), -one.fps, one.text)
            for one in self.tried.values()
            if one.fps is not None and one.fps >= self.target
        ]
        raced = [settings for settings, _ in self.raced]
        found = [self.settings[text] for *_, text in sorted(over)]
        return [settings for settings in found if settings not in raced]

    def _fastest(self) -> Settings:
        """Of all that ran, in rounds too, if it was not yet."""
        best = max(self.tried.values(), key=lambda one: one.fps or 0.0)
        settings = self.settings[best.text]
        if all(one != settings for one, _ in self.raced):
            self._holds(settings)
        return max(self.raced, key=lambda one: one[1].median)[0] if self.raced else settings

    # ---- the result

    def _facts(self, settings: Settings, reached: bool) -> TargetFacts:
        trial = self.tried[as_typed(settings)]
        fps = next((fps for one, fps in reversed(self.raced) if one == settings), None)
        ceilings = (
            {}
            if self.what_if is None
            else {one.change: one.fps.median for one in self.what_if.changes if one.helps}
        )
        failed = [f"{one.text}: {one.error}" for one in self.tried.values() if one.error]
        return TargetFacts(
            target_fps=self.target,
            reached=reached,
            settings=trial.settings,
            text=trial.text,
            before=self.before,
            fps=fps,
            rounds=ROUNDS if fps is not None else 0,
            agreement=trial.agreement,
            frames_share=trial.frames_share,
            video=trial.video,
            tried=list(self.tried.values()),
            ceilings=ceilings,
            notes=[*self.search.notes, *self.notes, *failed],
        )


def _cost(taken: Sequence[Step]) -> tuple[int, int, int]:
    loss = sum(one.loss for one in taken)
    video = max((VIDEO.index(one.video) for one in taken), default=0)
    return round(loss / STEP), video, len(taken)


def as_typed(settings: Settings) -> str:
    """As options of the command line."""
    plain = {
        name: ",".join(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
    }
    flags = " ".join(
        f"--{name.replace('_', '-')}" for name, value in plain.items() if value is True
    )
    valued = {name: value for name, value in plain.items() if value is not True}
    return " ".join(one for one in (in_words(valued) if valued else "", flags) if one) or (
        in_words({})
    )
