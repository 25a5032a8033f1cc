"""One run of the command: send every source through the loop, then write summary and session files.
``_resolve`` refuses impossible runs before anything is written."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from detector.core import sources
from detector.core.config.schema import Config
from detector.core.errors import LOGGED, DetectVideoError, EngineError, SourceError, UsageError
from detector.core.errors.guard import guarded
from detector.core.errors.holding import HeldFile, hold
from detector.core.run.disturbances import DisturbanceMonitor
from detector.core.run.environment import process_age_s
from detector.core.run.inputs import keep_inputs
from detector.core.run.limits import blas_threads, check_files, check_memory, check_threads
from detector.core.run.loading import LoadedModel, PhaseTimer
from detector.core.run.looping import RunClock
from detector.core.run.outputs import OutputPlan, mark_settings, session_name, settings_of
from detector.core.run.plan import PlanDraft, RunPlan
from detector.core.run.records import write_records
from detector.core.run.signals import Stop, stop_on_signals
from detector.core.sources._contents import PICTURE, kind_of
from detector.core.sources._forms import STANDARD_INPUT, is_web

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress
    from detector.core.loop.parts import Progress
    from detector.core.models.base import Network
    from detector.core.session.document import Summary
    from detector.core.session.outcome import SourceRun
    from detector.core.session.store import Session
    from detector.core.sinks._stream import RowStream
    from detector.core.sinks.base import Sink
    from detector.core.sources._standard_input import StandardInput
    from detector.core.sources.base import Source
    from detector.core.timeline.timeline import OffTimeline, Timeline
    from detector.core.types import Detections, Frame, SourceInfo


class Live(Protocol):
    """A display of a running source. It reads ``progress`` and ``timeline`` in its own thread."""

    def start(
        self,
        info: SourceInfo,
        progress: Progress,
        timeline: Timeline | OffTimeline,
        frames: int | None,
    ) -> None: ...

    def stop(self) -> None: ...


class Watcher(Protocol):
    """Gets every frame in the writer's thread, with boxes drawn if ``wants_pictures`` says so."""

    def wants_pictures(self, camera: str) -> bool: ...

    def show(self, frame: Frame, detections: Detections) -> None: ...


@dataclass(slots=True)
class RunResult:
    """The result of a run. ``session``: its folder, None if no source was opened."""

    summary: Summary
    session: Path | None
    errors: list[DetectVideoError]
    unread: bool = False  # whether the program that reads ``-o -`` has closed the pipe
    errors_shown: bool = False  # whether the errors of cameras have been printed already

    @property
    def exit_code(self) -> int:
        return self.summary.exit.code


@dataclass(frozen=True, slots=True)
class Hooks:
    loaded: Callable[[LoadedModel], None] | None = None  # called with the warm model
    source: Callable[[str], Source] | None = None  # opens a source
    # Called with each frame, after the sinks have written it.
    detected: Callable[[Frame, Detections], None] | None = None
    frame_times: bool = False  # whether ``detected`` gets frames with the times of their stages
    watcher: Watcher | None = None  # receives each frame after ``detected``
    measured: bool = True  # whether ``auto`` uses what ``compare --use`` saved
    timed: bool = False  # whether ``auto`` uses the model's timing on this machine
    tuned: bool = True  # whether ``auto`` uses what ``tune --use`` saved


