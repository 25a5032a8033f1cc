"""Config -> source, network, engine, sinks; runs the loop, returns the session. Here names become objects."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from detector.config.schema import Config
from detector.errors import DetectVideoError, EngineError, OutputError, SourceError
from detector.run.environment import cores, environment, process_age_s, sha256_of
from detector.run.outputs import OutputPlan, session_name
from detector.run.signals import Stop, stop_on_signals
from detector.run.wire import (
    Machine,
    Phases,
    close_sinks,
    frames_of,
    loop_shape,
    make_parts,
    open_machine,
    open_sinks,
    picture_of,
    sink_options,
)

if TYPE_CHECKING:
    from detector.engines.base import BuildProgress
    from detector.loop.parts import Progress
    from detector.session.document import SessionDocument, Summary
    from detector.session.outcome import RunFacts, SourceRun
    from detector.session.store import Session
    from detector.sinks.base import Sink
    from detector.sources.base import Source
    from detector.timeline import OffTimeline, Timeline
    from detector.types import Detections, Frame, SourceInfo


class Live(Protocol):
    """Somebody who watches a run: looks at ``progress`` and ``timeline`` whenever it likes, from its own thread."""

    def start(
        self,
        info: SourceInfo,
        progress: Progress,
        timeline: Timeline | OffTimeline,
        frames: int | None,
    ) -> None: ...

    def stop(self) -> None: ...


@dataclass(slots=True)
class Result:
    """``summary`` as in summary.json. ``session``: its folder; None where no source could be opened."""

    summary: Summary
    session: Path | None
    errors: list[DetectVideoError]

    @property
    def exit_code(self) -> int:
        return self.summary.exit.code


@dataclass(frozen=True, slots=True)
class Hooks:
    """What another command changes of a run, and sees of it; nothing where they are None."""

    machine: Callable[[Machine], None] | None = (
        None  # called once it is warm; may put another head on its network
    )
    source: Callable[[str], Source] | None = None  # opens a spec in its own way
    detected: Callable[[Frame, Detections], None] | None = None  # each frame, after the sinks


def detect(
    specs: Sequence[str],
    config: Config,
    *,
    command: Sequence[str] = (),
    live: Live | None = None,
    hooks: Hooks = Hooks(),
    building: BuildProgress | None = None,
) -> Result:
    """Runs every source in turn; writes outputs and session. ``building`` is told of an engine's file that must be
    built first; a signal ends that build.

    Raises DetectVideoError for what ends everything before the first frame (options, model, engine, session folder).
    What happens to one source is in ``Result.errors`` and the summary; the others go on, unless the engine failed.
    """
    phases = Phases()
    phases.seconds["import"] = process_age_s() or 0.0
    with stop_on_signals() as stop:
        machine = open_machine(
            config,
            phases,
            picture=picture_of(specs, config),
            progress=_unless_stopped(stop, building),
        )
        with machine.engine as engine:
            if hooks.machine is not None:
                hooks.machine(machine)
            from detector.session.store import Session

            plan = OutputPlan(config.output, engine.name, specs)
            session = Session.create(config.output.run_dir, session_name(specs[0], engine.name))
            job = _Job(config, machine, plan, session, stop, live, hooks)
            try:
                runs = _run_sources(job, specs, phases)
            except Exception:
                session.path("error.log").write_text(traceback.format_exc(), encoding="utf-8")
                raise
            with phases("close"):
                engine.close()
            return _conclude(job, runs, phases, command)


def _unless_stopped(stop: Stop, building: BuildProgress | None) -> BuildProgress:
    def progress(doing: str, done: int, of: int) -> bool:
        return (building is None or building(doing, done, of)) and not stop.is_set()

    return progress


def run_opened(spec: str, config: Config, machine: Machine, folder: Path) -> SourceRun:
    """One source through a machine that is open already: the same loop and the same sinks as ``detect``, with
    everything written into ``folder``. The machine stays open; what happened to the source is in ``error``."""
    from detector.session.store import Session

    output = replace(config.output, output=f"{folder}{os.sep}", run_dir=None)
    plan = OutputPlan(output, machine.engine.name, [spec])
    job = _Job(
        config, machine, plan, Session.create(str(folder / "session"), ""), Stop(), None, Hooks()
    )
    return _run_sources(job, [spec], Phases())[0]


@dataclass(frozen=True, slots=True)
class _Job:
    """What all sources of a run share."""

    config: Config
    machine: Machine
    plan: OutputPlan
    session: Session
    stop: Stop
    live: Live | None
    hooks: Hooks

    def open_source(self, spec: str) -> Source:
        from detector import sources

        if self.hooks.source is not None:
            return self.hooks.source(spec)
        options = self.config.input
        return sources.open(
            spec, decoder=options.decoder, stride=options.stride, frames=options.frames
        )


def _conclude(job: _Job, runs: list[SourceRun], phases: Phases, command: Sequence[str]) -> Result:
    """Summary and session files. A session of which no source could be opened is taken back."""
    from detector.analysis.summary import summarize
    from detector.session.codec import from_builtins
    from detector.session.document import Environment
    from detector.session.outcome import exit_of

    failed = [run.error for run in runs if run.error is not None]
    unwritten: list[DetectVideoError] = []
    opened = any(run.info is not None for run in runs)
    with phases("close"):
        complete = _session_facts(job, runs, command, unwritten) if opened else None
    summary = summarize(_facts(job), runs, phases.seconds, job.stop.exit_code)
    if complete is None:
        job.session.discard()
        return Result(summary, None, failed)
    summary = replace(summary, session=str(job.session.folder))
    document = complete(
        summary, environment=from_builtins(environment(), Environment, "the environment")
    )
    for name, content in (("summary.json", summary), ("session.json", document)):
        with _kept_for_later(unwritten):
            job.session.write_json(name, content)
    if unwritten:
        summary = replace(summary, exit=exit_of(runs, job.stop.exit_code, unwritten))
    return Result(summary, job.session.folder, [*failed, *unwritten])


def _session_facts(
    job: _Job, runs: list[SourceRun], command: Sequence[str], unwritten: list[DetectVideoError]
) -> Callable[..., SessionDocument]:
    """Writes the spans and gathers what session.json holds beside the summary. Returns
    ``session_document``, which lacks the summary and the environment only."""
    from detector.analysis.summary import session_document
    from detector.session.document import Clocks, SpanCounts

    spans = SpanCounts()
    with _kept_for_later(unwritten):
        spans = job.session.write_spans([run.timeline for run in runs])
    return partial(
        session_document,
        config=job.config.as_dict(),
        command=command,
        spans=spans,
        clocks=Clocks(perf_counter_ns=time.perf_counter_ns(), unix_ns=time.time_ns()),
        loop=[run.loop for run in runs],
        clip_sha256={run.spec: sha256_of(run.spec) for run in runs},
        model_sha256=job.machine.network.sha256,
    )


@contextmanager
def _kept_for_later(errors: list[DetectVideoError]) -> Iterator[None]:
    """A session that cannot be written must not hide what happened in the run."""
    try:
        yield
    except OutputError as error:
        errors.append(error)


def _facts(job: _Job) -> RunFacts:
    from detector.session.outcome import RunFacts

    network, engine = job.machine.network, job.machine.engine
    return RunFacts(
        model=network.name,
        family=network.family,
        engine=engine.name,
        engine_reason=job.machine.engine_reason,
        precision=engine.precision,
        batch=network.batch,
        model_input=(network.input.height, network.input.width),
        class_names=network.names,
        random_weights=network.random_seed,
        threads=engine.threads,
        concurrency=engine.concurrency,
        cores=cores(),
        sync=job.config.loop.sync,
        notes=job.machine.notes,
        preset=job.config.output.preset,
        layers=job.machine.layers,
    )


def _run_sources(job: _Job, specs: Sequence[str], phases: Phases) -> list[SourceRun]:
    from detector.session.outcome import SourceRun
    from detector.timeline import OffTimeline, Timeline

    runs: list[SourceRun] = []
    loop, natives = job.config.loop, job.machine.natives
    cpu_clock = time.process_time_ns if loop.sync else time.thread_time_ns
    for number, spec in enumerate(specs):
        timeline = (
            Timeline(cpu_clock=cpu_clock, nvtx=loop.nvtx, natives=natives)
            if loop.instruments
            else OffTimeline()
        )
        run = SourceRun(spec, timeline)
        runs.append(run)
        try:
            _run_source(job, run, job.session.path(f"source-{number}.jsonl"))
        except DetectVideoError as error:
            run.error = error
        phases.seconds["run"] += run.run_s  # the very seconds that end-to-end FPS are of
        if isinstance(run.error, EngineError) or job.stop.is_set():
            break
    return runs


def _run_source(job: _Job, run: SourceRun, own_rows: Path) -> None:
    """One source from open to the last sink's close. ``own_rows``: where rows go that the user did not ask for."""
    from detector.timeline import READ, WRITE

    started, cpu, main_cpu = time.perf_counter(), time.process_time(), time.thread_time()
    try:
        with run.timeline.born(READ):
            opened = job.open_source(run.spec)
        with opened as source:
            run.info = source.info
            paths = job.plan.paths(run.spec, source.info)
            named = paths if "jsonl" in paths else {"jsonl": own_rows, **paths}
            with run.timeline.born(WRITE):
                sinks = open_sinks(named, source.info, sink_options(job.config, job.machine))
            _pump(job, run, source, sinks)
        if "jsonl" in run.outputs:
            job.session.adopt(Path(run.outputs["jsonl"]))
            if "jsonl" not in paths:
                Path(run.outputs.pop("jsonl")).unlink()
    finally:
        run.run_s = time.perf_counter() - started
        run.process_cpu_s = time.process_time() - cpu
        run.main_thread_cpu_s = time.thread_time() - main_cpu


