"""Plan a run: before the first frame, decide once everything that depends on options.

    PlanDraft.of    from the options   -> reading of sources, drawing, loop, settings of outputs
    PlanDraft.load  with the network   -> RunPlan: the same parts, the network, the engine and the
                                       reason for it, and which detections are kept

Each module makes its own part from its own options, and reports errors in them. Code that has a
``RunPlan`` does not read options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core.config.schema import Config, OutputConfig, RuntimeConfig
from detector.core.errors import UsageError
from detector.core.run.canvas import smaller_canvas
from detector.core.run.drawing import Drawing
from detector.core.run.loading import LoadedModel, PhaseTimer, load_model
from detector.core.run.looping import Loop
from detector.core.run.reading import SourceReading
from detector.core.run.selection import Selection
from detector.core.run.tiling import Tiling

if TYPE_CHECKING:
    from detector.core.loop.parts import BatchRequest, Outputs, Parts
    from detector.core.models.base import Network
    from detector.core.run.shapes import ShapesOfRun
    from detector.core.sinks._stream import RowStream
    from detector.core.sinks.base import Sink
    from detector.core.sources.base import Source
    from detector.core.stages.between import ChosenStage
    from detector.core.stages.between.base import Stage
    from detector.core.types import AnyPicture, Candidates, Detections, Image, Letterbox, SourceInfo

    Preprocess = Callable[[AnyPicture, Image], Letterbox]
    Head = Callable[[Outputs], Candidates]
    Nms = Callable[[Candidates], Detections]


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """The parts of a plan that need no network. ``extra_stages``: the stages between nms and
    annotate. ``writing``: settings of sinks."""

    config: Config
    model_file: str
    reading: SourceReading
    selection: Selection
    drawing: Drawing
    loop: Loop
    tiling: Tiling
    extra_stages: tuple[ChosenStage, ...]
    writing: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config) -> PlanDraft:
        from detector.core.stages import between

        if config.output.save_times and not config.loop.instruments:
            raise UsageError("--save-times and --no-instruments contradict each other; omit one")
        model_file, extra_stages = Path(config.network.model).name, between.choose(config.as_dict())
        added = tuple(name for stage in extra_stages for name in stage.kind.brings)
        _check_needs_of_outputs(config, added)
        reading, selection = SourceReading.of(config), Selection.of(config)
        writing = {
            **asdict(config.output),
            "reuses": reading.still is not None,
            "tracks": config.value("track", None) is not None,
            "added_sinks": added,
            "coasts": _find_schedule_option(extra_stages) is not None,
            "at_once": reading.choice.at_once,
            "one_class": len(selection.given or ()) == 1,
        }
        parts = Drawing.of(config), Loop.of(config), Tiling.of(config)
        return cls(config, model_file, reading, selection, *parts, extra_stages, writing)

    def with_network(self, network: Network) -> tuple[Selection, Drawing]:
        """Resolve options that depend on the network's classes. Raises UsageError."""
        selection = self.selection.with_network(network.names)
        for stage in self.extra_stages:
            stage.kind.check(stage.settings, network.names)
        return selection, self.drawing.with_network(network, selection.classes)

    def load(
        self,
        timer: PhaseTimer | None = None,
        *,
        specs: Sequence[str] = (),
        picture: tuple[int, int] | None = None,
        chosen: Callable[[Network, Config], None] = lambda network, config: None,
        **words: Any,
    ) -> RunPlan:
        """Load the network. The first source in ``specs`` that can be opened may decide the shape
        of its input; ``picture``, (width, height), decides instead. ``chosen``, ``words``: see
        ``loading.load_model``. Raises UsageError, ModelError, EngineError."""
        size = None  # size of the source's pictures, if known
        if picture is None:
            picture = size = self.reading.picture_size(specs)
        if self.tiling.grid is not None and specs:
            size = size or self.reading.first_size(specs)

        def opened(network: Network) -> None:
            self.with_network(network)  # raises UsageError for an unknown class
            self.tiling.check(size, network)

        def refuse(network: Network, settled: Config) -> None:
            if self.drawing.blur and settled.runtime.engine == "null":
                raise UsageError(
                    "--blur: --engine null detects nothing, so nothing would be pixelated"
                )
            chosen(network, settled)

        loaded = load_model(
            self.config,
            timer,
            picture=self.tiling.tile_size(picture),
            ahead=(self.reading, specs) if specs else None,
            opened=opened,
            chosen=refuse,
            **words,
        )
        # Keep runtime options as the user set them, for the session. The engine has the tuned ones.
        runtime = {field.name for field in fields(RuntimeConfig)}
        tuned = {name: value for name, value in loaded.tuned.items() if name not in runtime}
        draft = PlanDraft.of(self.config.with_options(tuned)) if tuned else self
        draft = replace(draft, tiling=self.tiling)  # the live wing may have changed the tiling
        loaded.notes += draft.loop.lost_ranges()
        return draft.complete(loaded)

    def complete(self, loaded: LoadedModel) -> RunPlan:
        selection, drawing = self.with_network(loaded.network)
        return RunPlan(
            self.reading,
            selection,
            drawing,
            self.loop,
            self.tiling,
            self.extra_stages,
            self.config.output,
            self.writing,
            self.model_file,
            loaded,
            smaller_canvas(loaded.network, self.config),
            self.config,
        )


