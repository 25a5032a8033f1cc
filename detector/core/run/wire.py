"""The one page where names become objects. It reads from top to bottom as a run does:

    load_model       --engine, --model   -> network and engine, warmed up, once for all sources
    open_source      SOURCE, --decoder   -> frames
    open_sinks       --save, -o          -> files that are being written
    stage_functions  --conf, --iou, ...  -> preprocess, head and nms with their options bound
    wire_loop        all of these        -> what the loop needs for one source

``run_loop`` (looping.py) then gives the frames with their detections.
``detect`` (detect.py) calls them in this order for the command, ``Detector`` (api/) for the
Python API. Libraries are imported when they are needed, so that a run can time its imports apart.
"""

from __future__ import annotations

import difflib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError, EngineError, SourceError, UsageError
from detector.core.errors.machine import too_much
from detector.core.errors.text import join_list
from detector.core.run.canvas import follows_source, open_network
from detector.core.run.fonts import note_names, open_font
from detector.core.run.limits import check_memory

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress, Engine, EngineOptions
    from detector.core.loop.parts import Outputs, Parts
    from detector.core.models.base import Network
    from detector.core.session.outcome import ExecutedLayer
    from detector.core.sinks._stream import RowStream
    from detector.core.sinks.base import Marks, Sink
    from detector.core.sources.base import Choice, Source
    from detector.core.stages.annotate import Style
    from detector.core.stages.font import Font
    from detector.core.stages.still import Stillness
    from detector.core.timeline import Natives
    from detector.core.types import (
        Candidates,
        Detections,
        Frame,
        Image,
        Letterbox,
        Picture,
        SourceInfo,
    )

    Preprocess = Callable[[Picture, Image], Letterbox]
    Head = Callable[[Outputs], Candidates]
    Nms = Callable[[Candidates], Detections]

# Seconds alone, or [HH:]MM:SS, where minutes behind hours and seconds behind minutes are below 60.
TIME = re.compile(
    r"(?:(?:([0-9]{1,4}):(?=[0-5]?[0-9]:))?([0-9]{1,4}):(?=[0-5]?[0-9](?:\.|$)))?"
    r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
)
# Of a pixel of a frame, while it is decoded: measured 7 for a GIF, which keeps what it draws upon.
DECODER_BYTES = 8
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
    # As the engine ran them: ``read_layers`` asks. Empty where it cannot tell.
    layers: tuple[ExecutedLayer, ...] = ()
    original: Network | None = None  # before any conversion: the layers' costs are of its nodes
    natives: Natives | None = None  # knows the engine's threads
    blurred: frozenset[int] = frozenset()  # ids of --blur
    font: Font | None = None  # of --font
    tuned: Mapping[str, Any] = field(default_factory=dict)  # options that ``tune --use`` kept
    # As asked for, with what ``auto`` took (engine, precision, calibration) and with ``tuned``.
    config: Config | None = None

    def read_layers(self) -> None:
        """Asks the engine how it runs each layer, while it is open.

        A start need not wait for it: ONNX Runtime tells by optimising the graph once more. An
        engine that failed may tell nothing.
        """
        if self.layers or self.original is None:
            return
        from detector.core.run.executed import find_layers

        with suppress(EngineError):
            own = {} if self.options is None else self.options.own
            self.layers = find_layers(self.original, self.engine, self.network.path, own)

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
    measured: bool = True,
    timed: bool = False,
    kind: Callable[[], str | None] | None = None,
    chosen: Callable[[Network, Config], None] | None = None,
) -> LoadedModel:
    """Chooses the engine, opens the network, builds what the engine lacks, and warms it up.

    ``spare_requests``: requests beyond those that a loop needs. ``one_at_a_time``: the caller waits
    for each result, so one request should have all threads. ``picture``: width and height of the
    first source, which the input is fitted to (``canvas.open_network``); None where the model's own
    is to stay. ``progress`` is told of every step of a build; when it answers False, the build
    ends. ``measured``, ``timed`` and ``kind``: what ``auto`` may take (``choose``). ``chosen`` is
    told the network and the configuration without any ``auto``, before the slow part, and may
    refuse. Raises UsageError, ModelError, EngineError.
    """
    timer = timer or PhaseTimer()
    font = open_font(config.drawing.font)
    with timer.phase("import"):
        from detector.core import engines
        from detector.core.run.choose import choose
        from detector.core.run.prepare import prepare_network, silent
        from detector.core.timeline import INFER, Natives

        config, reason = _with_engine_of_the_file(config)
        if config.runtime.engine != "auto":
            engines.check_installed(config.runtime.engine)
    with timer.phase("load"):
        network = open_network(config, picture)
        classes = class_ids("--classes", config.selection.classes, network.names)
        blurred = _blurred_ids(config, classes, network.names)
        choice = choose(
            network, config, measured=measured, timed=timed, kind=kind, progress=progress or silent
        )
        config = choice.config
        if "batch" in choice.tuned:  # it is part of the graph
            network = open_network(config, picture)
    timer.seconds["load"] -= choice.timed_s  # no part of this run's figures
    name = config.runtime.engine
    if blurred and name == "null":
        raise UsageError("--blur: --engine null detects nothing, so nothing would be pixelated")
    check_memory(name)
    if chosen is not None:
        chosen(network, config)
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
        # On a CPU requests share what is made at the first inference, so as many as run at once are
        # enough: each costs a start as much as a frame. On a GPU each has a context of its own.
        alike = engine.device == "cpu"
        warm = engine.requests[: engine.concurrency] if alike else engine.requests
        first, *_ = [request.infer(network.batch) for request in warm]
    return LoadedModel(
        ready.network,
        engine,
        reason or choice.reason,
        classes,
        [
            *choice.notes,
            *network.warnings,
            *ready.notes,
            *engine.notes,
            *_nan_warning(network, first),
            *_lost_ranges(config),
        ],
        ready.build_s,
        ready.artefact_s,
        ready.options,
        natives=natives,
        blurred=blurred,
        font=font,
        tuned=choice.tuned,
        original=network,
        config=config,
    )