def _pump(job: _Job, run: SourceRun, source: Source, sinks: list[Sink]) -> None:
    """Drives the loop to its end and closes the sinks, or aborts them."""
    from detector.loop.parts import Progress

    config, live = job.config, job.live
    progress = Progress(stop=job.stop)
    parts = make_parts(config, job.machine, source, sinks)
    run.loop = loop_shape(parts, config)
    # So that an nsys recording says of itself what its waits mean.
    shape = "loop " + " ".join(f"{name}={value:d}" for name, value in run.loop.items())
    if live is not None:
        live.start(source.info, progress, run.timeline, config.input.frames)
    try:
        with run.timeline.run(shape):
            for frame, detections in frames_of(parts, config, run.timeline, progress):
                run.by_class.update(detections.class_ids.tolist())
                run.cut += detections.cut
                if job.hooks.detected is not None:
                    job.hooks.detected(frame, detections)
                if progress.written == 1:
                    run.timeline.mark()
            run.timeline.mark()
        if not progress.written and not job.stop.is_set():
            raise SourceError(f"{run.spec}: no frame could be read")
        close_sinks(sinks, run, progress)
    except BaseException:
        run.partial = [str(path) for sink in sinks if (path := sink.abort()) is not None]
        raise
    finally:
        if live is not None:
            live.stop()
        run.read, run.written, run.device_ms = progress.read, progress.written, progress.device_ms
        counts = source.counts
        run.bad, run.corrupt, run.skipped = counts.bad, counts.corrupt, counts.skipped
        run.ended_early, run.decoder = source.ended_early, source.decoder
        run.notes += source.notes
