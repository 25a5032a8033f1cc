"""The one page where names become objects. It reads from top to bottom as a run does:

    load_model       --engine, --model   -> network and engine, warmed up, once for all sources
    open_source      SOURCE, --decoder   -> frames
    open_sinks       --save, -o          -> files that are being written
    stage_functions  --conf, --iou, ...  -> preprocess, head and nms with their options bound
    wire_loop        all of these        -> what the loop needs for one source
    run_loop         --sync              -> frames with their detections

``detect`` (detect.py) calls them in this order for the command, ``Detector`` (api.py) for the
Python API. Libraries are imported when they are needed, so that a run can time its imports apart.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from detector.config.schema import Config
from detector.errors import DetectVideoError, EngineError, ModelError, UsageError

if TYPE_CHECKING:
    from detector.engines.base import BuildProgress, Engine, EngineOptions
    from detector.loop.parts import Outputs, Parts, Progress
    from detector.models.base import ModelRequest, Network
    from detector.session.outcome import ExecutedLayer
    from detector.sinks.base import Sink
    from detector.sources.base import Source
    from detector.timeline import Natives, OffTimeline, Timeline
    from detector.types import Candidates, Detections, Frame, Image, Letterbox, SourceInfo

    Preprocess = Callable[[Image, Image], Letterbox]
    Head = Callable[[Outputs], Candidates]
    Nms = Callable[[Candidates], Detections]

LARGEST_SIDE = 8192  # pixels of a network's input
MEANINGLESS = "random weights: boxes are meaningless"


# ----------------------------------------------------------------------
# Network and engine, once for all sources.


@dataclass(slots=True)
class LoadedModel:
    """A network on an engine, warmed up: all that the sources of a run share."""

    network: Network
    engine: Engine
    engine_reason: str | None  # why this engine; None where the user named it
    classes: tuple[int, ...] | None  # ids of --classes; None: all
    notes: list[str]
    build_s: float = 0.0  # spent on building in this run; part of the load
    artefact_s: float = 0.0  # what building took, in this run or in an earlier one
    options: EngineOptions | None = None  # what the engine was opened with
    layers: tuple[ExecutedLayer, ...] = ()  # as the engine ran them; empty where it cannot tell
    natives: Natives | None = None  # knows the engine's threads

    @property
    def remark(self) -> str:
        """What every output must say, in the picture or in the row; mostly nothing."""
        return MEANINGLESS if self.network.random_seed is not None else ""


class PhaseTimer:
    """Adds up the seconds of each phase of a run: import, load, warmup, run, close."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("import", "load", "warmup", "run", "close"), 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start


def load_model(
    config: Config,
    timer: PhaseTimer | None = None,
    *,
    spare_requests: int = 0,
    one_at_a_time: bool = False,
    picture: tuple[int, int] | None = None,
    progress: BuildProgress | None = None,
) -> LoadedModel:
    """Chooses the engine, opens the network, builds what the engine lacks, and warms it up.

    ``spare_requests``: requests beyond those that a loop needs. ``one_at_a_time``: the caller waits
    for each result, so one request should have all threads. ``picture``: width and height of the
    first source, which ``--size 640`` fits the input to. ``progress`` is told of every step of a
    build; when it answers False, the build ends. Raises UsageError, ModelError, EngineError.
    """
    timer = timer or PhaseTimer()
    with timer.phase("import"):
        from detector import engines
        from detector.run import choose
        from detector.run.prepare import prepare_network, silent
        from detector.timeline import INFER, Natives

        config, reason = _with_engine_of_the_file(config)
        if config.runtime.engine != "auto":
            engines.load_library(config.runtime.engine)
    with timer.phase("load"):
        network = open_network(config, picture)
        classes = _class_ids(config.selection.classes, network.names)
        choice = choose.choose(config, network.sha256, (network.input.height, network.input.width))
    config = choice.config
    name = config.runtime.engine
    with timer.phase("import"):
        engines.load_library(name)
    with timer.phase("load"):
        # The same number of spare requests for both loops. --sync has one request at a time by its
        # nature and gives it all threads.
        spare = config.loop.queue_batches + 1 + spare_requests
        ready = prepare_network(
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
    with timer.phase("warmup"), natives.born(INFER):
        for request in engine.requests:
            request.infer(network.batch)
        engine.requests[0].infer(network.batch)
        layers = executed_layers(network, engine)
    return LoadedModel(
        ready.network,
        engine,
        reason or choice.reason,
        classes,
        [*network.warnings, *ready.notes, *engine.notes],
        ready.build_s,
        ready.artefact_s,
        ready.options,
        layers,
        natives,
    )


def _with_engine_of_the_file(config: Config) -> tuple[Config, str | None]:
    """A file that only one engine runs (a TensorRT plan) decides ``--engine auto``; and why."""
    from detector import engines

    asked, model = config.runtime.engine, config.network.model
    only = engines.only_engine(model)
    if only is None or asked == only:
        return config, None
    if asked == "auto":
        runtime = replace(config.runtime, engine=only)
        return replace(config, runtime=runtime), f"engine {only}: it alone runs {model}"
    if asked in engines.names():
        raise EngineError(engines.plan_refusal(asked, model))
    return config, None  # a name that is no engine: loading it says so


def open_network(config: Config, picture: tuple[int, int] | None = None) -> Network:
    """The network as the front end makes it, before it is converted for an engine.

    ``--size 640`` is the longest side. Where the picture keeps its shape in the middle of the input
    (geometry "centre") and the file's size is not fixed, the other side is the smallest that holds
    ``picture`` (width, height); else the input is a square. Raises UsageError and ModelError.
    """
    from detector import engines, models
    from detector.stages.preprocess import smallest_input

    request, asked = model_request(config), config.runtime.size
    network = models.open_network(request, engines.front_ends())
    if picture is None or asked is None or not asked.isdecimal():
        return network
    if network.input.geometry != "centre":
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
        size=_height_and_width(runtime.size),
        batch=runtime.batch,
        family=network.family,
        cfg=None if network.cfg is None else Path(network.cfg),
        class_names=tuple(network.class_names or ()),
        device=runtime.device,
        trusted=any(text in ("host_code", "host_code=1") for text in runtime.engine_options or ()),
    )


