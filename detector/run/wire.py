"""What is loaded once for all sources: network and engine, warmed up. Names become objects here and in run.py."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.config.schema import Config
from detector.errors import DetectVideoError, EngineError, ModelError, UsageError

if TYPE_CHECKING:
    from detector.loop.parts import Parts, Progress
    from detector.session.document import LoopSizes
    from detector.session.outcome import SourceRun
    from detector.sinks.base import Sink
    from detector.sources.base import Source
    from detector.types import Detections, Image, SourceInfo


if TYPE_CHECKING:
    from detector.engines.base import BuildProgress, Engine, EngineOptions
    from detector.loop.parts import Outputs, Parts, Progress
    from detector.models.base import ModelRequest, Network
    from detector.session.outcome import ExecutedLayer
    from detector.timeline import Natives, OffTimeline, Timeline
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
    artefact_s: float = 0.0  # what building took, in this run or in an earlier one
    options: EngineOptions | None = None  # what the engine was opened with
    layers: tuple[ExecutedLayer, ...] = ()  # as the engine ran them; empty where it cannot tell
    natives: Natives | None = None  # knows the engine's threads

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


def open_machine(
    config: Config,
    phases: Phases,
    spare_requests: int = 0,
    one_at_a_time: bool = False,
    picture: tuple[int, int] | None = None,
    progress: BuildProgress | None = None,
) -> Machine:
    """Imports, model and engine, warmed up. ``spare_requests``: beyond those that a loop needs. ``one_at_a_time``: the
    caller waits for each result, so that one request should have all threads. ``picture``: width and height of what
    will be looked at, which ``--size 640`` fits the input to. ``progress``: told of what must be built first; its
    answer False ends the build."""
    with phases("import"):
        from detector import engines
        from detector.run import choose
        from detector.run.prepare import prepared, silent
        from detector.timeline import INFER, Natives

        config, reason = _bound(config)
        if config.runtime.engine != "auto":
            engines.load_library(config.runtime.engine)
    with phases("load"):
        network = open_model(config, picture)
        classes = _class_ids(config.selection.classes, network.names)
        choice = choose.choose(config, network.sha256, (network.input.height, network.input.width))
    config = choice.config
    name = config.runtime.engine
    with phases("import"):
        engines.load_library(name)
    with phases("load"):
        # The same spare ones for both loops; --sync has one request at a time by its nature, and gives it all threads.
        spare = config.loop.queue_batches + 1 + spare_requests
        ready = prepared(
            network,
            name,
            config,
            lambda concurrency: concurrency + spare,
            progress or silent,
            one_at_a_time,
        )
        natives = Natives()
        with natives.born(INFER):
            engine = engines.open(name, ready.network, ready.options)
    with phases("warmup"), natives.born(INFER):
        for request in engine.requests:
            request.infer(network.batch)
        engine.requests[0].infer(network.batch)
        layers = executed_layers(network, engine)
    notes = [*network.warnings, *ready.notes, *engine.notes]
    return Machine(
        ready.network,
        engine,
        reason or choice.reason,
        classes,
        notes,
        ready.build_s,
        ready.artefact_s,
        ready.options,
        layers,
        natives,
    )


def executed_layers(network: Network, engine: Engine) -> tuple[ExecutedLayer, ...]:
    """What the engine says of its layers, with the costs of the nodes of ``network`` that each stands for.

    ``network`` is the one that the front end made, before any conversion: its nodes keep their names through that.
    What the engine or the conversion added (reorders, casts) stands for no node and is left out.
    """
    from detector.models.graph.build import node_costs
    from detector.session.outcome import ExecutedLayer

    told = engine.execution()
    costs = node_costs(network.graph) if told and network.plan is None else {}
    layers = []
    for layer in told:
        known = [costs[name] for name in layer.nodes or (layer.name,) if name in costs]
        if known:
            macs, elements = sum(cost.macs for cost in known), sum(cost.elements for cost in known)
            layers.append(ExecutedLayer(layer.name, layer.precision, macs, elements))
    return tuple(layers)


def picture_of(specs: Sequence[str], config: Config) -> tuple[int, int] | None:
    """Width and height of the first source, where ``--size 640`` needs them; later sources share its input."""
    if config.runtime.size is None or not config.runtime.size.isdecimal():
        return None
    from detector import sources

    for spec in specs:
        with suppress(DetectVideoError), sources.open(spec, decoder=config.input.decoder) as source:
            return source.info.width, source.info.height
    return None  # what is wrong with them is said when they are run


def open_model(config: Config, picture: tuple[int, int] | None = None) -> Network:
    """The network as the front end makes it, before any engine has its wishes: at ``--size 640`` of centre geometry as
    large as ``picture`` (width, height) needs; a square where that is fixed. Raises UsageError and ModelError."""
    from detector import engines, models
    from detector.stages.preprocess import smallest_input

    request, asked = model_request(config), config.runtime.size
    network = models.open_network(request, engines.front_ends())
    if (
        asked is None
        or not asked.isdecimal()
        or picture is None
        or network.input.geometry != "centre"
    ):
        return network
    size = smallest_input(int(asked), network.input.stride, *picture)
    if size == (network.input.height, network.input.width):
        return network
    try:
        return models.open_network(replace(request, size=size), engines.front_ends())
    except ModelError as exc:
        network.warnings.append(f"--size {asked}: the input stays {asked}x{asked}: {exc}")
        return network


def model_request(config: Config) -> ModelRequest:
    """What the configuration says about the model. Raises UsageError."""
    from detector.models.base import ModelRequest

    network, runtime = config.network, config.runtime
    return ModelRequest(
        model=network.model,
        weights=None if network.weights is None else Path(network.weights),
        names=None if network.names is None else Path(network.names),
        random_seed=network.random_weights,
        size=_size(runtime.size),
        batch=runtime.batch,
        family=network.family,
        cfg=None if network.cfg is None else Path(network.cfg),
        class_names=tuple(network.class_names or ()),
        device=runtime.device,
        trusted=any(text in ("host_code", "host_code=1") for text in runtime.engine_options or ()),
    )


def _bound(config: Config) -> tuple[Config, str | None]:
    """With the engine that alone runs a file of this kind, and why, where the user left the choice."""
    from detector import engines

    asked, model = config.runtime.engine, config.network.model
    only = engines.only_engine(model)
    if only is None or asked == only:
        return config, None
    if asked != "auto":
        if asked in engines.names():
            raise EngineError(engines.plan_refusal(asked, model))
        return config, None
    return replace(
        config, runtime=replace(config.runtime, engine=only)
    ), f"engine {only}: it alone runs {model}"


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
            raise UsageError(
                f"--classes {item}: no such class among the model's {len(names)}; near: {', '.join(near)}"
            )
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
            iou=selection.iou if network.needs_nms else None,
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


# ----------------------------------------------------------------------
# A source, a machine and sinks, put together for the loop.


def loop_shape(parts: Parts, config: Config) -> LoopSizes:
    """What bounds the loop, for whoever replays it."""
    from detector.loop.parts import image_count, results_ahead

    return {
        "batch": len(parts.requests[0].slot),
        "concurrency": parts.concurrency,
        "requests": len(parts.requests),
        "images": image_count(parts),
        "queue_batches": parts.queue_batches,
        "results": results_ahead(parts),
        "sync": config.loop.sync,
    }


def sink_options(config: Config, machine: Machine) -> dict[str, Any]:
    """All that a sink may ask for with ``Sink.options``."""
    return {**asdict(config.output), "remark": machine.remark}


def open_sinks(paths: dict[str, Path], info: SourceInfo, options: dict[str, Any]) -> list[Sink]:
    from detector import sinks

    return sinks.open_all(paths, info, options)


def close_sinks(sinks: list[Sink], run: SourceRun, progress: Progress) -> None:
    """Finishes every sink; without a frame (interrupted at once) there is nothing to finish."""
    for sink in sinks:
        if progress.written:
            run.outputs[sink.name] = str(sink.close())
        else:
            sink.abort()
        run.notes += sink.notes


def make_parts(config: Config, machine: Machine, source: Source, sinks: Sequence[Sink]) -> Parts:
    """What the loop needs for one source."""
    from detector.loop.parts import Parts

    preprocess, head, nms = stage_functions(config, machine)
    draw: Callable[[Image, Detections], None] | None = None
    if any(sink.pictures != "none" for sink in sinks):
        from detector.stages.annotate import annotate

        draw = partial(annotate, remark=machine.remark)
    return Parts(
        source=source,
        requests=machine.engine.requests,
        concurrency=machine.engine.concurrency,
        preprocess=preprocess,
        head=head,
        nms=nms,
        annotate=draw,
        sinks=sinks,
        queue_batches=config.loop.queue_batches,
    )
