"""One run of the command: every source through the loop, then its summary and session files.
Impossible runs are refused (``_resolve``) before anything is written."""

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
from detector.core.run.plan import Asked, RunPlan
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
    from detector.core.timeline import OffTimeline, Timeline
    from detector.core.types import Detections, Frame, SourceInfo


class Live(Protocol):
    """A display that reads ``progress`` and ``timeline`` at any time, from its own thread."""

    def start(
        self,
        info: SourceInfo,
        progress: Progress,
        timeline: Timeline | OffTimeline,
        frames: int | None,
    ) -> None: ...

    def stop(self) -> None: ...


class Watcher(Protocol):
    """Receives every detected frame in the writer's thread, drawn if ``wants_pictures`` is true."""

    def wants_pictures(self, camera: str) -> bool: ...

    def show(self, frame: Frame, detections: Detections) -> None: ...


@dataclass(slots=True)
class RunResult:
    """The result of a run. ``session``: its folder, None if no source was opened."""

    summary: Summary
    session: Path | None
    errors: list[DetectVideoError]
    unread: bool = False  # the reader of -o - has closed it
    told: bool = False  # each camera's last state line already reported what is wrong with it

    @property
    def exit_code(self) -> int:
        return self.summary.exit.code


@dataclass(frozen=True, slots=True)
class Hooks:
    loaded: Callable[[LoadedModel], None] | None = None  # called once warm; may replace the head
    source: Callable[[str], Source] | None = None  # opens a spec in its own way
    # called with each frame, after the sinks
    detected: Callable[[Frame, Detections], None] | None = None
    frame_times: bool = False  # whether those frames carry times, if the loop measures
    watcher: Watcher | None = None  # receives each frame after ``detected``, drawn if it needs that
    measured: bool = True  # whether auto uses what ``compare --use`` saved
    timed: bool = False  # whether it uses the default model's timing on this machine
    tuned: bool = True  # whether it uses what ``tune --use`` saved


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

    ``rows_to``: an open descriptor, to which -o - writes rows; None: -o - is refused. If its reader
    closes it and no other files are written, the run ends after the frames already read.
    ``building`` receives every step of a file that the engine must build first.

    Raises DetectVideoError for what ends everything before the first frame: options, model, engine,
    session folder. Errors of one source are in ``RunResult.errors`` and in the summary; the other
    sources go on, unless the engine failed. From the first source on, a signal lets frames already
    read finish, and the summary records it.
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
            stream = None if rows_to is None else _open_stream(rows_to, outputs, stop)
            folder = session.folder
            job = _RunJob(plan, outputs, session, folder, timer, stop, live, hooks, stream=stream)
            with closing_session(session):
                watch = DisturbanceMonitor()
                with plan.loop.library_threads():
                    runs = _run_sources(job, specs)
                with timer.phase("close"):
                    plan.loaded.close(runs)
                return _write_session(job, session, runs, command, watch)


def _resolve(
    specs: Sequence[str],
    config: Config,
    timer: PhaseTimer,
    hooks: Hooks,
    building: BuildProgress | None,
    rows_to: int | None,
) -> tuple[RunPlan, OutputPlan]:
    """Make the plan, and refuse impossible runs: cheap checks come before a model is loaded."""
    asked, ours = Asked.of(config), hooks.source is None
    check_memory(config.runtime.engine)
    if ours:
        _refuse_missing(specs)
    keep_inputs(config, specs)
    engine, streams = config.runtime.engine, rows_to is not None
    brought = asked.writing["brought"]
    outputs = OutputPlan(config.output, specs, engine=engine, streams=streams, brought=brought)
    if outputs.streamed == "video" and rows_to is not None and os.isatty(rows_to):
        raise UsageError(
            "--output -: a terminal cannot show a video; add | ffplay - or > out.mkv to the command"
        )
    if ours:
        outputs.check_sources(asked.drawing.blur)
    # OpenCV has its own OpenBLAS; the loop has at least a reader and a worker.
    check_threads(blas_threads() + (0 if asked.loop.sync else 2))
    if ours:
        outputs.check_permission()
    with timer.phase("import"):
        _import_ahead(specs, outputs, "sync" if asked.loop.sync else "overlapped")
    load = asked.load
    if asked.tiling.auto:
        from detector.core.run.first_look import load_after_look

        load = partial(load_after_look, asked, opens=hooks.source, looks_at=specs)
    plan = load(
        timer,
        # Labelled pictures are scored: only an explicit size counts for them.
        specs=specs if ours or asked.reading.longest else (),
        progress=building,
        measured=hooks.measured,
        timed=hooks.timed,
        kind=partial(asked.reading.kind_of, specs[0]) if hooks.tuned and ours else None,
        chosen=partial(_refuse_being_written, outputs, specs, config),
    )
    check_files(3)  # a source, the rows, and a file opened while both are open
    return plan, outputs


