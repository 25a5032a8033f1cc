"""Write the records of a run: summary.json, session.json, spans.npz."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detector.core.errors import DetectVideoError, OutputError
from detector.core.errors.machine import usable_cores
from detector.core.run.environment import environment

if TYPE_CHECKING:
    from detector.core.run.plan import RunPlan
    from detector.core.session.document import Summary
    from detector.core.session.outcome import RunSettings, SourceRun
    from detector.core.session.store import Session


@dataclass(slots=True)
class WrittenRecords:
    """``folder``: the session's; None if no source could be opened. ``errors``: one for each file
    that could not be written."""

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
) -> WrittenRecords:
    """Write summary and session files. If no source could be opened, remove the session.

    ``seconds``: the time of each phase. ``stop_code``: a signal's exit code, or None. ``finish``: a
    function that adds to the summary."""
    from detector.core.analysis.summary import session_document, summarize
    from detector.core.session.codec import from_builtins
    from detector.core.session.document import Clocks, Environment, SpanCounts
    from detector.core.session.outcome import exit_of

    unwritten: list[DetectVideoError] = []
    opened, spans = any(run.info is not None for run in runs), SpanCounts()
    if opened:
        session.begin()
    start = time.perf_counter()
    if opened:
        with _collect_output_errors(unwritten):
            spans = session.write_spans([run.timeline for run in runs])
    # Read both clocks: spans use perf_counter_ns, and traces of other programs use unix_ns.
    clocks = Clocks(perf_counter_ns=time.perf_counter_ns(), unix_ns=time.time_ns())
    seconds["close"] += time.perf_counter() - start
    summary = finish(summarize(_run_settings(plan, session.notes), runs, seconds, stop_code))
    if not opened:
        session.discard()
        return WrittenRecords(summary, None, [])
    summary = replace(summary, session=str(session.folder))
    with _collect_output_errors(unwritten):
        session.finish_rows()
    document = session_document(
        summary,
        config=plan.as_asked.as_dict(),
        environment=from_builtins(environment(), Environment, "the environment"),
        command=list(command),
        spans=spans,
        clocks=clocks,
        loop=[run.loop for run in runs],
        clip_sha256={run.spec: run.sha256 for run in runs},
        model_sha256=plan.network.sha256,
        scenes=[scene for run in runs for scene in run.scenes],
    )
    for name, content in (("summary.json", summary), ("session.json", document)):
        with _collect_output_errors(unwritten):
            session.write_json(name, content)
    if unwritten:
        summary = replace(summary, exit=exit_of(runs, stop_code, unwritten))
    return WrittenRecords(summary, session.folder, unwritten)


@contextmanager
def _collect_output_errors(errors: list[DetectVideoError]) -> Iterator[None]:
    """Collect OutputErrors, so that the run's results are shown even if a file is unwritable."""
    try:
        yield
    except OutputError as error:
        errors.append(error)


def _run_settings(plan: RunPlan, more_notes: Sequence[str]) -> RunSettings:
    from detector.core.analysis.verdict import given_encoding
    from detector.core.session.outcome import RunSettings

    loaded, network, engine = plan.loaded, plan.network, plan.loaded.engine
    shapes = None if loaded.shapes is None else loaded.shapes.figures()
    shape_notes = (
        [] if loaded.shapes is None or shapes is None else [loaded.shapes.describe(shapes)]
    )
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
        notes=[*loaded.notes, *shape_notes, *more_notes],
        input_shapes=shapes,
        encoding=given_encoding(plan.writing),
        layers=loaded.layers,
        smaller_input=plan.smaller_input,
        between={stage.name: (stage.kind.what, stage.kind.advice) for stage in plan.extra_stages},
        tiles=plan.tiling.inputs,
    )