def detect(
    specs: Sequence[str],
    config: Config,
    *,
    command: Sequence[str] = (),
    live: Live | None = None,
    hooks: Hooks = Hooks(),
    building: BuildProgress | None = None,
    rows_to: int | None = None,
    timer: PhaseTimer | None = None,
) -> RunResult:
    """Run every source in turn, and write its outputs and the session.

    ``rows_to``: an open file descriptor to which ``-o -`` writes; None refuses this option. If the
    reader closes the pipe, a run that writes no other files ends after the frames already read.
    ``building`` is called at every step of building the engine's file.

    Raises DetectVideoError for errors in options, model, engine or session folder, which are found
    before the first source is opened. Errors of one source are in ``RunResult.errors`` and in the
    summary. The run continues with the other sources, except after an error of the engine. After a
    signal, it finishes the frames already read, and the summary records the signal.
    """
    timer = timer or PhaseTimer()
    timer.seconds["import"] = process_age_s() or 0.0
    with guarded(), sources.keep_open(specs):
        plan, outputs = _resolve(specs, config, timer, hooks, building, rows_to)
        with plan.loaded, stop_on_signals() as stop:
            if hooks.loaded is not None:
                hooks.loaded(plan.loaded)
            name = session_name(specs[0], config.runtime.engine)
            session = _open_session(plan, outputs, name)
            stream = None
            if rows_to is not None and outputs.streamed is not None:
                from detector.core.sinks._stream import RowStream

                closed = (lambda: None) if outputs.beside_stream else stop.set
                stream = RowStream(rows_to, closed)
            folder = session.folder
            job = _RunJob(plan, outputs, session, folder, timer, stop, live, hooks, stream=stream)
            with closing_session(session):
                watch = DisturbanceMonitor()
                with plan.loop.library_threads():
                    runs = _run_sources(job, specs)
                with timer.phase("close"):
                    plan.loaded.close(runs)
                written = write_records(
                    session,
                    runs,
                    plan,
                    command,
                    seconds=timer.seconds,
                    stop_code=stop.exit_code,
                    finish=watch.finish,
                )
        failed = [run.error for run in runs if run.error is not None]
        unread = stream is not None and not stream.is_read
        return RunResult(written.summary, written.folder, [*failed, *written.errors], unread)


def _resolve(
    specs: Sequence[str],
    config: Config,
    timer: PhaseTimer,
    hooks: Hooks,
    building: BuildProgress | None,
    rows_to: int | None,
) -> tuple[RunPlan, OutputPlan]:
    """Make the plan, and refuse impossible runs. Cheap checks come before the model is loaded."""
    draft, default_sources = PlanDraft.of(config), hooks.source is None
    check_memory(config.runtime.engine)
    if default_sources:
        _refuse_missing(specs)
    keep_inputs(config, specs)
    engine, streams = config.runtime.engine, rows_to is not None
    added = draft.writing["added_sinks"]
    outputs = OutputPlan(config.output, specs, engine=engine, streams=streams, added_sinks=added)
    if outputs.streamed == "video" and rows_to is not None and os.isatty(rows_to):
        raise UsageError(
            '--output -: a terminal cannot show a video; end the command with "| ffplay -" or '
            '"> out.mkv"'
        )
    if default_sources:
        outputs.check_sources(draft.drawing.blur)
    # Count the threads of OpenCV's OpenBLAS, which start on import, and the loop's two threads.
    check_threads(blas_threads() + (0 if draft.loop.sync else 2))
    if default_sources:
        outputs.check_permission()
    with timer.phase("import"):
        _import_ahead(specs, outputs, "sync" if draft.loop.sync else "overlapped")

    def refuse_being_written(network: Network, _: Config) -> None:
        with suppress(OSError):  # if the current folder was deleted, writing will report it
            outputs.refuse_being_written(settings_of(config.as_dict(), specs[0], network.sha256))

    plan = draft.load(
        timer,
        # If a hook opens the sources, they decide the input's shape only if --size is one number.
        specs=specs if default_sources or draft.reading.longest else (),
        progress=building,
        measured=hooks.measured,
        timed=hooks.timed,
        kind=partial(draft.reading.kind_of, specs[0]) if hooks.tuned and default_sources else None,
        chosen=refuse_being_written,
    )
    check_files(3)  # a source, its rows, and another file at the same time
    return plan, outputs


def _open_session(plan: RunPlan, outputs: OutputPlan, name: str) -> Session:
    from detector.core.session.store import Session

    session = Session.create(plan.writing["run_dir"], name, or_temporary=outputs.may_write())
    try:
        outputs.check()  # check again: outputs must not replace files of the new session
    except BaseException:
        session.discard()
        raise
    return session


