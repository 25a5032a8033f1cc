"""Process one item, from its source to its marker, in a local process or a cluster's actor.

A long item may be processed in steps, by several workers: plan the parts, process each, and join
them. If a step finds that the item must not be split, the item gets a single run.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from detector.batch import pieces
from detector.batch.documents import OF_SOURCE, ItemRecord, Ledger, StageSeconds
from detector.batch.layout import ROWS
from detector.batch.listing import look_at
from detector.batch.places import Outputs
from detector.batch.progress import add_ledgers
from detector.batch.settings import LoadedFacts, as_plain, config_of, digest_of, key_of
from detector.core import __version__
from detector.core.errors import EXIT_DONE, DetectVideoError, SourceError, UsageError
from detector.core.session.document import Exit
from detector.core.sinks._partial import output_errors
from detector.core.sources._addresses import StoredVideo, is_address
from detector.core.sources._contents import PICTURE, kind_of
from detector.core.sources._storage import ObjectInfo

if TYPE_CHECKING:
    from detector.batch.split import Part
    from detector.core.config.schema import Config
    from detector.core.run.loading import LoadedModel
    from detector.core.run.plan import RunPlan
    from detector.core.session.outcome import SourceRun

MOST_CANVASES = 3  # how many models stay open besides the first; videos usually have few shapes
NOT_SPLIT = "not split: "  # start of the note on an unsplit item

Gather = Callable[[str, Path], None]
Watched = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A step of an item that may be split. If ``do`` is "plan", divide the item into up to ``most``
    parts of at least ``least_s`` seconds; "part": process part ``number`` (0 to ``of`` - 1);
    "join": join all parts; "whole": process the item in a single run, and note ``why``."""

    do: Literal["plan", "part", "join", "whole"]
    number: int = 0
    of: int = 0
    most: int = 0
    least_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An item, or a step of it, for a worker. ``version``: the source's version when it was listed.
    ``tries``: number of tries, including the present one."""

    name: str
    path: str
    version: str
    tries: int = 1
    piece: Piece | None = None

    @property
    def id(self) -> tuple[str, str, int]:
        piece = self.piece
        return (self.name, "whole", 0) if piece is None else (self.name, piece.do, piece.number)

    @property
    def is_part(self) -> bool:
        return self.piece is not None and self.piece.do == "part"

    @property
    def label(self) -> str:
        """A text for users: ``cam1/a.mp4``, or ``cam1/a.mp4, part 3 of 8``, or ``..., joining``."""
        piece = self.piece
        if piece is not None and piece.do == "part":
            return f"{self.name}, part {piece.number + 1} of {piece.of}"
        return f"{self.name}, joining" if piece is not None and piece.do == "join" else self.name


@dataclass(slots=True)
class OpenModel:
    """A model on a warm engine. ``digest``: a digest of all settings that decide the results.

    ``loaded``: the model at its own input size. ``has_shape_of_source``: whether each item gets an
    input in the shape of its source. Models for the last ``MOST_CANVASES`` shapes stay open.
    """

    config: Config
    loaded: LoadedModel
    digest: str
    has_shape_of_source: bool = False
    _others: dict[tuple[int, int], LoadedModel] = field(default_factory=dict)  # in order of use
    _plan: RunPlan | None = None  # plan of the last item, which the next one can usually reuse

    def plan_for(self, path: str) -> RunPlan:
        from detector.core.run.plan import PlanDraft

        is_picture = kind_of(path, closely=True) == PICTURE
        loaded = self.loaded if is_picture else self.loaded_for(path)
        if self._plan is None or self._plan.loaded.engine is not loaded.engine:
            # Do not measure the CPU time of libraries' threads: markers do not contain it.
            self._plan = PlanDraft.of(self.config).complete(replace(loaded, natives=None))
        if not is_picture:
            return self._plan
        # For a single frame, starting threads takes longer than they save.
        return replace(self._plan, loop=replace(self._plan.loop, sync=True))

    def loaded_for(self, path: str) -> LoadedModel:
        from detector.core.run.canvas import find_canvas
        from detector.core.run.loading import load_model
        from detector.core.run.reading import SourceReading

        if not self.has_shape_of_source:
            return self.loaded
        reading = SourceReading.of(self.config) if self._plan is None else self._plan.reading
        picture = reading.picture_size([spec_of(path)])
        canvas = find_canvas(self.config, picture)
        if canvas is None:
            return self.loaded
        loaded = self._others.pop(canvas, None)
        if loaded is None:
            while len(self._others) >= MOST_CANVASES:
                self._others.pop(next(iter(self._others))).engine.close()
            loaded = load_model(self.config, picture=picture, measured=False)
        self._others[canvas] = loaded
        return loaded

    def close(self) -> None:
        for loaded in (self.loaded, *self._others.values()):
            loaded.engine.close()


def open_model(
    plain: dict[str, dict[str, Any]], pictures: Sequence[str], *, resolves: bool
) -> tuple[OpenModel, LoadedFacts]:
    """Load the model, once for many items.

    ``plain``: the configuration, by group. ``resolves``: whether ``plain`` may contain ``auto``;
    the returned facts hold the resolved values. ``pictures``: sources; if --size gives only the
    longest side, the first source that can be opened decides the shape. Raises DetectVideoError.
    """
    from detector.core.run.canvas import follows_source
    from detector.core.run.loading import PhaseTimer
    from detector.core.run.plan import resolve

    start = time.perf_counter()
    config, chosen = config_of(plain), []
    shaped = follows_source(config)
    # With --rect, each picture decides the input's size, so no source is opened to find it.
    has_own_shape = shaped or config.runtime.rect
    loaded = resolve(
        config,
        PhaseTimer(),
        specs=[] if has_own_shape else [spec_of(path) for path in pictures],
        measured=resolves,
        timed=resolves,
        chosen=lambda network, settled: chosen.append(settled),
    ).loaded
    if resolves:
        config = _without_auto(chosen[0], loaded)
    network = loaded.network
    facts = LoadedFacts(
        config=as_plain(config),
        model=network.name,
        model_sha256=network.sha256,
        model_input=(network.input.height, network.input.width),
        class_names=list(network.names),
        engine_reason=loaded.engine_reason,
        notes=list(loaded.notes),
        load_s=time.perf_counter() - start,
        canvas=OF_SOURCE if shaped else None,
    )
    return OpenModel(config, loaded, digest_of(facts), shaped), facts


def _without_auto(config: Config, loaded: LoadedModel) -> Config:
    engine, network, runtime = loaded.engine, loaded.network, config.runtime
    size = runtime.size
    if size is not None and not runtime.rect:  # with --rect, each input's longest side is ``size``
        size = f"{network.input.width}x{network.input.height}"
    return replace(
        config,
        runtime=replace(
            runtime,
            threads=engine.threads,
            concurrency=engine.concurrency,
            size=size,
            device="cpu" if runtime.device == "auto" and engine.device == "cpu" else runtime.device,
            self_timing=False,
        ),
    )


def process_item(
    task: Task,
    model: OpenModel,
    outputs: Outputs,
    *,
    gather: Gather | None = None,
    watch: Watched = lambda frames: None,
) -> ItemRecord:
    """Detect, write, and put the results in place with their marker. A failure leaves no files.

    ``gather`` gets the item's name and rows before the marker is written. ``watch`` gets the number
    of finished frames. Returns the marker's record, or the record of one step. Raises
    DetectVideoError.
    """
    _refuse_sinks_of_files(task, model.config)
    why_whole = ""
    if task.piece is not None:
        step = _do_step(task, task.piece, model, outputs, gather, watch)
        if isinstance(step, ItemRecord):
            return step
        why_whole = step
    from detector.core.session.outcome import exit_of

    before = look_at(task.path)
    scratch = outputs.begin(task.name)
    try:
        run = _run(task, model, scratch, watch)
        if run.error is not None:
            raise run.error
        if look_at(task.path).version != before.version:
            raise SourceError(f"{task.path}: changed while being read; run the job again")
        facts = _facts_of(run) | _outputs(run.outputs, scratch)
        facts["classes"] = _by_name(run.by_class, model)
        if why_whole:
            facts["notes"].append(f"{NOT_SPLIT}{why_whole}")
        record = _record(task, model, before, exit=exit_of([run]), **facts)
        if gather is not None:
            gather(task.name, scratch / ROWS)
        outputs.commit(task.name, scratch, record)
    except BaseException:
        outputs.discard(task.name)
        raise
    return record


def spec_of(path: str) -> str:
    """Return the spec that opens the source. A plain address would be opened as a camera."""
    return StoredVideo(path) if is_address(path) else path


def _refuse_sinks_of_files(task: Task, config: Config) -> None:
    """Raise UsageError if an output needs the source's own file, but the source is an address."""
    from detector.core import sinks

    needing_files = [name for name in config.output.save or () if sinks.find(name).untouched]
    if needing_files and is_address(task.path):
        raise UsageError(
            f"{task.path}: --save {needing_files[0]} needs a file on this machine; use --save video"
        )