def _open_session(plan: RunPlan, outputs: OutputPlan, name: str) -> Session:
    from detector.core.session.store import Session

    session = Session.create(plan.writing["run_dir"], name, or_temporary=outputs.may_write())
    try:
        outputs.check()  # again: the session's files are not outputs
    except BaseException:
        session.discard()
        raise
    return session


def _import_ahead(specs: Sequence[str], outputs: OutputPlan, loop: str) -> None:
    """Import what sources, stages, loop and outputs need, so that no run's seconds include it."""
    modules = {
        f"detector.core.loop.{loop}",
        "detector.core.sinks.jsonl",  # of every session
        "detector.core.stages.annotate",
        "detector.core.stages.nms",
    }
    for spec in specs:
        with suppress(SourceError, UsageError):  # opening it reports the error
            source = sources.find_claiming(spec)
            modules.update(source.imports, outputs.imports(source.kind, spec))
    for module in sorted(modules):
        importlib.import_module(module)


def _open_stream(descriptor: int, outputs: OutputPlan, stop: Stop) -> RowStream | None:
    if outputs.streamed is None:
        return None
    from detector.core.sinks._stream import RowStream

    return RowStream(descriptor, (lambda: None) if outputs.beside_stream else stop.set)


def _refuse_being_written(
    outputs: OutputPlan, specs: Sequence[str], config: Config, network: Network, _: Config
) -> None:
    """Raise OutputError if another run is writing the same outputs, before the engine starts."""
    with suppress(OSError):  # the current folder was deleted: writing there reports it
        outputs.refuse_being_written(settings_of(config.as_dict(), specs[0], network.sha256))


def _refuse_missing(specs: Sequence[str]) -> None:
    """Raise SourceError if no source exists, UsageError if one can never be read. Opens none."""
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
    """Run one source through a loaded model, which stays open, and write into ``folder``.
    ``plain``: file names without source and engine. ``detected`` receives each frame. ``session``
    receives the rows of frames; the caller releases it."""
    output = replace(plan.output, output=f"{folder}{os.sep}", run_dir=None)
    outputs = OutputPlan(output, [spec], plain=plain, brought=plan.writing["brought"])
    if detected is not None:
        hooks = replace(hooks, detected=detected)
    job = _RunJob(plan, outputs, session, folder, PhaseTimer(), Stop(), None, hooks, False)
    return _run_sources(job, [spec])[0]


@contextmanager
def closing_session(session: Session) -> Iterator[None]:
    """Release the session's folder at the end. A bug's traceback is saved in it."""
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
    folder: Path  # for temporary files
    timer: PhaseTimer
    stop: Stop
    live: Live | None
    hooks: Hooks
    hashes: bool = True  # whether session.json has the sources' digests
    stream: RowStream | None = None  # with -o -


def _run_sources(job: _RunJob, specs: Sequence[str]) -> list[SourceRun]:
    from detector.core.session.outcome import SourceRun

    runs: list[SourceRun] = []
    for number, spec in enumerate(specs):
        timeline = job.plan.loop.timeline(job.plan.loaded.natives, folder=job.folder)
        run = SourceRun(_text_of(spec), timeline)  # documents hold plain text
        run.notes += filter(None, [sources.note_of(spec)])
        runs.append(run)
        with _held(job, spec) as held:
            try:
                _run_source(job, run, spec, number)
            except DetectVideoError as error:
                run.error = error
            # the same seconds that end-to-end FPS is computed from
            job.timer.seconds["run"] += run.run_s
            if held is not None and run.info is not None and job.hashes:
                with job.timer.phase("close"):
                    run.sha256 = held.sha256()
                run.notes += held.changes()
        if isinstance(run.error, EngineError) or job.stop.is_set():
            break
    return runs


def _text_of(spec: str) -> str:
    """Return the source for documents: plain text, addresses without secrets."""
    if not is_web(spec):
        return str(spec)
    from detector.core.sources._web import WebPlace

    return str(WebPlace(spec))


@contextmanager
def _held(job: _RunJob, spec: str) -> Iterator[HeldFile | StandardInput | None]:
    """Yield an object that knows the source's digest once it is read; None if there is none."""
    if spec != STANDARD_INPUT:
        with ExitStack() as stack:
            if is_web(spec):
                from detector.core.sources import _web

                stack.enter_context(_web.cut_when(job.stop.is_set))
            once = not job.hashes and kind_of(spec) == PICTURE  # it is decoded at once
            yield None if once else stack.enter_context(hold(spec))
        return
    from detector.core.sources._standard_input import standard_input

    standard_input().stopped = job.stop.is_set
    yield standard_input()