def _lost_ranges(config: Config) -> list[str]:
    """A line where a profiler is attached that would record nothing of this run."""
    from detector.core.timeline.nvtx_ranges import attach, warning_of

    if not (config.loop.nvtx and config.loop.instruments):
        return []
    return [line] if (line := warning_of(attach())) else []


def _nan_warning(network: Network, outputs: Outputs) -> list[str]:
    """A line for a network whose numbers overflow, or were never numbers: it detects nothing."""
    import numpy as np

    if not any(np.isnan(output).any() for output in outputs):
        return []
    return [
        f"{network.name} gives NaN where numbers belong, so it misses objects: its weights are "
        "damaged, or too large for this precision; train it again, or use --precision fp32"
    ]


def _with_engine_of_the_file(config: Config) -> tuple[Config, str | None]:
    """A file that only one engine runs (a TensorRT plan) decides ``--engine auto``; and why."""
    from detector.core import engines

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


def first_picture_size(specs: Sequence[str], config: Config) -> tuple[int, int] | None:
    """Width and height of the first source that opens, where the network's input is fitted to
    them: with ``--size 640``, and where it follows a video's shape. Else None.

    Later sources share its network input.
    """
    size = config.runtime.size
    if not (follows_source(config) if size is None else size.isdecimal()):
        return None
    whole = replace(config, input=replace(config.input, start=None, duration=None))
    for spec in specs:
        # What is wrong with a source is reported when it is run.
        with suppress(DetectVideoError), open_source(spec, whole) as source:
            if size is None and source.info.kind == "pictures":
                return None  # each has a shape of its own
            return source.info.width, source.info.height
    return None


def input_kind(spec: str, config: Config) -> str | None:
    """What decides how fast a source is read: "1280x720 h264", "pictures". None where it does not
    open, of which the run itself tells, and for a pipe, which can be read once."""
    from detector.core.sources._standard_input import SPEC

    if spec == SPEC:
        return None
    whole = replace(config, input=replace(config.input, start=None, duration=None))
    with suppress(DetectVideoError), open_source(spec, whole) as source:
        info = source.info
        is_video = info.kind == "video"
        return f"{info.width}x{info.height} {info.codec}" if is_video else info.kind
    return None