def _run(task: Task, model: OpenModel, scratch: Path, watch: Watched) -> SourceRun:
    from detector.core.run.detect import run_opened

    done = 0

    def count(frame: object, detections: object) -> None:
        nonlocal done
        done += 1
        watch(done)

    plan = model.plan_for(task.path)
    return run_opened(spec_of(task.path), plan, scratch, plain=True, detected=count)


def _record(task: Task, model: OpenModel, about: ObjectInfo, **facts: Any) -> ItemRecord:
    return ItemRecord(
        name=task.name,
        path=task.path,
        size=about.size,
        version=about.version,
        settings=model.digest,
        key=key_of(task.path, about.version, model.digest),
        detect_video=__version__,
        finished=time.time(),
        **facts,
    )


def _facts_of(run: SourceRun) -> dict[str, Any]:
    return {
        "frames": run.written,
        "detections": sum(run.by_class.values()),
        "seconds": run.run_s,
        "notes": list(run.notes),
        "ledger": _ledger(run),
    }


def _by_name(by_class: Mapping[int, int], model: OpenModel) -> dict[str, int]:
    names = dict(enumerate(model.loaded.network.names))
    return {names.get(one, str(one)): count for one, count in by_class.items()}


def _outputs(outputs: Mapping[str, str | Path], scratch: Path) -> dict[str, Any]:
    return {
        "outputs": {kind: os.path.relpath(path, scratch) for kind, path in outputs.items()},
        "sizes": {kind: os.path.getsize(to) for kind, to in outputs.items() if os.path.isfile(to)},
    }