def _check_needs_of_outputs(config: Config, added: Sequence[str]) -> None:
    from detector.core import sinks

    for name in config.output.save or ():
        needs = sinks.find(name).needs
        if needs and name not in added:
            raise UsageError(f"--save {name} needs {needs}")


def _find_schedule_option(extra_stages: Sequence[ChosenStage]) -> str | None:
    options = (stage.kind.schedule_option(stage.settings) for stage in extra_stages)
    return next(filter(None, options), None)


def resolve(config: Config, timer: PhaseTimer | None = None, **words: Any) -> RunPlan:
    return PlanDraft.of(config).load(timer, **words)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run. ``output``: options for names and kinds of outputs; ``writing``: settings
    of sinks. ``smaller_input``: height and width of the next smaller input that the model was
    trained for, if any. ``as_asked``: the options as requested, for documents."""

    reading: SourceReading
    selection: Selection
    drawing: Drawing
    loop: Loop
    tiling: Tiling
    extra_stages: tuple[ChosenStage, ...]
    output: OutputConfig
    writing: Mapping[str, Any]
    model_file: str
    loaded: LoadedModel
    smaller_input: tuple[int, int] | None
    as_asked: Config

    @property
    def network(self) -> Network:
        return self.loaded.network

    @property
    def schedule_option(self) -> str | None:
        """The option, as typed, that lets frames skip inference; None without such an option."""
        return _find_schedule_option(self.extra_stages)

    def selecting(self, conf: float | None, classes: Sequence[str | int] | None) -> RunPlan:
        """Return a copy with another threshold and classes; None keeps them. Raises UsageError."""
        selection = self.selection.changed(conf, classes, self.network.names)
        return replace(self, selection=selection)

    def head(self, network: Network, lowest_conf: float = 1.0) -> Head:
        """Return the network's head with the threshold --conf. If a later stage needs boxes with
        lower scores, the threshold is ``lowest_conf``. That stage removes boxes below --conf."""
        head, conf = network.head, min(self.selection.conf, lowest_conf)
        if network.watched:
            from detector.core.stages.doubt import check_results

            head = check_results(head, self.model_file, len(network.names), network.watched)
        return lambda outputs: head(outputs, conf)

    def stages(self, lowest_conf: float = 1.0) -> tuple[Preprocess, Head, Nms]:
        """Return preprocess, head and nms with their options. ``lowest_conf``: see ``head``."""
        from detector.core.stages.nms import nms
        from detector.core.stages.preprocess import letterbox

        selection, network = self.selection, self.network
        return self.tiling.stages(
            partial(
                letterbox,
                geometry=network.input.geometry,
                pad_value=network.input.pad_value,
                of_picture=network.input.of_picture,
            ),
            self.head(network, lowest_conf),
            partial(
                nms,
                iou=selection.iou if network.needs_nms else None,
                max_det=selection.max_det,
                conf=selection.conf,
                agnostic=selection.agnostic,
                classes=selection.classes,
                names=network.names,
            ),
            agnostic=selection.agnostic,
            max_det=selection.max_det,
            conf=selection.conf,
        )

    def shapes(self, lowest_conf: float = 1.0) -> ShapesOfRun | None:
        if self.loaded.shapes is None:
            return None
        change = self.loaded.change
        return self.loaded.shapes.of_run(lambda network: self.head(change(network), lowest_conf))

    def reduction(self) -> Callable[[int, int], int] | None:
        """Return a function: (width, height) of a picture -> the divisor by which decoding may
        reduce both. Return None if the run needs all pixels, as for --full-decode."""
        if self.reading.full_decode or self.extra_stages:
            return None
        return self.tiling.reduction(self.network, turns=self.loaded.shapes is not None)

    @property
    def requests(self) -> Sequence[BatchRequest]:
        """The engine's requests for the loop: one batch row per frame, even with --tiles."""
        return self.tiling.requests(self.loaded.engine.requests)

    def between(self, info: SourceInfo) -> dict[str, Stage]:
        names, conf = self.network.names, self.selection.conf
        return {
            stage.name: stage.kind(stage.settings, info, names, conf) for stage in self.extra_stages
        }

    def parts(
        self, source: Source, sinks: Sequence[Sink] = (), watched: Callable[[], bool] | None = None
    ) -> Parts:
        """Return the loop's parts for one source. Frames are annotated only for sinks that show
        them, or for a viewer. ``watched``, called per frame, says whether there is a viewer."""
        from detector.core.loop.parts import Parts

        self.tiling.check_source(source.info, self.network)
        lowest = min(
            (stage.kind.lowest_conf(stage.settings) for stage in self.extra_stages), default=1.0
        )
        preprocess, head, nms = self.stages(lowest)
        shapes, between = self.shapes(lowest), self.between(source.info)
        drawers = 0 if self.loop.sync else self.drawing.threads(sinks, watched)
        annotate = self.drawing.annotation(sinks, watched, drawers)
        requests = self.requests if shapes is None else shapes.requests
        return Parts(
            source=source,
            requests=requests,
            shapes=shapes,
            concurrency=self.loaded.engine.concurrency,
            preprocess=preprocess,
            head=head,
            nms=nms,
            between=between,
            annotate=annotate,
            drawers=0 if annotate is None else drawers,
            sinks=sinks,
            queue_batches=self.loop.queue_batches,
            still=self.reading.stillness(source.info),
            schedule=next((stage.schedule for stage in between.values() if stage.schedule), None),
        )

    def open_sinks(self, paths: Mapping[str, Path], info: SourceInfo) -> list[Sink]:
        return open_sinks(paths, info, self.writing, self.drawing)

    def open_rows(self, path: Path, info: SourceInfo) -> Sink:
        """Open the JSONL sink that gets a row for every frame, even with --only-detections."""
        from detector.core import sinks

        options = {"remark": self.drawing.remark, "save_times": self.writing["save_times"]}
        (opened,) = sinks.open_all({"jsonl": path}, info, options)
        return opened

    def open_stream(self, stream: RowStream, name: str, info: SourceInfo) -> Sink:
        """Open the output of ``-o -``. ``name``: the sink whose format it has, such as "video"."""
        from detector.core import sinks

        if name == "video":
            from detector.core.sinks.video.piped import PipedVideo

            piped = PipedVideo(stream, **{key: self.writing[key] for key in PipedVideo.options})
            piped.open(info)
            return piped
        from detector.core.sinks._rows import RowsSink
        from detector.core.sinks._stream import StreamedRows
        from detector.core.sinks.base import only_detections

        options = {**self.writing, "remark": self.drawing.remark}
        rows = sinks.open(
            name, Path("-"), **{key: options[key] for key in sinks.find(name).options}
        )
        assert isinstance(rows, RowsSink)
        fewer = self.writing["only_detections"]
        kind = only_detections(StreamedRows) if fewer else StreamedRows
        opened = kind(rows, stream)  # type: ignore[arg-type,call-arg]
        opened.open(info)
        return opened


def open_sinks(
    paths: Mapping[str, Path], info: SourceInfo, writing: Mapping[str, Any], drawing: Drawing
) -> list[Sink]:
    """Open sinks in the order of ``paths``. Each takes the options that it declares."""
    from detector.core import sinks

    options = {**writing, "remark": drawing.remark}
    kinds = [sinks.find(name) for name in paths]
    if drawing.blurred and any(kind.untouched for kind in kinds):
        raise UsageError("--blur: an output shows the source's own pictures, unblurred")
    if any("style" in kind.options for kind in kinds):
        options["style"] = drawing.style
    return sinks.open_all(paths, info, options)
