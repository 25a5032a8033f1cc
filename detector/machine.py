"""What is loaded once for all sources: network and engine, warmed up. Names become objects here and in run.py."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from detector.config import Config
from detector.errors import EngineError, UsageError

if TYPE_CHECKING:
    from detector.engines.base import Engine
    from detector.loop.parts import Outputs, Parts, Progress
    from detector.models.base import Network
    from detector.timeline import OffTimeline, Timeline
    from detector.types import Candidates, Detections, Frame, Image, Letterbox

    Preprocess = Callable[[Image, Image], Letterbox]
    Head = Callable[[Outputs], Candidates]
    Nms = Callable[[Candidates], Detections]


MEANINGLESS = "random weights: boxes are meaningless"


@dataclass(slots=True)
class Machine:
    """What is loaded once for all sources."""

    network: Network
    engine: Engine
    engine_reason: str | None  # why this one; None: it was asked for by name
    classes: tuple[int, ...] | None
    notes: list[str]
    build_s: float = 0.0  # of what had to be built first; part of the load

    @property
    def remark(self) -> str:
        """What every output must say, in the picture or in the row; mostly nothing."""
        return MEANINGLESS if self.network.random_seed is not None else ""


class Phases:
    """Seconds of each part of a run, apart: import, load, warmup, run, close."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("import", "load", "warmup", "run", "close"), 0.0)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start


def open_machine(config: Config, phases: Phases, spare_requests: int = 0) -> Machine:
    """Imports, model and engine, warmed up. ``spare_requests``: beyond those that a loop needs."""
    with phases("import"):
        from detector import engines, models
        from detector.variants import prepared

        name, reason = _engine(config)
        engines.load(name)
    with phases("load"):
        runtime = config.runtime
        network = models.open_network(
            config.network.model,
            weights=config.network.weights,
            names=config.network.names,
            random_seed=config.network.random_weights,
            size=_size(runtime.size),
            batch=runtime.batch,
            cfg=config.network.cfg,
            class_names=config.network.class_names or (),
            trusted=any(text in ("host_code", "host_code=1") for text in runtime.engine_options or ()),
        )
        classes = _class_ids(config.selection.classes, network.names)
        # The same for both loops, so that --sync differs in the order of work and in nothing else.
        spare = config.loop.queue_batches + 1 + spare_requests
        ready = prepared(network, name, config, lambda concurrency: concurrency + spare)
        engine = engines.open(name, ready.network, ready.options)
    with phases("warmup"):
        for request in engine.requests:
            request.infer(runtime.batch)
        engine.requests[0].infer(runtime.batch)
    notes = [*network.warnings, *ready.notes, *engine.notes]
    return Machine(ready.network, engine, reason, classes, notes, ready.build_s)


def _engine(config: Config) -> tuple[str, str | None]:
    """(name, why where it was not asked for by name). A file that one engine alone runs decides. Raises EngineError."""
    from detector import engines, models

    asked, model = config.runtime.engine, config.network.model
    only = models.only_engine(model)
    if asked != "auto":
        if only is not None and asked != only and asked in engines.names():
            raise EngineError(engines.plan_refusal(asked, model))
        return asked, None
    if only is not None:
        return only, f"engine {only}: it alone runs {model}"
    return engines.choose(device=config.runtime.device)


def _size(text: str | None) -> tuple[int, int] | None:
    """``416`` or ``640x384`` (width x height) -> (height, width)."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and 0 < int(part) <= 8192 for part in parts):
        raise UsageError(f"--size {text}: not a size; write 416 or 640x384 (width x height)")
    return int(parts[-1]), int(parts[0])


def _class_ids(wanted: Sequence[str] | None, names: Sequence[str]) -> tuple[int, ...] | None:
    if wanted is None:
        return None
    ids = []
    for item in wanted:
        if item in names:
            ids.append(names.index(item))
        elif item.isdecimal() and int(item) < len(names):
            ids.append(int(item))
        else:
            near = difflib.get_close_matches(item, names, 3, 0.5) or list(names[:10])
            raise UsageError(f"--classes {item}: no such class among the model's {len(names)}; near: {', '.join(near)}")
    return tuple(ids)


def stage_functions(config: Config, machine: Machine) -> tuple[Preprocess, Head, Nms]:
    """preprocess, head and nms with their options bound, as the loop calls them."""
    from detector.stages.nms import nms
    from detector.stages.preprocess import letterbox

    selection, network = config.selection, machine.network
    return (
        partial(letterbox, geometry=network.input.geometry, pad_value=network.input.pad_value),
        lambda outputs: network.head(outputs, selection.conf),
        partial(
            nms,
            iou=selection.iou,
            max_det=selection.max_det,
            agnostic=selection.agnostic,
            classes=machine.classes,
            names=network.names,
        ),
    )


def frames_of(
    parts: Parts, config: Config, timeline: Timeline | OffTimeline, progress: Progress
) -> Generator[tuple[Frame, Detections], None, None]:
    from detector.loop.overlapped import frames_overlapped
    from detector.loop.sync import frames_in_turn

    loop = frames_in_turn if config.loop.sync else frames_overlapped
    return loop(parts, timeline, progress)