def _import_ahead(specs: Sequence[str], outputs: OutputPlan, loop: str) -> None:
    """Import what sources, stages, loop and outputs need, before the time of a run is measured."""
    modules = {
        f"detector.core.loop.{loop}",
        "detector.core.sinks.jsonl",  # used by every session
        "detector.core.stages.annotate",
        "detector.core.stages.nms",
    }
    for spec in specs:
        with suppress(SourceError, UsageError):  # opening the source will report the error
            source = sources.find_claiming(spec)
            modules.update(source.imports, outputs.imports(source.kind, spec))
    for module in sorted(modules):
        importlib.import_module(module)


def _refuse_missing(specs: Sequence[str]) -> None:
    """Raise UsageError if ``-`` is given more than once, and SourceError if no source exists."""
    if list(specs).count(STANDARD_INPUT) > 1:
        raise UsageError("-: standard input can be read only once; give - once")
    missing = []
    for spec in specs:
        try:
            sources.check(spec)
        except SourceError as error:
            missing.append(str(error))
    if missing and len(missing) == len(specs):
        raise SourceError("; ".join(missing))


def run_opened(
    spec: str,
    plan: RunPlan,
    folder: Path,
    hooks: Hooks = Hooks(),
    *,
    plain: bool = False,
    detected: Callable[[Frame, Detections], None] | None = None,
    session: Session | None = None,
) -> SourceRun:
    """Run one source with a loaded model, which stays open, and write into ``folder``. ``plain``:
    use file names that contain neither source nor engine. ``detected`` gets each frame. ``session``
    gets the frames' rows; the caller releases the session."""
    output = replace(plan.output, output=f"{folder}{os.sep}", run_dir=None)
    outputs = OutputPlan(output, [spec], plain=plain, added_sinks=plan.writing["added_sinks"])
    if detected is not None:
        hooks = replace(hooks, detected=detected)
    job = _RunJob(plan, outputs, session, folder, PhaseTimer(), Stop(), None, hooks, False)
    return _run_sources(job, [spec])[0]


@contextmanager
def closing_session(session: Session) -> Iterator[None]:
    """Release the session's folder after the block. If a bug ends the block, log the traceback."""
    try:
        yield
    except DetectVideoError:
        raise
    except Exception as error:
        if (log := session.log_error(traceback.format_exc())) is not None:
            error.add_note(f"{LOGGED}{log}")
        raise
    finally:
        session.release()


@dataclass(frozen=True, slots=True)
class _RunJob:
    plan: RunPlan
    outputs: OutputPlan
    session: Session | None
    folder: Path  # folder of temporary files
    timer: PhaseTimer
    stop: Stop
    live: Live | None
    hooks: Hooks
    hashes: bool = True  # whether session.json has the sources' digests
    stream: RowStream | None = None  # the stream of ``-o -``


def _run_sources(job: _RunJob, specs: Sequence[str]) -> list[SourceRun]:
    from detector.core.session.outcome import SourceRun

    runs: list[SourceRun] = []
    for number, spec in enumerate(specs):
        timeline = job.plan.loop.timeline(job.plan.loaded.natives, folder=job.folder)
        run = SourceRun(_plain_text(spec), timeline)
        run.notes += filter(None, [sources.note_of(spec)])
        runs.append(run)
        with _hold_source(job, spec) as held:
            try:
                _run_source(job, run, spec, number)
            except DetectVideoError as error:
                run.error = error
            job.timer.seconds["run"] += run.run_s
            if held is not None and run.info is not None and job.hashes:
                with job.timer.phase("close"):
                    run.sha256 = held.sha256()
                run.notes += held.changes()
        if isinstance(run.error, EngineError) or job.stop.is_set():
            break
    return runs


