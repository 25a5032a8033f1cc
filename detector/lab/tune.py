"""``tune``: which settings run this source fastest here, within a floor of agreement with fp32.

A trial is the real job on the source's first frames, written into a temporary folder. The search
goes axis by axis: engine and precision; then requests, threads and batch; then queue and encoding.
On each axis all candidates run on few frames, the faster half on twice as many, until one is left
(successive halving; Jamieson and Talwalkar, arXiv:1502.07943). Then the best and the defaults run
in turns. A winner has to win every round by more than the rounds differ.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core import engines
from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError, EngineError, SourceError, UsageError
from detector.core.errors.machine import usable_cores
from detector.core.run import measurements
from detector.core.run.canvas import refuse_rect
from detector.core.run.choose import ENCODING, in_words
from detector.core.run.detect import Hooks, detect
from detector.core.run.inputs import refuse_cameras
from detector.core.run.signals import raise_if_stopped
from detector.core.session.measured import Interval
from detector.core.types import Detections, Frame
from detector.lab.session.tuning import Settings, Trial, Tuning

if TYPE_CHECKING:
    from detector.core.run.loading import LoadedModel

FIRST_FRAMES = 24  # of the first run, which tells how long a trial takes
TRIAL_S = 0.8  # of a first trial; each halving doubles it
FEWEST_FRAMES, MOST_FRAMES = 16, 400
ROUNDS = 3  # of the comparison at the end
FOR_THE_END = 0.3  # of the time
PRECISIONS = ("fp32", "bf16", "fp16", "int8")

Watch = Callable[[str, float, float], object]
"""(what is being tried, seconds that passed, seconds in all)"""


@dataclass(frozen=True, slots=True)
class Ran:
    """A short run: FPS end to end, its detections, the size of its video."""

    fps: float
    detections: list[Detections]
    video_bytes: int
    engine: str
    precision: str
    model: str
    model_sha256: str = ""
    model_input: tuple[int, int] = (0, 0)


Run = Callable[[Settings, int], Ran]
"""Runs the job with settings on so many frames. Raises DetectVideoError."""


def tune(
    source: str,
    config: Config,
    *,
    floor: float,
    seconds: float,
    watch: Watch,
    clock: Callable[[], float] = time.monotonic,
    use: bool = False,
) -> Tuning:
    """``use``: keeps what beats the defaults for later runs. Raises DetectVideoError where the job
    does not run as it is configured.
    """
    from detector.core import sources
    from detector.core.run.reading import Reading

    refuse_cameras([source])
    refuse_rect(config)
    sources.refuse_pipe(source, "each trial reads the source again")

    def run(settings: Settings, frames: int) -> Ran:
        return run_once(source, config.with_options(settings), frames)

    search = Search(run, config, floor, seconds, watch, clock)
    found = search.find(source)
    kind = Reading.of(config).kind_of(source)
    if not use or not found.settings or kind is None:
        return replace(found, input_kind=kind)
    first = search.first
    kept = keep(found, config, first.model_sha256, first.model_input, kind)
    return replace(found, input_kind=kind, kept=str(kept))


def run_once(source: str, config: Config, frames: int) -> Ran:
    """The job on the first frames, with its outputs in a folder that is removed again."""
    found: list[Detections] = []

    def collect(frame: Frame, detections: Detections) -> None:
        found.append(detections)

    def note(model: LoadedModel) -> None:
        loaded.append(model)

    loaded: list[LoadedModel] = []
    with tempfile.TemporaryDirectory(prefix="detect-video-tune-") as folder:
        output = replace(config.output, output=f"{folder}/", run_dir=f"{folder}/run")
        # What was kept before must not be the default that is to be beaten.
        hooks = Hooks(loaded=note, detected=collect, timed=True, tuned=False)
        limited = replace(config, output=output, input=replace(config.input, frames=frames))
        result = detect([source], limited, hooks=hooks)
        raise_if_stopped(result.exit_code)
        if result.errors:
            raise result.errors[0]
        summary = result.summary
        if summary.fps.end_to_end is None:
            raise SourceError(f"{source}: no frame could be read")
        network = loaded[0].network
        video = summary.each[0].outputs.get("video")
        return Ran(
            summary.fps.end_to_end,
            found,
            Path(video).stat().st_size if video else 0,
            summary.engine,
            summary.precision,
            str(summary.model),
            network.sha256,
            (network.input.height, network.input.width),
        )


@dataclass(slots=True)
class Search:
    """One search. ``find`` runs it."""

    run: Run
    config: Config
    floor: float
    seconds: float
    watch: Watch
    clock: Callable[[], float] = time.monotonic
    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first: Ran = field(init=False)  # of the defaults
    _reference: list[Detections] = field(default_factory=list)
    _start: float = 0.0
    _frames: int = FIRST_FRAMES

    def find(self, source: str) -> Tuning:
        """Raises what the job raises with the defaults."""
        plain = self.begin()
        best: Settings = {}
        for axis in (engine_axis, request_axis, writing_axis):
            best = self.halve([best, *axis(self.config, best, plain)], best)
        return self._compare(source, best, plain)

    # ---- trials

    def begin(self) -> Ran:
        """Runs the defaults, which tell how long a trial is and what others must agree with."""
        self._start = self.clock()
        self.watch("the defaults", 0.0, self.seconds)
        self.first = self.run({}, FIRST_FRAMES)
        self._frames = min(MOST_FRAMES, max(FEWEST_FRAMES, round(self.first.fps * TRIAL_S)))
        plain = self.run({}, self._frames)
        self.trials.append(Trial(settings={}, frames=len(plain.detections), fps=plain.fps))
        self._reference = self._fp32(plain)
        return plain

    def _fp32(self, plain: Ran) -> list[Detections]:
        """What agreement is measured with: the same engine's fp32, where the defaults are less."""
        if plain.precision == "fp32":
            return plain.detections
        try:
            return self.run({"engine": plain.engine, "precision": "fp32"}, self._frames).detections
        except DetectVideoError as error:
            self.notes.append(f"fp32 failed to run ({error}), so agreement is with the defaults")
            return plain.detections

    def halve(self, candidates: Sequence[Settings], best: Settings) -> Settings:
        """The fastest of these. The first one is what the others must beat."""
        frames, left = self._frames, list(candidates)
        while len(left) > 1 and self.has_time():
            scored = []
            for settings in left:
                if not self.has_time():
                    break
                fps = self._try(settings, frames)
                if fps is not None:
                    scored.append((fps, settings))
            if not scored:
                return best
            scored.sort(key=lambda pair: -pair[0])
            left = [settings for _, settings in scored[: max(1, len(scored) // 2)]]
            best, frames = left[0], min(MOST_FRAMES, 2 * frames)
        return best

    def measure(self, settings: Settings, frames: int | None = None) -> tuple[Trial, Ran | None]:
        """A trial, on as many frames as the first ones had where nothing else is said; without
        its run where it failed."""
        self.watch(in_words(settings), self.clock() - self._start, self.seconds)
        try:
            ran = self.run(settings, frames or self._frames)
        except DetectVideoError as error:
            self.trials.append(Trial(settings=settings, frames=0, error=str(error)))
            return self.trials[-1], None
        share, done = self.agreement(ran), len(ran.detections)
        self.trials.append(Trial(settings=settings, frames=done, fps=ran.fps, agreement=share))
        return self.trials[-1], ran

    def _try(self, settings: Settings, frames: int) -> float | None:
        """FPS of a trial; None where it fails or loses more than the floor allows."""
        trial, ran = self.measure(settings, frames)
        if ran is None:
            return None
        share = trial.agreement
        if share is None:  # nothing tells what another precision loses
            known = not settings or ran.precision in ("fp32", self.config.runtime.precision)
            return ran.fps if known else None
        return ran.fps if share >= self.floor else None

    def agreement(self, ran: Ran) -> float | None:
        """With fp32, on the frames that both saw. None where fp32 finds nothing, or the weights are
        random.
        """
        from detector.core.analysis.agreement import agreement

        both = min(len(self._reference), len(ran.detections))
        reference = self._reference[:both]
        if not any(map(len, reference)) or self.config.network.random_weights is not None:
            return None
        return agreement(reference, ran.detections[:both]).share

    def has_time(self) -> bool:
        return self.clock() - self._start < self.seconds * (1 - FOR_THE_END)

    # ---- the end

    def _compare(self, source: str, best: Settings, plain: Ran) -> Tuning:
        """The best and the defaults in turns."""
        pairs: list[tuple[Ran, Ran]] = []
        left_s = max(0.0, self.seconds - (self.clock() - self._start))
        affordable = round(left_s * plain.fps / (2 * ROUNDS) * 0.8)  # the rest is loading
        frames = max(FEWEST_FRAMES, min(MOST_FRAMES, 2 * self._frames, affordable))
        while best and len(pairs) < ROUNDS:
            self.watch(
                f"{in_words(best)}, and the defaults", self.clock() - self._start, self.seconds
            )
            pairs.append((self.run({}, frames), self.run(best, frames)))
        found = Tuning(
            model=plain.model,
            engine=plain.engine,
            precision=plain.precision,
            source=source,
            seconds=self.clock() - self._start,
            floor=self.floor,
            settings={},
            before=Interval.over([old.fps for old, _ in pairs] or [self._longest_plain()]),
            trials=tuple(self.trials),
            notes=tuple(self._remarks()),
        )
        if not pairs:
            return found
        after, last = Interval.over([new.fps for _, new in pairs]), pairs[-1]
        won = after.low > found.before.high
        return replace(
            found,
            settings=best if won else {},
            rounds=len(pairs),
            after=after,
            ratio=Interval.over([new.fps / old.fps for old, new in pairs]),
            agreement=self.agreement(last[1]),
            video_bytes_ratio=(
                last[1].video_bytes / last[0].video_bytes if last[0].video_bytes else None
            ),
        )

    def _longest_plain(self) -> float:
        """FPS of the defaults in their longest trial, the last one of several."""
        plain = [one for one in self.trials if not one.settings and one.fps is not None]
        return max(reversed(plain), key=lambda one: one.frames).fps or 0.0

    def _remarks(self) -> Iterator[str]:
        yield from self.notes
        if hint := engines.suggest_library(self.config.runtime.device):
            yield hint
        if not any(one.settings for one in self.trials):
            yield f"{self.seconds:g} s left no time to try anything; give more --seconds"
        failed = {in_words(one.settings): one.error for one in self.trials if one.error}
        yield from (f"{settings}: skipped: {error}" for settings, error in failed.items())
        if not any(map(len, self._reference)):
            yield (
                "nothing was detected in these frames, so only fp32 was tried: use a source "
                "that shows objects to detect"
            )


# The axes: candidates beside the best so far. What the user names is left alone.


def engine_axis(config: Config, best: Settings, plain: Ran) -> list[Settings]:
    """Every engine and precision that can run here."""
    runtime = config.runtime
    usable = engines.usable()
    names = [name for name in engines.rank_engines() if usable.get(name, "") is None]
    if runtime.engine != "auto":
        names = [runtime.engine]
    precisions = PRECISIONS if runtime.precision == "auto" else (runtime.precision,)
    found = []
    for name in names:
        for precision in precisions:
            if (name, precision) == (plain.engine, plain.precision):
                continue  # the defaults
            try:
                engines.graph_wanted(name, precision, runtime.device)
            except (EngineError, UsageError):
                continue
            found.append({"engine": name, "precision": precision})
    return found


def request_axis(config: Config, best: Settings, plain: Ran) -> list[Settings]:
    """Requests at once, threads of each, and frames in one inference."""
    cores, runtime = usable_cores(), config.runtime
    if runtime.threads or runtime.concurrency:
        shapes = []
    else:
        wanted = [(1, cores), (cores, 1), (cores + 1, 1), (max(1, cores // 2), 2)]
        shapes = [{"concurrency": n, "threads": t} for n, t in dict.fromkeys(wanted)]
    batches: list[dict[str, Any]] = []
    if runtime.batch == 1:
        batches = [{"batch": 2}, {"batch": 4}]
    # Named, because what was timed at the first run counts for the defaults of these only.
    named = best or {"engine": plain.engine, "precision": plain.precision}
    return [{**named, **more} for more in (*shapes, *batches)]


def writing_axis(config: Config, best: Settings, plain: Ran) -> list[Settings]:
    """A longer queue, and where a video is written, its fastest encoding."""
    found: list[Settings] = []
    if config.loop.queue_batches == type(config.loop)().queue_batches:
        found.append({**best, "queue_batches": 4})
    free = all(getattr(config.output, name) is None for name in ENCODING)
    if plain.video_bytes and free:
        found += [{**one, "quality": "fast"} for one in (best, *found)]
    return found


# What is kept: a file for --config.


def as_config(tuning: Tuning, calibrate: str | None) -> str:
    """The text of a YAML file with the settings, by group. ``calibrate``: of the command."""
    import yaml

    grouped: dict[str, Settings] = {}
    for group in fields(Config):
        names = {one.name for one in fields(group.default)}  # type: ignore[arg-type]
        if mine := {name: value for name, value in tuning.settings.items() if name in names}:
            grouped[group.name] = mine
    if calibrate is not None:
        grouped["calibration"] = {"calibrate": calibrate}
    head = (
        f"# detect-video tune {tuning.source}: {tuning.model}, "
        f"{tuning.ratio.median if tuning.ratio else 1:.2f} times the defaults on this "
        "machine.\n# Use it: detect-video IN --config FILE. Undo it: omit --config.\n"
    )
    return head + str(yaml.safe_dump(grouped, sort_keys=False))


def keep(
    found: Tuning, config: Config, model_sha256: str, model_input: Sequence[int], kind: str
) -> Path:
    """Adds a search to the records, and returns their path. It has options that beat the defaults.
    Raises OutputError."""
    assert found.after is not None
    rows = [
        measurements.row(
            settings.get("engine", found.engine),
            settings.get("precision", found.precision),
            settings,
            found.agreement,
            end_to_end=speed,
        )
        for settings, speed in ((found.settings, found.after), ({}, found.before))
    ]
    record = measurements.make(
        config,
        "tune",
        rows,
        model=found.model,
        model_sha256=model_sha256,
        model_input=(model_input[0], model_input[1]),
        input_kind=kind,
        rounds=found.rounds,
        source=found.source,
    )
    return measurements.keep(record, config)