def _ledger(run: SourceRun) -> Ledger:
    from detector.core.session.recording import record

    recording = record(run.timeline, durations=False)
    waits: dict[str, float] = {}
    for thread in recording.threads.values():
        for what, nanoseconds in thread.waits.items():
            waits[what] = waits.get(what, 0.0) + nanoseconds / 1e9
    return Ledger(
        infer_s=recording.infer_ns / 1e9,
        cpu_s=run.process_cpu_s,
        stages={
            name: StageSeconds(
                calls=stage.calls, busy_s=stage.busy_ns / 1e9, cpu_s=stage.cpu_ns / 1e9
            )
            for name, stage in recording.stages.items()
        },
        waits=waits,
    )


def _do_step(
    task: Task,
    piece: Piece,
    model: OpenModel,
    outputs: Outputs,
    gather: Gather | None,
    watch: Watched,
) -> ItemRecord | str:
    """Return the step's record, or why the item needs a single run ("" if that needs no note)."""
    if piece.do == "whole":
        return piece.why
    key = key_of(task.path, task.version, model.digest)
    folder = pieces.folder_of(outputs.place, task.name, key)
    if folder is None:
        return "its parts need a folder that all workers can write to"
    step = _Step(task, model, folder, key, lambda: watch(0))
    if piece.do == "plan":
        return step.plan(piece)
    if piece.do == "part":
        return step.detect(piece.number, watch)
    return step.join(outputs, gather)


