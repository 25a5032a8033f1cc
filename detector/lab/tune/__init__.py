"""``tune``: find the fastest settings for a source, or the least costly that reach a target FPS."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from detector.core.config.schema import Config
from detector.core.errors import SourceError, UsageError
from detector.core.run.canvas import refuse_rect
from detector.core.run.detect import Hooks
from detector.core.run.inputs import refuse_cameras
from detector.core.run.loading import LoadedModel
from detector.core.types import Detections
from detector.lab.analysis.compare import Variant
from detector.lab.compare.rounds import run_in_turns
from detector.lab.profile.base import pin_choices, run_again
from detector.lab.session.tuning import Settings, Tuning
from detector.lab.tune.candidates import DefaultRun
from detector.lab.tune.records import keep
from detector.lab.tune.search import Search, Stays, TuneRun, Turns, Watch

FIRST_FRAMES = 24  # frames of the first run; its speed decides the length of a round
SECONDS, SECONDS_OF_TARGET = 60.0, 180.0
FLOOR = 0.97


def parse_target(text: str) -> float:
    """Return 60.0 for "60fps" or "60". Raises UsageError."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*(?:fps)?", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--target {text[:40]}: give a frame rate, such as 60fps")
    return float(match[1])


def tune(
    source: str,
    config: Config,
    *,
    floor: float,
    seconds: float,
    watch: Watch,
    target: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    use: bool = False,
) -> Tuning:
    from detector.core import sources
    from detector.core.run.reading import SourceReading

    refuse_cameras([source])
    refuse_rect(config)
    sources.refuse_pipe(source, "each round reads the source again")
    start = clock()
    watch("the defaults", 0.0, seconds)
    plain, pinned = run_defaults(source, config)
    turns = take_turns(source, pinned)
    result = Search(turns, config, plain, floor, seconds, watch, target, clock, start).find(source)
    kind = SourceReading.of(config).kind_of(source)
    if not use or not result.settings or kind is None:
        return replace(result, input_kind=kind)
    path = keep(result, config, plain, kind)
    return replace(result, input_kind=kind, kept=str(path))


def run_defaults(source: str, config: Config) -> tuple[DefaultRun, Config]:
    """Run the defaults on the first frames. Return the run's facts, and the configuration with the
    choices of ``auto`` fixed."""
    loaded: list[LoadedModel] = []
    # Ignore settings that an earlier search kept, since we compare with the defaults.
    hooks = Hooks(loaded=loaded.append, timed=True, tuned=False)
    frames = replace(config.input, frames=FIRST_FRAMES)
    document = run_again(source, replace(config, input=frames), hooks).document
    [model] = loaded
    if document.fps.end_to_end is None:
        raise SourceError(f"{source}: no frame could be read")
    plain = DefaultRun(
        document.engine,
        document.precision,
        document.fps.end_to_end,
        document.model_input,
        str(document.model),
        str(model.network.sha256),
        {"concurrency": document.concurrency, "threads": document.engine_threads},
    )
    pinned = pin_choices(model.config or config, document, model.engine.device)
    requested = config.runtime
    runtime = replace(pinned.runtime, threads=requested.threads, concurrency=requested.concurrency)
    return plain, replace(pinned, runtime=runtime, output=replace(config.output, run_dir=None))


def take_turns(source: str, config: Config) -> Turns:
    """Return a function that runs rounds of a source with settings added to ``config``. In its
    results, frames that a stride skipped have no detections."""

    def turns(
        choices: Sequence[Settings], frames: int, opens: Callable[[int], bool], stays: Stays
    ) -> list[TuneRun]:
        configs = [config.with_options(settings) for settings in choices]
        strides = [max(1, one.input.stride // max(1, config.input.stride)) for one in configs]
        limited = [
            replace(one, input=replace(one.input, frames=-(-frames // each)))
            for one, each in zip(configs, strides, strict=True)
        ]

        def gather(variants: Sequence[Variant], found: Sequence[list[Detections]]) -> list[TuneRun]:
            return [_to_run(*one, frames) for one in zip(variants, found, strides, strict=True)]

        return gather(*run_in_turns(source, limited, opens, lambda *state: stays(gather(*state))))

    return turns


def _to_run(variant: Variant, detected: Sequence[Detections], stride: int, frames: int) -> TuneRun:
    """Convert a variant's rounds. ``stride``: frames of the source per frame of the run."""
    spread: list[Detections] = []
    for one in detected:
        spread += [one, *[Detections.empty()] * (stride - 1)]
    rates = [rate * stride for turn in variant.rounds if (rate := turn.fps["end_to_end"])]
    size = max((turn.video_bytes for turn in variant.rounds), default=0)
    error = "a round wrote no frame" if len(rates) < len(variant.rounds) else None
    return TuneRun(rates, spread[:frames], size, variant.error or error)