def _run_source(job: _RunJob, run: SourceRun, spec: str, number: int) -> None:
    from detector.core.timeline import READ, WRITE

    plan, clock = job.plan, RunClock()
    try:
        with run.timeline.book_threads(READ):
            opened = (job.hooks.source or partial(_open_source, job))(spec)
        with opened as source:
            run.info = source.info
            run.pixels = f"{source.pixels}: {why}" if (why := source.no_planes) else source.pixels
            settings = _settings(job, spec)
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
                    own = plan.open_rows(_own_rows(job.session, number), source.info)
                    sinks.insert(0, own)
                if job.stream is not None and job.outputs.streamed is not None:
                    streamed = plan.open_stream(job.stream, job.outputs.streamed, source.info)
                    sinks.insert(0, streamed)
                _drive_loop(job, run, source, sinks, own, number)
            except BaseException:
                for sink in sinks:  # a failure before the first frame leaves no partial file
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
        if job.session is None:
            return
        if own is not None and own.path.exists():
            job.session.adopt(own.path)
            own.path.unlink()
        elif "jsonl" in run.outputs:
            job.session.adopt(Path(run.outputs["jsonl"]))
    finally:
        clock.note(run)


def _open_source(job: _RunJob, spec: str) -> Source:
    """Open the source. An environment variable turns planes off, to measure what they gain."""
    pixels = os.environ.get("DETECT_VIDEO_PIXELS") or job.outputs.pixels(spec)

    @cache
    def reduction() -> Callable[[int, int], int] | None:
        is_seen = job.hooks.watcher is not None or job.outputs.shows(spec)
        return None if is_seen else job.plan.reduction()

    def reduce(width: int, height: int) -> int:  # called for pictures and MJPEG
        return 1 if (part := reduction()) is None else part(width, height)

    return job.plan.reading.open(spec, pixels, reduce=reduce)


def _settings(job: _RunJob, spec: str) -> str:
    """Return what a later run compares before it replaces these outputs; "" in our own folder."""
    if not job.hashes:
        return ""
    plan = job.plan
    return settings_of(plan.as_asked.as_dict(), spec, plan.network.sha256)


def _own_rows(session: Session, number: int) -> Path:
    """Return where the session's rows of a source are written if the user asked for none."""
    name = f"source-{number}"
    return session.claim(f"{name}.jsonl", f"{name}.partial.jsonl")


def _drive_loop(
    job: _RunJob, run: SourceRun, source: Source, sinks: list[Sink], own: Sink | None, number: int
) -> None:
    """Run the loop to its end and close the sinks, or abort them. ``own``: the session's sink."""
    from detector.core.loop.parts import Progress

    plan, live, hooks = job.plan, job.live, job.hooks
    progress = Progress(stop=job.stop)
    watcher = hooks.watcher
    watched = None if watcher is None else partial(watcher.wants_pictures, run.spec)

    def show(frame: Frame, detections: Detections) -> None:
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
            _end(job, run, sink, own, number, written=progress.written > 0)
    except BaseException:
        run.partial = [str(path) for sink in sinks if (path := sink.abort()) is not None]
        raise
    finally:
        if live is not None:
            live.stop()
        run.counts, run.decoder = source.counts, source.decoder
        run.notes += source.notes
        run.notes += plan.drawing.label_notes(plan.network.names, sinks, run.by_class)
        run.notes += _notes_of_spared(plan, run, sinks)
        if plan.loaded.shapes is not None and source.info.kind == "video":
            run.notes.append(f"{run.spec}: --rect: the input has the shape of the video already")


def _end(
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


def _notes_of_spared(plan: RunPlan, run: SourceRun, sinks: Sequence[Sink]) -> list[str]:
    """Return notes about frames without inference, and outputs that cannot mark them."""
    kinds = {sink.name for sink in sinks}
    found = []
    if run.reused and (still := plan.reading.still) is not None:
        what = f"--skip-still {still[0]}", run.reused, "repeat the last detections"
        found.append((what, kinds - {"jsonl", "csv"}))
    if run.coasted and (spared := plan.spared) is not None:
        what = spared.option, run.coasted, "have boxes moved by tracks"
        found.append((what, kinds & {"mot", "yolo"}))
    return [
        f"{option}: {count} of {run.written} frames ({count / run.written:.0%}) were not inferred "
        f"and {become}" + (f"; {', '.join(sorted(silent))} cannot mark them" if silent else "")
        for (option, count, become), silent in found
    ]


def _write_session(
    job: _RunJob,
    session: Session,
    runs: list[SourceRun],
    command: Sequence[str],
    watch: DisturbanceMonitor,
) -> RunResult:
    """Write summary and session files. If no source could be opened, the session is removed."""
    written = write_records(
        session,
        runs,
        job.plan,
        command,
        seconds=job.timer.seconds,
        stop_code=job.stop.exit_code,
        finish=watch.finish,
    )
    failed = [run.error for run in runs if run.error is not None]
    unread = job.stream is not None and not job.stream.is_read
    return RunResult(written.summary, written.folder, [*failed, *written.errors], unread)
