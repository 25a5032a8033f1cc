"""List the changes that ``tune`` tries on a run. Options that the user gave do not change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from detector.core import engines
from detector.core.config.schema import Config
from detector.core.errors import EngineError, UsageError
from detector.core.errors.machine import usable_cores
from detector.core.run.judging import ENCODING
from detector.lab.session.tuning import AS_ASKED, LARGER, NO_VIDEO, SUBTITLES, Settings

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
SMALLER = (0.84, 0.68, 0.5)  # factors for both sides of the network's input
GRID = 32  # pixels; the input's sides are multiples of it
STILL = "0.5%"
STRIDES = (2, 3)
# Options that may change the engine that ``auto`` chooses.
AFFECT_AUTO = ("concurrency", "threads", "batch", "size")


@dataclass(frozen=True, slots=True)
class DefaultRun:
    engine: str
    precision: str
    fps: float
    model_input: tuple[int, int]
    model: str = ""
    model_sha256: str = ""
    loop: Settings = field(default_factory=dict)  # its requests and threads

    @property
    def named(self) -> Settings:
        return {"engine": self.engine, "precision": self.precision}


@dataclass(frozen=True, slots=True)
class Adjustment:
    """One change of a run. A run has at most one change of each ``axis``."""

    axis: str
    settings: Settings


def list_changes(config: Config, plain: DefaultRun) -> list[Adjustment]:
    return [
        *_list_engines(config, plain),
        *_list_requests(config),
        *_list_queues(config),
        *_list_videos(config),
        *_list_sizes(config, plain),
        *_list_skips(config),
    ]


def combine(best: Settings, change: Adjustment, plain: DefaultRun) -> Settings:
    """Add a change to ``best``, and name the engine if ``auto`` could choose another."""
    combined = {**best, **change.settings}
    if "engine" not in combined and any(name in combined for name in AFFECT_AUTO):
        combined = {**plain.named, **combined}
    return combined


def video_of(settings: Settings) -> str:
    if "no_video" in settings:
        return NO_VIDEO
    if "save" in settings:
        return SUBTITLES
    return LARGER if settings.keys() & {"quality", "preset"} else AS_ASKED


def _list_engines(config: Config, plain: DefaultRun) -> Iterator[Adjustment]:
    runtime, usable = config.runtime, engines.why_unusable()
    names = [name for name in engines.rank_engines() if usable.get(name, "") is None]
    if runtime.engine != "auto":
        names = [runtime.engine]
    for name in names:
        for precision in PRECISIONS if runtime.precision == "auto" else (runtime.precision,):
            if (name, precision) == (plain.engine, plain.precision):
                continue  # the defaults
            try:
                engines.graph_precision_for(name, precision, runtime.device)
            except (EngineError, UsageError):
                continue
            yield Adjustment("engine", {"engine": name, "precision": precision})


def _list_requests(config: Config) -> Iterator[Adjustment]:
    cores, runtime = usable_cores(), config.runtime
    if not (runtime.threads or runtime.concurrency):
        pairs = [(1, cores), (cores, 1), (cores + 1, 1), (max(1, cores // 2), 2)]
        for requests, threads in dict.fromkeys(pairs):
            yield Adjustment("requests", {"concurrency": requests, "threads": threads})
    if runtime.batch == 1:
        yield from (Adjustment("requests", {"batch": size}) for size in (2, 4))


def _list_queues(config: Config) -> Iterator[Adjustment]:
    """Yield a longer queue, which only a configuration file can set."""
    if config.loop.queue_batches == type(config.loop)().queue_batches:
        yield Adjustment("queue", {"queue_batches": 4})


def _list_videos(config: Config) -> Iterator[Adjustment]:
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


def _list_sizes(config: Config, plain: DefaultRun) -> Iterator[Adjustment]:
    if config.runtime.size is None:
        height, width = plain.model_input
        sizes = [
            tuple(max(GRID, round(side * share / GRID) * GRID) for side in (width, height))
            for share in SMALLER
        ]
        for wide, high in dict.fromkeys(sizes):
            if (high, wide) != (height, width):
                yield Adjustment("size", {"size": f"{wide}x{high}"})


def _list_skips(config: Config) -> Iterator[Adjustment]:
    """Yield ways to infer fewer frames: reuse boxes of still frames, track boxes, skip frames."""
    every_frame = config.input.stride == 1
    if config.input.skip_still is None and every_frame:
        yield Adjustment("still", {"skip_still": STILL})
    if config.value("infer_every", None) is None and not config.drawing.blur:
        yield from (Adjustment("infer_every", {"infer_every": every}) for every in STRIDES)
    if every_frame:
        yield from (Adjustment("stride", {"stride": every}) for every in STRIDES)
