"""Every change of a run that ``tune`` tries, in one list. The user's own options stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from detector.core import engines
from detector.core.config.schema import Config
from detector.core.errors import EngineError, UsageError
from detector.core.errors.machine import usable_cores
from detector.core.run.choose import ENCODING
from detector.lab.session.tuning import AS_ASKED, LARGER, NO_VIDEO, SUBTITLES, Settings

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
SMALLER = (0.84, 0.68, 0.5)  # of each side of the network's input
GRID = 32  # pixels; the input's sides are multiples of it
STILL = "0.5%"
STRIDES = (2, 3)
# Options for which ``auto`` may take another engine than with the defaults.
OF_THE_INPUT = ("concurrency", "threads", "batch", "size")


@dataclass(frozen=True, slots=True)
class Plain:
    engine: str
    precision: str
    fps: float
    model_input: tuple[int, int]
    model: str = ""
    model_sha256: str = ""

    @property
    def named(self) -> Settings:
        return {"engine": self.engine, "precision": self.precision}


@dataclass(frozen=True, slots=True)
class Adjustment:
    """One change of the run; of an ``axis`` a run has one at most."""

    axis: str
    settings: Settings


def list_changes(config: Config, plain: Plain) -> list[Adjustment]:
    return [
        *_of_engine(config, plain),
        *_of_requests(config),
        *_of_loop(config),
        *_of_video(config),
        *_of_input(config, plain),
        *_of_frames(config),
    ]


def combine(best: Settings, change: Adjustment, plain: Plain) -> Settings:
    """``best`` with a change on top, and the engine by name where ``auto`` could take another."""
    made = {**best, **change.settings}
    if "engine" not in made and any(name in made for name in OF_THE_INPUT):
        made = {**plain.named, **made}
    return made


def video_of(settings: Settings) -> str:
    if "no_video" in settings:
        return NO_VIDEO
    if "save" in settings:
        return SUBTITLES
    return LARGER if settings.keys() & {"quality", "preset"} else AS_ASKED


def _of_engine(config: Config, plain: Plain) -> Iterator[Adjustment]:
    runtime, usable = config.runtime, engines.usable()
    names = [name for name in engines.rank_engines() if usable.get(name, "") is None]
    if runtime.engine != "auto":
        names = [runtime.engine]
    for name in names:
        for precision in PRECISIONS if runtime.precision == "auto" else (runtime.precision,):
            if (name, precision) == (plain.engine, plain.precision):
                continue  # the defaults
            try:
                engines.graph_wanted(name, precision, runtime.device)
            except (EngineError, UsageError):
                continue
            yield Adjustment("engine", {"engine": name, "precision": precision})


def _of_requests(config: Config) -> Iterator[Adjustment]:
    cores, runtime = usable_cores(), config.runtime
    if not (runtime.threads or runtime.concurrency):
        wanted = [(1, cores), (cores, 1), (cores + 1, 1), (max(1, cores // 2), 2)]
        for requests, threads in dict.fromkeys(wanted):
            yield Adjustment("requests", {"concurrency": requests, "threads": threads})
    if runtime.batch == 1:
        yield from (Adjustment("requests", {"batch": size}) for size in (2, 4))


def _of_loop(config: Config) -> Iterator[Adjustment]:
    """A longer queue, which a configuration file sets: no option of the command does."""
    if config.loop.queue_batches == type(config.loop)().queue_batches:
        yield Adjustment("queue", {"queue_batches": 4})


def _of_video(config: Config) -> Iterator[Adjustment]:
    output = config.output
    saved = output.save or ("video", "jsonl")
    if output.no_video or "video" not in saved:
        return
    if all(getattr(output, name) is None for name in ENCODING):
        yield Adjustment("video", {"quality": "fast"})
        yield Adjustment("video", {"preset": "ultrafast"})
    others = tuple(name for name in saved if name != "video")
    yield Adjustment("video", {"save": ("overlay", *others)})
    yield Adjustment("video", {"no_video": True})


def _of_input(config: Config, plain: Plain) -> Iterator[Adjustment]:
    if config.runtime.size is None:
        height, width = plain.model_input
        sizes = [
            tuple(max(GRID, round(side * share / GRID) * GRID) for side in (width, height))
            for share in SMALLER
        ]
        for wide, high in dict.fromkeys(sizes):
            if (high, wide) != (height, width):
                yield Adjustment("size", {"size": f"{wide}x{high}"})


def _of_frames(config: Config) -> Iterator[Adjustment]:
    """Fewer frames: still ones reuse boxes, tracks move boxes on, or frames are not taken."""
    every_frame = config.input.stride == 1
    if config.input.skip_still is None and every_frame:
        yield Adjustment("still", {"skip_still": STILL})
    if config.tracking.infer_every is None and not config.drawing.blur:
        yield from (Adjustment("infer_every", {"infer_every": str(every)}) for every in STRIDES)
    if every_frame:
        yield from (Adjustment("stride", {"stride": every}) for every in STRIDES)
