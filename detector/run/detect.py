"""One run of the command: every source through the loop, then its summary and session files.

``detect`` is the one function. It takes a configuration that is resolved already, has wire.py make
the objects, drives the loop, and keeps what happened to one source from ending the others.
"""

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
    LoadedModel,
    PhaseTimer,
    first_picture_size,
    load_model,
    open_sinks,
    open_source,
    run_loop,
    wire_loop,
)

if TYPE_CHECKING:
    from detector.engines.base import BuildProgress
    from detector.loop.parts import Parts, Progress
    from detector.session.document import LoopSizes, SessionDocument, Summary
    from detector.session.outcome import RunFacts, SourceRun
    from detector.session.store import Session
    from detector.sinks.base import Sink
    from detector.sources.base import Source
    from detector.timeline import OffTimeline, Timeline
    from detector.types import Detections, Frame, SourceInfo


class Live(Protocol):
    """Watches a run: reads ``progress`` and ``timeline`` at will, from a thread of its own."""

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
    """``summary`` as in summary.json; ``session``: its folder, None where no source was opened."""

    summary: Summary
    session: Path | None
    errors: list[DetectVideoError]

    @property
    def exit_code(self) -> int:
        return self.summary.exit.code


@dataclass(frozen=True, slots=True)
class Hooks:
    """What another command changes about a run, and sees of it. None changes nothing."""

    loaded: Callable[[LoadedModel], None] | None = None  # once warm; may put another head on it
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
    """Runs every source in turn and writes its outputs and the session.

    ``building`` is told of every step of a file that the engine must build first; a signal ends
    that build.

    Raises DetectVideoError for what ends everything before the first frame: options, model, engine,
    session folder. What happens to one source stands in ``Result.errors`` and in the summary; the
    other sources go on, unless the engine failed.
    """

    def go_on_building(doing: str, done: int, of: int) -> bool:
        return (building is None or building(doing, done, of)) and not stop.is_set()

    timer = PhaseTimer()
    timer.seconds["import"] = process_age_s() or 0.0
    with stop_on_signals() as stop:
        picture = first_picture_size(specs, config)
        loaded = load_model(config, timer, picture=picture, progress=go_on_building)
        with loaded.engine as engine:
            if hooks.loaded is not None:
                hooks.loaded(loaded)
            from detector.session.store import Session

            plan = OutputPlan(config.output, engine.name, specs)
            session = Session.create(config.output.run_dir, session_name(specs[0], engine.name))
            job = _Job(config, loaded, plan, session, timer, stop, live, hooks)
            try:
                runs = _run_sources(job, specs)
            except Exception:
                session.path("error.log").write_text(traceback.format_exc(), encoding="utf-8")
                raise
            with timer.phase("close"):
                engine.close()
            return _write_session(job, runs, command)


def run_opened(spec: str, config: Config, loaded: LoadedModel, folder: Path) -> SourceRun:
    """One source through a model that is loaded already: the loop and the sinks of ``detect``.

    Everything is written into ``folder``. The model stays open. What happened to the source is in
    ``error``.
    """
    from detector.session.store import Session

    output = replace(config.output, output=f"{folder}{os.sep}", run_dir=None)
    plan = OutputPlan(output, loaded.engine.name, [spec])
    session = Session.create(str(folder / "session"), "")
    job = _Job(config, loaded, plan, session, PhaseTimer(), Stop(), None, Hooks())
    return _run_sources(job, [spec])[0]


@dataclass(frozen=True, slots=True)
class _Job:
    """What all sources of a run share."""

    config: Config
    loaded: LoadedModel
    plan: OutputPlan
    session: Session
    timer: PhaseTimer
    stop: Stop
    live: Live | None
    hooks: Hooks


def _run_sources(job: _Job, specs: Sequence[str]) -> list[SourceRun]:
    from detector.session.outcome import SourceRun
    from detector.timeline import OffTimeline, Timeline

    runs: list[SourceRun] = []
    loop, natives = job.config.loop, job.loaded.natives
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
        job.timer.seconds["run"] += run.run_s  # the very seconds that end-to-end FPS are of
        if isinstance(run.error, EngineError) or job.stop.is_set():
            break
    return runs


def _run_source(job: _Job, run: SourceRun, own_rows: Path) -> None:
    """One source, from opening it to closing its last sink.

    ``own_rows``: where the session's rows are written when the user did not ask for any.
    """
    from detector.timeline import READ, WRITE

    started, cpu, main_cpu = time.perf_counter(), time.process_time(), time.thread_time()
    try:
        with run.timeline.born(READ):
            own_way = job.hooks.source
            opened = own_way(run.spec) if own_way else open_source(run.spec, job.config)
        with opened as source:
            run.info = source.info
            paths = job.plan.paths(run.spec, source.info)
            named = paths if "jsonl" in paths else {"jsonl": own_rows, **paths}
            with run.timeline.born(WRITE):
                sinks = open_sinks(named, source.info, job.config, job.loaded)
            _drive_loop(job, run, source, sinks)
        if "jsonl" in run.outputs:
            job.session.adopt(Path(run.outputs["jsonl"]))
            if "jsonl" not in paths:
                Path(run.outputs.pop("jsonl")).unlink()
    finally:
        run.run_s = time.perf_counter() - started
        run.process_cpu_s = time.process_time() - cpu
        run.main_thread_cpu_s = time.thread_time() - main_cpu