def class_ids(
    flag: str, wanted: Sequence[str] | None, names: Sequence[str]
) -> tuple[int, ...] | None:
    """Ids of classes that were given by name or id; None for None. ``flag``: who wants them.

    Raises UsageError for a class that the model does not have.
    """
    if wanted is None:
        return None
    ids = []
    for item in wanted:
        if item in names:
            ids.append(names.index(item))
        elif item.isdecimal() and int(item) < len(names):
            ids.append(int(item))
        else:
            near = difflib.get_close_matches(item, names, 3, 0.5)
            near = [name for name in names if _begins(name, item)][:3] or near
            hint = (
                f"near: {', '.join(map(_typed, near))}"
                if near
                else f"it has {', '.join(names[:10])}"
            )
            more = "..." if not near and len(names) > 10 else ""
            raise UsageError(
                f"{flag} {item}: the model has no such class among its {len(names)}; {hint}{more}"
            )
    return tuple(ids)


def _begins(name: str, item: str) -> bool:
    """Whether it looks as if a name was cut at its comma."""
    return item in [part.strip() for part in name.split(",")[:-1]]


def _typed(name: str) -> str:
    """A name as it is typed among others; one with a comma needs quotes, and these the shell's."""
    text = join_list([name])
    return text if text == name else f"'{text}'"


def _blurred_ids(
    config: Config, classes: tuple[int, ...] | None, names: Sequence[str]
) -> frozenset[int]:
    """Class ids of --blur. Raises UsageError where their boxes would not be found."""
    wanted = class_ids("--blur", config.drawing.blur, names)
    if not wanted:
        return frozenset()
    if config.network.random_weights is not None:
        raise UsageError("--blur: random weights find nothing that could be pixelated")
    unseen = [names[i] for i in wanted if classes is not None and i not in classes]
    if unseen:
        raise UsageError(
            f"--blur {join_list(unseen)}: --classes leaves it out, so that it would not be found; "
            f"use --classes '{join_list([*(config.selection.classes or ()), *unseen])}'"
        )
    return frozenset(wanted)


# ----------------------------------------------------------------------
# Where frames come from, and where results go.


def open_source(
    spec: str, config: Config, pixels: str = "bgr", *, as_camera: bool = False
) -> Source:
    """The frames of one SOURCE, as the options of input say. ``pixels``: "yuv420p" asks for planes
    where the source can give them. ``as_camera``: an address is a camera's, whatever its server
    gives. Raises SourceError and UsageError."""
    from detector.core import sources
    from detector.core.sources._unclaimed import is_live

    options, (start_s, duration_s) = config.input, time_window(config)
    looped = config.live.repeat
    live = as_camera and is_live(spec)
    kind = sources.find_arriving() if looped or live else sources.find_claiming(spec)
    if kind.arrives:
        source = kind.open_arriving(spec, config)
    else:
        source = sources.open(
            spec,
            decoder=options.decoder,
            stride=options.stride,
            frames=options.frames,
            pixels=pixels,
            choice=choice_of(config),
        )
    try:
        _refuse_huge_frames(source.info, config.runtime.batch)
        if start_s is not None or duration_s is not None:
            source.restrict(start_s, duration_s)
    except BaseException:
        source.close()
        raise
    return source


def _refuse_huge_frames(info: SourceInfo, batch: int) -> None:
    """Raises SourceError where the frames that are in flight at least, those of a batch and one
    that is written (``loop.parts.places``), and what decodes them can never fit into memory."""
    size, pixels = f"{info.width}x{info.height}", info.width * info.height
    if (needed := too_much(pixels * (3 * (batch + 1) + DECODER_BYTES))) is not None:
        cure = "use a smaller --batch" if batch > 1 else "make it smaller"
        raise SourceError(f"{info.path}: {batch + 1} frames of {size} need {needed}; {cure}")


def frames_ahead(config: Config, info: SourceInfo) -> int | None:
    """About how many frames the options of input leave of a source; None where nobody knows."""
    start_s, duration_s = time_window(config)
    left = info.frames_declared
    if left is not None and start_s is not None:
        left -= math.ceil(start_s * info.fps)
    if duration_s is not None and info.fps:
        within = math.ceil(duration_s * info.fps)
        left = within if left is None else min(left, within)
    if left is not None:
        left = max(1, math.ceil(left / config.input.stride))
    limits = [limit for limit in (left, config.input.frames) if limit is not None]
    return min(limits, default=None)