def _plain_text(spec: str) -> str:
    """Return the source as plain text for documents, without the secrets of addresses."""
    if not is_web(spec):
        return str(spec)
    from detector.core.sources._web import WebPlace

    return str(WebPlace(spec))


@contextmanager
def _hold_source(job: _RunJob, spec: str) -> Iterator[HeldFile | StandardInput | None]:
    """Hold the source open. Yield an object that can compute the source's digest, or None."""
    if spec != STANDARD_INPUT:
        with ExitStack() as stack:
            if is_web(spec):
                from detector.core.sources import _web

                stack.enter_context(_web.cut_when(job.stop.is_set))
            # A run opens a picture only once, so it is held only if its digest is wanted.
            is_held = job.hashes or kind_of(spec) != PICTURE
            yield stack.enter_context(hold(spec)) if is_held else None
        return
    from detector.core.sources._standard_input import standard_input

    standard_input().stopped = job.stop.is_set
    yield standard_input()


def _run_source(job: _RunJob, run: SourceRun, spec: str, number: int) -> None:
    from detector.core.timeline.spans import READ, WRITE

    plan, clock, settings = job.plan, RunClock(), ""
    try:
        with run.timeline.book_threads(READ):
            opened = (job.hooks.source or partial(_open_source, job))(spec)
        with opened as source:
            run.info = source.info
            run.pixels = ": ".join(filter(None, (source.pixels, source.why_no_planes)))
            if job.hashes:  # otherwise ``paths`` gets "" and may replace outputs of any earlier run
                settings = settings_of(plan.as_asked.as_dict(), spec, plan.network.sha256)
            paths = job.outputs.paths(spec, source.info, settings)
            replaced = [path.name for path in paths.values() if os.path.lexists(path)]
            if job.session is not None:
                job.session.begin()
            with run.timeline.book_threads(WRITE):
                sinks = plan.open_sinks(paths, source.info)
            own = None
            try:
                misses_rows = "jsonl" not in paths or plan.writing["only_detections"]
                if job.session is not None and misses_rows:
                    names = f"source-{number}.jsonl", f"source-{number}.partial.jsonl"
                    own = plan.open_rows(job.session.claim(*names), source.info)
                    sinks.insert(0, own)
                if job.stream is not None and job.outputs.streamed is not None:
                    streamed = plan.open_stream(job.stream, job.outputs.streamed, source.info)
                    sinks.insert(0, streamed)
                _drive_loop(job, run, source, sinks, own, number)
            except BaseException:
                for sink in sinks:  # leave no partial file if the run fails before a frame
                    sink.abort()
                raise
        if replaced and settings:
            which = "" if len(replaced) == len(paths) else f": {', '.join(replaced)}"
            run.notes.append(f"replaced outputs of an earlier run{which}")
        extra = [path for sink in sinks for path in sink.beside]
        for path in [*map(Path, run.outputs.values()), *extra] if settings else ():
            mark_settings(path, settings)
        if job.stream is not None and not job.stream.is_read:
            run.notes.append("the reader of standard output closed it before the end")
        if job.session is not None:
            _save_rows(job.session, run, own)
    finally:
        clock.note(run)


def _save_rows(session: Session, run: SourceRun, own: Sink | None) -> None:
    """Append a source's rows to the session, from the sink ``own`` or from the JSONL output."""
    if own is not None and own.path.exists():
        session.adopt(own.path)
        own.path.unlink()
    elif "jsonl" in run.outputs:
        session.adopt(Path(run.outputs["jsonl"]))


def _open_source(job: _RunJob, spec: str) -> Source:
    """Open the source. DETECT_VIDEO_PIXELS=bgr turns YUV planes off, to measure what they save."""
    pixels = os.environ.get("DETECT_VIDEO_PIXELS") or job.outputs.pixels(spec)

    @cache
    def reduction() -> Callable[[int, int], int] | None:
        is_seen = job.hooks.watcher is not None or job.outputs.shows(spec)
        return None if is_seen else job.plan.reduction()

    def reduce(width: int, height: int) -> int:  # called for pictures and MJPEG
        return 1 if (part := reduction()) is None else part(width, height)

    return job.plan.reading.open(spec, pixels, reduce=reduce)