def first_picture_size(specs: Sequence[str], config: Config) -> tuple[int, int] | None:
    """Width and height of the first source that opens, where ``--size 640`` needs them; else None.

    Later sources share its network input.
    """
    if config.runtime.size is None or not config.runtime.size.isdecimal():
        return None
    for spec in specs:
        # What is wrong with a source is reported when it is run.
        with suppress(DetectVideoError), open_source(spec, config) as source:
            return source.info.width, source.info.height
    return None


def _height_and_width(size: str | None) -> tuple[int, int] | None:
    """``416`` or ``640x384`` (width x height) -> (height, width)."""
    if size is None:
        return None
    sides = size.lower().split("x")
    if len(sides) > 2 or not all(s.isdecimal() and 0 < int(s) <= LARGEST_SIDE for s in sides):
        raise UsageError(f"--size {size}: not a size; write 416 or 640x384 (width x height)")
    return int(sides[-1]), int(sides[0])


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
                f"--classes {item}: the model has no such class among its {len(names)}; "
                f"near: {', '.join(near)}"
            )
    return tuple(ids)


def executed_layers(network: Network, engine: Engine) -> tuple[ExecutedLayer, ...]:
    """The layers that the engine reports, each with the cost of the nodes that it stands for.

    ``network`` is the one that the front end made, before any conversion: its nodes keep their
    names through that. A layer that the engine or the conversion added (a reorder, a cast) stands
    for no node and is left out.
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


# ----------------------------------------------------------------------
# Where frames come from, and where results go.


def open_source(spec: str, config: Config) -> Source:
    """The frames of one SOURCE, as --decoder, --stride and --frames say. Raises SourceError."""
    from detector import sources

    options = config.input
    return sources.open(spec, decoder=options.decoder, stride=options.stride, frames=options.frames)


def open_sinks(
    paths: dict[str, Path], info: SourceInfo, config: Config, loaded: LoadedModel
) -> list[Sink]:
    """Opened sinks, in the order of ``paths``. Each takes the options that it declares."""
    from detector import sinks

    return sinks.open_all(paths, info, {**asdict(config.output), "remark": loaded.remark})


# ----------------------------------------------------------------------
# The loop of one source.


def stage_functions(config: Config, loaded: LoadedModel) -> tuple[Preprocess, Head, Nms]:
    """preprocess, head and nms with their options bound, as the loop calls them."""
    from detector.stages.nms import nms
    from detector.stages.preprocess import letterbox

    selection, network = config.selection, loaded.network
    return (
        partial(letterbox, geometry=network.input.geometry, pad_value=network.input.pad_value),
        lambda outputs: network.head(outputs, selection.conf),
        partial(
            nms,
            iou=selection.iou if network.needs_nms else None,
            max_det=selection.max_det,
            agnostic=selection.agnostic,
            classes=loaded.classes,
            names=network.names,
        ),
    )


def wire_loop(config: Config, loaded: LoadedModel, source: Source, sinks: Sequence[Sink]) -> Parts:
    """What the loop needs for one source. Frames are annotated only where a sink shows them."""
    from detector.loop.parts import Parts

    preprocess, head, nms = stage_functions(config, loaded)
    draw: Callable[[Image, Detections], None] | None = None
    if any(sink.pictures != "none" for sink in sinks):
        from detector.stages.annotate import annotate

        draw = partial(annotate, remark=loaded.remark)
    return Parts(
        source=source,
        requests=loaded.engine.requests,
        concurrency=loaded.engine.concurrency,
        preprocess=preprocess,
        head=head,
        nms=nms,
        annotate=draw,
        sinks=sinks,
        queue_batches=config.loop.queue_batches,
    )


def run_loop(
    parts: Parts, config: Config, timeline: Timeline | OffTimeline, progress: Progress
) -> Generator[tuple[Frame, Detections], None, None]:
    """Yields every frame with its detections, after the sinks have it: threaded, or --sync."""
    from detector.loop.overlapped import frames_overlapped
    from detector.loop.sync import frames_in_turn

    loop = frames_in_turn if config.loop.sync else frames_overlapped
    return loop(parts, timeline, progress)