def choice_of(config: Config) -> Choice:
    """--video-track and --rate. Raises UsageError."""
    from detector.core.sources.base import Choice, parse_rate

    rate = config.input.rate
    return Choice(config.input.video_track, None if rate is None else parse_rate(rate))


def time_window(config: Config) -> tuple[Fraction | None, Fraction | None]:
    """--start and --duration in seconds, exactly; None where they are not given.

    Raises UsageError.
    """
    start, duration = config.input.start, config.input.duration
    start_s = None if start is None else _seconds("--start", start)
    duration_s = None if duration is None else _seconds("--duration", duration)
    if duration_s == 0:
        raise UsageError(f"--duration {duration}: nothing would be left; give more than 0 seconds")
    return start_s, duration_s


def _seconds(flag: str, text: str) -> Fraction:
    if (parts := TIME.fullmatch(text)) is None:
        raise UsageError(f"{flag} {text}: not a time; write seconds (10, 0.5) or 01:10, 1:00:10.5")
    hours, minutes, seconds = (Fraction(part or 0) for part in parts.group(1, 2, 3))
    return hours * 3600 + minutes * 60 + seconds


def open_sinks(
    paths: Mapping[str, Path], info: SourceInfo, config: Config, loaded: Marks
) -> list[Sink]:
    """Opened sinks, in the order of ``paths``. Each takes the options that it declares."""
    from detector import __version__
    from detector.core import sinks

    options = {
        **asdict(config.output),
        "remark": loaded.remark,
        "program": f"detect-video {__version__}",
        "reuses": config.input.skip_still is not None,
    }
    kinds = [sinks.find(name) for name in paths]
    if loaded.blurred and any(kind.untouched for kind in kinds):  # whoever asked before this or not
        raise UsageError("--blur: an output that shows the source's own pictures would undo it")
    if any("style" in kind.options for kind in kinds):
        options["style"] = drawing_style(config, loaded)
    return sinks.open_all(paths, info, options)


def open_rows(path: Path, info: SourceInfo, loaded: LoadedModel) -> Sink:
    """A row of JSONL for every frame, whatever --only-detections leaves out elsewhere."""
    from detector.core import sinks

    (opened,) = sinks.open_all({"jsonl": path}, info, {"remark": loaded.remark})
    return opened


def open_stream(
    stream: RowStream, name: str, info: SourceInfo, config: Config, loaded: LoadedModel
) -> Sink:
    """The rows of -o -, in the format of the sink ``name``."""
    from detector.core import sinks
    from detector.core.sinks._only import only_detections
    from detector.core.sinks._rows import RowsSink
    from detector.core.sinks._stream import StreamedRows

    rows = sinks.open(name, Path("-"), remark=loaded.remark)
    assert isinstance(rows, RowsSink)
    kind = only_detections(StreamedRows) if config.output.only_detections else StreamedRows
    opened = kind(rows, stream)  # type: ignore[arg-type,call-arg]
    opened.open(info)
    return opened


# ----------------------------------------------------------------------
# The loop of one source.


def select(
    config: Config, loaded: LoadedModel, conf: float | None, classes: Sequence[str] | None
) -> tuple[Config, LoadedModel]:
    """Both with another confidence threshold and other classes; None keeps what is there.

    Raises UsageError for a threshold outside 0 to 1, and for an unknown class.
    """
    if conf is not None:
        if not 0 <= conf <= 1:
            raise UsageError(f"conf={conf}: a confidence threshold is a number from 0 to 1")
        config = replace(config, selection=replace(config.selection, conf=conf))
    if classes is not None:
        wanted = [classes] if isinstance(classes, str) else [str(one) for one in classes]
        ids = class_ids("classes", wanted, loaded.network.names)
        loaded = replace(loaded, classes=ids)
    return config, loaded


def stage_functions(config: Config, loaded: LoadedModel) -> tuple[Preprocess, Head, Nms]:
    """preprocess, head and nms with their options bound, as the loop calls them."""
    from detector.core.stages.nms import nms
    from detector.core.stages.preprocess import letterbox

    selection, network = config.selection, loaded.network
    head = network.head
    if network.watched:
        from detector.core.stages.doubt import watched

        name = Path(config.network.model).name
        head = watched(head, name, len(network.names), network.watched)
    return (
        partial(
            letterbox,
            geometry=network.input.geometry,
            pad_value=network.input.pad_value,
            of_picture=network.input.of_picture,
        ),
        lambda outputs: head(outputs, selection.conf),
        partial(
            nms,
            iou=selection.iou if network.needs_nms else None,
            max_det=selection.max_det,
            agnostic=selection.agnostic,
            classes=loaded.classes,
            names=network.names,
        ),
    )