def _drive_loop(
    job: _RunJob, run: SourceRun, source: Source, sinks: list[Sink], own: Sink | None, number: int
) -> None:
    """Run the loop and close the sinks, or abort them on an error. ``own``: the session's sink."""
    from detector.core.loop.parts import Progress

    plan, live, hooks = job.plan, job.live, job.hooks
    progress = Progress(stop=job.stop)
    watcher = hooks.watcher
    watched = None if watcher is None else partial(watcher.wants_pictures, run.spec)
    ratios = set[float]()  # width / height of the frames

    def show(frame: Frame, detections: Detections) -> None:
        ratios.add(round(frame.size[1] / frame.size[0], 1))
        if hooks.detected is not None:
            hooks.detected(frame, detections)
        if watcher is not None:
            watcher.show(frame, detections)

    parts = plan.parts(source, sinks, watched)
    parts.timed = plan.loop.instruments and (hooks.frame_times or plan.writing["save_times"])
    if live is not None:
        live.start(source.info, progress, run.timeline, plan.reading.frames_ahead(source.info))
    try:
        plan.loop.drive(parts, run, progress, show)
        if not progress.written and not job.stop.is_set():
            raise SourceError(f"{run.spec}: no frame could be read")
        for sink in sinks:
            _close_sink(job, run, sink, own, number, written=progress.written > 0)
    except BaseException:
        run.partial = [str(path) for sink in sinks if (path := sink.abort()) is not None]
        raise
    finally:
        if live is not None:
            live.stop()
        run.counts, run.decoder = source.counts, source.decoder
        run.notes += source.notes
        run.notes += plan.drawing.label_notes(plan.network.names, sinks, run.by_class)
        run.notes += _describe_skipped(plan, run, sinks)
        width, height = plan.network.input.width, plan.network.input.height
        is_shaped = plan.reading.longest and plan.loaded.shapes is None and width != height
        if len(ratios) > 1 and is_shaped and hooks.source is None:
            why = f"lose pixels: the input {width}x{height} fits the first one; use --rect"
            run.notes.append(f"{run.spec}: pictures of other shapes {why}")
        if plan.loaded.shapes is not None and source.info.kind == "video":
            run.notes.append(f"{run.spec}: --rect: the input has the shape of the video already")


def _close_sink(
    job: _RunJob, run: SourceRun, sink: Sink, own: Sink | None, number: int, *, written: bool
) -> None:
    """Close a sink, or abort it if the run was interrupted before the first frame."""
    if not written:
        sink.abort()
    elif (path := sink.close()) is not None and sink is not own:
        run.outputs[sink.name] = str(path)
    if written and sink.for_session and job.session is not None:
        job.session.write_bytes(f"{sink.name}/{number}.jsonl", sink.for_session)
    run.notes += sink.notes


def _describe_skipped(plan: RunPlan, run: SourceRun, sinks: Sequence[Sink]) -> list[str]:
    """Return notes on frames without inference, and on outputs that cannot mark such frames."""
    kinds = {sink.name for sink in sinks}
    skipped = []
    if run.reused and (still := plan.reading.still) is not None:
        what = f"--skip-still {still[0]}", run.reused, "repeat the last detections"
        skipped.append((what, kinds - {"jsonl", "csv"}))
    if run.coasted and (option := plan.schedule_option) is not None:
        what = option, run.coasted, "have boxes moved by tracks"
        skipped.append((what, kinds & {"mot", "yolo"}))
    return [
        f"{option}: {count} of {run.written} frames ({count / run.written:.0%}) were not inferred "
        f"and {result}" + (f"; {', '.join(sorted(unmarked))} cannot mark them" if unmarked else "")
        for (option, count, result), unmarked in skipped
    ]
