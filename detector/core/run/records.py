"""The records of a run: summary.json, session.json, spans.npz."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from detector.core.errors import DetectVideoError, OutputError
from detector.core.errors.machine import usable_cores
from detector.core.run.environment import environment

if TYPE_CHECKING:
    from detector.core.run.plan import RunPlan
    from detector.core.session.document import SessionDocument, Summary
    from detector.core.session.outcome import RunSettings, SourceRun
    from detector.core.session.store import Session


@dataclass(slots=True)
class Written:
    """Records of a run. ``folder``: None if no source opened. ``errors``: unwritten files."""

    summary: Summary
    folder: Path | None
    errors: list[DetectVideoError]


def write_records(
    session: Session,
    runs: list[SourceRun],
    plan: RunPlan,
    command: Sequence[str],
    *,
    seconds: dict[str, float],
    stop_code: int | None,
    finish: Callable[[Summary], Summary] = lambda summary: summary,
) -> Written:
    """Write summary and session files; remove the session if no source opened.

    ``seconds``: of each phase. ``stop_code``: if interrupted. ``finish`` adds to the summary.
    """
    from detector.core.analysis.summary import summarize
    from detector.core.session.codec import from_builtins
    from detector.core.session.document import Environment
    from detector.core.session.outcome import exit_of

    unwritten: list[DetectVideoError] = []
    opened = any(run.info is not None for run in runs)
    if opened:
        session.begin()
    start = time.perf_counter()
    complete = None
    if opened:
        complete = _write_spans(session, runs, plan, command, unwritten)
    seconds["close"] += time.perf_counter() - start
    facts = _run_facts(plan, session.notes)
    summary = finish(summarize(facts, runs, seconds, stop_code))
    if complete is None:
        session.discard()
        return Written(summary, None, [])
    summary = replace(summary, session=str(session.folder))
    with _output_errors_into(unwritten):
        session.finish_rows()
    document = complete(
        summary, environment=from_builtins(environment(), Environment, "the environment")
    )
    for name, content in (("summary.json", summary), ("session.json", document)):
        with _output_errors_into(unwritten):
            session.write_json(name, content)
    if unwritten:
        summary = replace(summary, exit=exit_of(runs, stop_code, unwritten))
    return Written(summary, session.folder, unwritten)


def _write_spans(
    session: Session,
    runs: list[SourceRun],
    plan: RunPlan,
    command: Sequence[str],
    unwritten: list[DetectVideoError],
) -> Callable[..., SessionDocument]:
    from detector.core.analysis.summary import session_document
    from detector.core.session.document import Clocks, SpanCounts

    spans = SpanCounts()
    with _output_errors_into(unwritten):
        spans = session.write_spans([run.timeline for run in runs])
    return partial(
        session_document,
        config=plan.as_asked.as_dict(),
        command=list(command),
        spans=spans,
        # Both clocks at one moment: spans use the first, traces of other programs the second.
        clocks=Clocks(perf_counter_ns=time.perf_counter_ns(), unix_ns=time.time_ns()),
        loop=[run.loop for run in runs],
        clip_sha256={run.spec: run.sha256 for run in runs},
        model_sha256=plan.network.sha256,
        scenes=[scene for run in runs for scene in run.scenes],
    )


@contextmanager
def _output_errors_into(errors: list[DetectVideoError]) -> Iterator[None]:
    """Collect OutputErrors: an unwritable session must not hide what the run found."""
    try:
        yield
    except OutputError as error:
        errors.append(error)


def _run_facts(plan: RunPlan, more_notes: Sequence[str]) -> RunSettings:
    from detector.core.analysis.verdict import given_encoding
    from detector.core.session.outcome import RunSettings

    loaded, network, engine = plan.loaded, plan.network, plan.loaded.engine
    shapes = None if loaded.shapes is None else loaded.shapes.figures()
    said = [] if loaded.shapes is None or shapes is None else [loaded.shapes.describe(shapes)]
    return RunSettings(
        model=network.name,
        family=network.family,
        engine=engine.name,
        engine_reason=loaded.engine_reason,
        precision=engine.precision,
        device="" if engine.device == "cpu" else engine.device,
        device_name=engine.device_name,
        batch=network.batch,
        model_input=(network.input.height, network.input.width),
        class_names=network.names,
        random_weights=network.random_seed,
        threads=engine.threads,
        concurrency=engine.concurrency,
        cores=usable_cores(),
        sync=plan.loop.sync,
        notes=[*loaded.notes, *said, *more_notes],
        input_shapes=shapes,
        encoding=given_encoding(plan.writing),
        layers=loaded.layers,
        smaller_input=plan.smaller_input,
        between={one.name: (one.kind.what, one.kind.advice) for one in plan.wanted},
        tiles=plan.tiling.inputs,
    )