def wire_loop(
    config: Config,
    loaded: LoadedModel,
    source: Source,
    sinks: Sequence[Sink],
    watched: Callable[[], bool] | None = None,
) -> Parts:
    """What the loop needs for one source. Frames are annotated only where a sink shows them, or
    where ``watched``, asked before each frame, says that somebody looks.
    """
    from detector.core.loop.parts import Parts

    preprocess, head, nms = stage_functions(config, loaded)
    return Parts(
        source=source,
        requests=loaded.engine.requests,
        concurrency=loaded.engine.concurrency,
        preprocess=preprocess,
        head=head,
        nms=nms,
        annotate=_annotation(config, loaded, sinks, watched),
        sinks=sinks,
        queue_batches=config.loop.queue_batches,
        still=stillness(config, source.info),
    )


def stillness(config: Config, info: SourceInfo) -> Stillness | None:
    """Of --skip-still; None without it, and for pictures, which do not follow each other."""
    if config.input.skip_still is None or info.kind == "pictures":
        return None
    from detector.core.stages.still import Stillness, parse_share

    return Stillness(parse_share(config.input.skip_still))


def _annotation(
    config: Config,
    loaded: LoadedModel,
    sinks: Sequence[Sink],
    watched: Callable[[], bool] | None = None,
) -> Callable[[Frame, Detections], None] | None:
    """What happens to a picture before it is written; None where nobody needs it.

    Sinks of plain pictures see it when all that must not be recognised is pixelated, and nothing is
    drawn yet. Where a sink needs BGR, boxes are drawn into that. Planes into which nothing would be
    drawn stay the decoder's: they are not copied.
    """
    from detector.core.sinks.base import DRAWN

    drawn = any(sink.pictures in DRAWN for sink in sinks)
    seeing = [sink for sink in sinks if sink.pictures == "plain"]
    if not drawn and not seeing and watched is None:
        return None
    from detector.core.sources._planes import Easel
    from detector.core.stages.annotate import annotate, pixelate
    from detector.core.types import Planes

    style = drawing_style(config, loaded)
    unblurred = replace(style, blurred=frozenset())
    bgr = any(sink.pictures == "bgr" for sink in sinks)
    easel, stays = Easel(bgr=bgr), not (bgr or style.remark)

    def show_and_draw(frame: Frame, detections: Detections) -> None:
        looked_at = watched is not None and watched()  # to be asked of every frame
        if stays and not len(detections) and isinstance(frame.picture, Planes):
            return
        if drawn or looked_at or (seeing and style.blurred):
            easel.put(frame)
        elif not seeing:
            return
        pixelate(frame.picture, detections, style.blurred)
        if seeing and len(detections):
            picture = frame.picture  # not ``image``, which would be kept and not show the boxes
            plain = picture.to_bgr() if isinstance(picture, Planes) else picture
            for sink in seeing:
                sink.see(plain, detections)
        if drawn or looked_at:
            annotate(frame.picture, detections, unblurred)

    return show_and_draw


def drawing_style(config: Config, loaded: Marks) -> Style:
    """How boxes and labels look, as the options of drawing say."""
    from detector.core.stages.annotate import Style

    drawing = config.drawing
    return Style(
        line_width=drawing.line_width,
        font_scale=drawing.font_scale,
        labels=not drawing.hide_labels,
        scores=not drawing.hide_scores,
        blurred=loaded.blurred,
        remark=loaded.remark,
        font=loaded.font,
    )


def label_notes(
    config: Config, loaded: LoadedModel, sinks: Sequence[Sink], found: Iterable[int]
) -> list[str]:
    """What the user should know of the labels of these classes, where any were drawn."""
    from detector.core.sinks.base import DRAWN

    if config.drawing.hide_labels or not any(sink.pictures in DRAWN for sink in sinks):
        return []
    return note_names(loaded.network.names, found, loaded.font)