class _Step:
    """``folder`` has the parts. ``alive`` is called per frame or packet, as a sign of life."""

    def __init__(
        self, task: Task, model: OpenModel, folder: Path, key: str, alive: Callable[[], None]
    ) -> None:
        self._task, self._model, self._folder, self._key = task, model, folder, key
        self._alive = alive
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def plan(self, piece: Piece) -> ItemRecord | str:
        from detector.batch.split import keep_plan, plan_parts, read_plan

        if look_at(self._task.path).version != self._task.version:
            return ""  # the source changed since it was listed
        parts = read_plan(self._folder, self._key)
        if not parts:
            shutil.rmtree(self._folder, ignore_errors=True)
            config, most, least_s = self._model.config, piece.most, piece.least_s
            try:
                plan = plan_parts(self._task.path, config, most, least_s=least_s, watch=self._alive)
            except DetectVideoError:
                return ""  # a single run reports what is wrong with the source
            if not plan.parts:
                return "" if plan.is_short else plan.why_whole
            parts = plan.parts
            keep_plan(self._folder, self._key, parts)
        pieces.remove_under_way(self._folder)
        return self._record(len(parts))

    def detect(self, number: int, watch: Watched) -> ItemRecord:
        """Process a part. If an earlier run did it already, the record has no frames."""
        from detector.batch.part import detect_part

        parts = self._read_plan()
        if number >= len(parts):
            raise SourceError(f"{self._task.path}: the plan of its parts is missing")
        if pieces.read_record(self._folder, number) is not None:
            return self._record(len(parts), ledger=Ledger())
        self._refuse_changed()
        under_way = pieces.begin_part(self._folder, number)
        try:
            result, run = detect_part(
                self._task.path,
                self._model.config,
                self._model.loaded_for(self._task.path),
                parts[number],
                under_way,
                watch,
            )
            if result.damaged:
                raise SourceError(f"{self._task.path}: is damaged, so it needs a single run")
            self._refuse_changed()
            record = self._record(len(parts), **_facts_of(run))
            with output_errors(self._folder):
                pieces.finish_part(self._folder, number, under_way, record)
        except BaseException:
            shutil.rmtree(under_way, ignore_errors=True)
            raise
        return record

    def join(self, outputs: Outputs, gather: Gather | None) -> ItemRecord | str:
        from detector.batch.join import NotExactError, join_parts

        name, path, config = self._task.name, self._task.path, self._model.config
        parts = self._read_plan()
        records = [pieces.read_record(self._folder, part.number) for part in parts]
        done = [record for record in records if record is not None]
        if not parts or len(done) < len(parts):
            return "some of its parts are missing"
        folders = [pieces.part_folder(self._folder, number) for number in range(len(parts))]
        scratch = outputs.begin(name)
        try:
            try:
                self._refuse_changed()
                paths = self._paths(scratch)
                joined = join_parts(path, config, parts, folders, paths, self._alive)
                self._refuse_changed()
            except (NotExactError, SourceError, UsageError) as error:
                pieces.drop(outputs.place, name)
                return str(error)
            own = self._record(len(parts))
            ledger = own.ledger
            for each in done:
                ledger = add_ledgers(ledger, each.ledger)
            record = replace(
                own,
                frames=joined.frames,
                detections=sum(joined.by_class.values()),
                seconds=own.seconds + sum(each.seconds for each in done),
                ledger=ledger,
                notes=joined.notes,
                classes=_by_name(joined.by_class, self._model),
                **_outputs(joined.outputs, scratch),
            )
            if gather is not None:
                gather(name, scratch / ROWS)
            outputs.commit(name, scratch, record)
        except BaseException:
            outputs.discard(name)
            raise
        pieces.drop(outputs.place, name)
        return own

    def _read_plan(self) -> tuple[Part, ...]:
        from detector.batch.split import read_plan

        return read_plan(self._folder, self._key)

    def _refuse_changed(self) -> None:
        if look_at(self._task.path).version != self._task.version:
            raise SourceError(f"{self._task.path}: changed while its parts were being read")

    def _paths(self, scratch: Path) -> dict[str, Path]:
        from detector.core.run.outputs import OutputPlan
        from detector.core.run.reading import SourceReading

        path, config = self._task.path, self._model.config
        output = replace(config.output, output=f"{scratch}{os.sep}", run_dir=None)
        with SourceReading.of(config).open(path) as source:
            return OutputPlan(output, [path], plain=True).paths(path, source.info)

    def _record(self, parts: int, **facts: Any) -> ItemRecord:
        """Return this step's record. ``facts`` replace its defaults, such as 0 frames."""
        task = self._task
        own = {
            "frames": 0,
            "detections": 0,
            "seconds": time.perf_counter() - self._started,
            "ledger": Ledger(cpu_s=time.process_time() - self._cpu),
        }
        about = ObjectInfo(look_at(task.path).size, task.version)
        done = Exit(code=EXIT_DONE, reason="done")
        return _record(task, self._model, about, exit=done, parts=parts, **{**own, **facts})