def _drive_loop(job: _Job, run: SourceRun, source: Source, sinks: list[Sink]) -> None:
    """Drives the loop to its end and closes the sinks, or aborts them."""
    from detector.loop.parts import Progress

    config, live = job.config, job.live
    progress = Progress(stop=job.stop)
    parts = wire_loop(config, job.loaded, source, sinks)
    run.loop = loop_bounds(parts, config)
    # The range carries these numbers, so that an nsys recording says by itself what its waits mean.
    label = "loop " + " ".join(f"{name}={value:d}" for name, value in run.loop.items())
    if live is not None:
        live.start(source.info, progress, run.timeline, config.input.frames)
    try:
        with run.timeline.run(label):
            for frame, detections in run_loop(parts, config, run.timeline, progress):
                run.by_class.update(detections.class_ids.tolist())
                run.cut += detections.cut
                if job.hooks.detected is not None:
                    job.hooks.detected(frame, detections)
                if progress.written == 1:
                    run.timeline.mark()
            run.timeline.mark()
        if not progress.written and not job.stop.is_set():
            raise SourceError(f"{run.spec}: no frame could be read")
        for sink in sinks:
            if progress.written:
                run.outputs[sink.name] = str(sink.close())
            else:
                sink.abort()  # interrupted before the first frame: there is nothing to finish
            run.notes += sink.notes
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


def loop_bounds(parts: Parts, config: Config) -> LoopSizes:
    """What limits the loop: requests, pictures and queue places. Whoever replays it needs these."""
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


def _write_session(job: _Job, runs: list[SourceRun], command: Sequence[str]) -> Result:
    """Writes summary and session files. Where no source could be opened, the session is removed."""
    from detector.analysis.summary import summarize
    from detector.session.codec import from_builtins
    from detector.session.document import Environment
    from detector.session.outcome import exit_of

    failed = [run.error for run in runs if run.error is not None]
    unwritten: list[DetectVideoError] = []
    opened = any(run.info is not None for run in runs)
    with job.timer.phase("close"):
        complete = _write_spans(job, runs, command, unwritten) if opened else None
    summary = summarize(_run_facts(job), runs, job.timer.seconds, job.stop.exit_code)
    if complete is None:
        job.session.discard()
        return Result(summary, None, failed)
    summary = replace(summary, session=str(job.session.folder))
    document = complete(
        summary, environment=from_builtins(environment(), Environment, "the environment")
    )
    for name, content in (("summary.json", summary), ("session.json", document)):
        with _output_errors_into(unwritten):
            job.session.write_json(name, content)
    if unwritten:
        summary = replace(summary, exit=exit_of(runs, job.stop.exit_code, unwritten))
    return Result(summary, job.session.folder, [*failed, *unwritten])


def _write_spans(
    job: _Job, runs: list[SourceRun], command: Sequence[str], unwritten: list[DetectVideoError]
) -> Callable[..., SessionDocument]:
    """Writes the spans. Returns ``session_document`` without its summary and environment."""
    from detector.analysis.summary import session_document
    from detector.session.document import Clocks, SpanCounts

    spans = SpanCounts()
    with _output_errors_into(unwritten):
        spans = job.session.write_spans([run.timeline for run in runs])
    return partial(
        session_document,
        config=job.config.as_dict(),
        command=command,
        spans=spans,
        # Both clocks at one moment: spans use the first, traces of other programs the second.
        clocks=Clocks(perf_counter_ns=time.perf_counter_ns(), unix_ns=time.time_ns()),
        loop=[run.loop for run in runs],
        clip_sha256={run.spec: sha256_of(run.spec) for run in runs},
        model_sha256=job.loaded.network.sha256,
    )


@contextmanager
def _output_errors_into(errors: list[DetectVideoError]) -> Iterator[None]:
    """Keeps an OutputError for later: an unwritable session must not hide what the run found."""
    try:
        yield
    except OutputError as error:
        errors.append(error)


def _run_facts(job: _Job) -> RunFacts:
    from detector.session.outcome import RunFacts

    network, engine = job.loaded.network, job.loaded.engine
    return RunFacts(
        model=network.name,
        family=network.family,
        engine=engine.name,
        engine_reason=job.loaded.engine_reason,
        precision=engine.precision,
        batch=network.batch,
        model_input=(network.input.height, network.input.width),
        class_names=network.names,
        random_weights=network.random_seed,
        threads=engine.threads,
        concurrency=engine.concurrency,
        cores=cores(),
        sync=job.config.loop.sync,
        notes=job.loaded.notes,
        preset=job.config.output.preset,
        layers=job.loaded.layers,
    )
