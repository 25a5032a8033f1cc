"""Measure the speed of a run with a stage that costs nothing, or with another loop.

Each change runs between two unchanged runs, on the same first frames of the source. A run writes
the outputs of the profiled command, and no profiler is on. Its time is from opening the source to
closing the outputs. If ``write`` is replaced, the time excludes opening and closing them.
stand_ins.py replaces stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError
from detector.core.errors.machine import NotHereError
from detector.core.errors.writing import temporary_folder
from detector.core.loop.parts import Parts, Progress
from detector.core.run.outputs import OutputPlan
from detector.core.run.plan import PlanDraft, RunPlan, resolve
from detector.core.session.document import SessionDocument
from detector.core.session.measured import Interval
from detector.core.timeline.timeline import OffTimeline
from detector.lab.analysis.loop.what_if import (
    FEW,
    LARGER,
    LEAST,
    Turns,
    compare_turns,
    list_candidates,
    list_doubts,
    stage_share,
)
from detector.lab.profile.base import Occasion, Pass, Varies, execution_of, output_within
from detector.lab.profile.stand_ins import (
    RecordedRows,
    describe_replacement,
    record_stages,
    replace_stage,
    why_irreplaceable,
)
from detector.lab.session.passes import WhatIfFacts

if TYPE_CHECKING:
    from detector.core.sinks.base import Sink
    from detector.core.sources.base import Source

# A gain counts only if every round shows it. In more than MAX_ROUNDS, noise would spoil one.
ROUNDS, MAX_ROUNDS = 3, 10
USUAL_ROUNDS = 5  # the number of frames is chosen so that this many rounds fit into the budget
MIN_FRAMES = 24  # frames of a run, even if the budget allows fewer


@dataclass(frozen=True, slots=True)
class TriedChange:
    """A change. It replaces ``stage`` or, if that is None, uses another ``config``."""

    name: str
    stage: str | None
    config: Config
    how: str


@dataclass(frozen=True, slots=True)
class Bench:
    source: str
    frames: int
    recorded: RecordedRows


Run = Callable[[], float]
"""A function that runs the loop once and returns its seconds per frame."""


def measure_changes(occasion: Occasion) -> WhatIfFacts:
    document = occasion.plain.document
    if not document.frames.written:
        raise NotHereError("the run wrote no frame")
    if document.streams is not UNSET:
        raise NotHereError("cameras set the pace, whatever a stage costs")
    not_measured = _list_unmeasured(occasion)
    frames = _choose_frames(occasion, len(_list_changes(occasion.config, document, not_measured)))
    config = replace(occasion.config, input=replace(occasion.config.input, frames=frames))
    with ExitStack() as opened:
        plain = _open_plan(occasion, config, opened)
        bench, parts = _make_bench(occasion, plain)
        changes = _list_changes(config, document, not_measured)
        runs: dict[str, Run] = {}
        for one in changes:
            try:
                plan = _plan_for(one, parts, plain, occasion, opened, frames)
            except (DetectVideoError, NotHereError) as error:
                not_measured[one.name] = _as_one_line(error)
            else:
                runs[one.name] = partial(run_once, bench, plan, one.stage)
        began = time.monotonic()
        turns = take_turns(lambda: run_once(bench, plain, None), runs, occasion.seconds)
        spent = (time.monotonic() - began) / occasion.seconds
    not_measured |= turns.failed
    if not turns.changed:
        raise NotHereError("; ".join(f"{name}: {why}" for name, why in not_measured.items()))
    return WhatIfFacts(
        frames=frames,
        rounds=min(map(len, turns.changed.values())),
        fps=Interval.over([1 / one for one in turns.plain]),
        frame_ms=Interval.over([1e3 * one for one in turns.plain]),
        changes=compare_turns(turns, {one.name: (one.stage, one.how) for one in changes}),
        not_measured=not_measured,
        doubts=list_doubts(frames, turns.plain, document, spent),
    )


def take_turns(
    plain: Run,
    changes: Mapping[str, Run],
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Turns:
    """Alternate the runs (plain, A, plain, B, plain ...) for ``ROUNDS``, and for up to
    ``MAX_ROUNDS`` while another round fits into ``budget_s``. A first plain run is for warm-up."""
    turns, began = Turns(), clock()
    plain()
    before, rounds = plain(), 0
    turns.plain.append(before)
    started = clock()
    while rounds < ROUNDS or (
        rounds < MAX_ROUNDS and clock() - began + (clock() - started) / rounds <= budget_s
    ):
        for name, run in changes.items():
            if name in turns.failed:
                continue
            try:
                with_it = run()
            except DetectVideoError as error:  # a larger batch may not fit a device's memory
                turns.drop(name, _as_one_line(error))
                continue
            after = plain()
            turns.add(name, before, with_it, after)
            turns.plain.append(after)
            before = after
        rounds += 1
    return turns


def _as_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# The choice of changes and frames


def _list_unmeasured(occasion: Occasion) -> dict[str, str]:
    document, unmeasured = occasion.plain.document, {}
    for stage, figures in document.stages.items():
        if not figures.calls:
            unmeasured[f"{stage} free"] = "this stage did not run"
        elif (share := stage_share(document, stage)) < LEAST:
            unmeasured[f"{stage} free"] = (
                f"it takes {share:.1%} of a frame's time; runs vary by more"
            )
    return unmeasured


def _choose_frames(occasion: Occasion, changes: int) -> int:
    def fitting(rounds: int) -> int:
        return int(1e3 * occasion.seconds / ((2 * changes * rounds + 2) * occasion.period_ms))

    enough = max(fitting(USUAL_ROUNDS), min(fitting(ROUNDS), FEW), MIN_FRAMES)
    return min(occasion.frames, enough)


def _list_changes(
    config: Config, document: SessionDocument, unmeasured: Mapping[str, str]
) -> list[TriedChange]:
    free = (
        TriedChange(f"{one} free", one, config, describe_replacement(one))
        for one in document.stages
    )
    other = (
        TriedChange(
            one.change, None, config.with_options(one.options), one.how or " ".join(one.words)
        )
        for one in list_candidates(document)
        if one.options is not None
    )
    return [*(one for one in free if one.name not in unmeasured), *other]


def _plan_for(
    one: TriedChange,
    parts: Parts,
    plain: RunPlan,
    occasion: Occasion,
    opened: ExitStack,
    frames: int,
) -> RunPlan:
    if one.stage is not None:
        if one.stage == "annotate" and parts.annotate is None:
            raise NotHereError("nothing is drawn")
        if (reason := why_irreplaceable(parts, one.stage)) is not None:
            raise NotHereError(reason)
        return plain
    batch = one.config.runtime.batch
    if batch == plain.network.batch:
        if one.config.loop.sync != occasion.config.loop.sync:
            execution = execution_of(plain.loaded)
            occasion.executions.append(replace(execution, sync=one.config.loop.sync))
        return PlanDraft.of(one.config).complete(plain.loaded)
    if frames < LARGER * batch:
        raise NotHereError("too few frames")
    return _open_plan(occasion, one.config, opened)


def _open_plan(occasion: Occasion, config: Config, opened: ExitStack) -> RunPlan:
    plan = resolve(config, specs=[occasion.source])
    opened.enter_context(plan.loaded.engine)
    occasion.executions.append(execution_of(plan.loaded))
    return plan


def _make_bench(occasion: Occasion, plan: RunPlan) -> tuple[Bench, Parts]:
    with temporary_folder("detect-video-what-if-") as folder:
        outputs = _plan_outputs(folder, plan, occasion.source)
        with plan.reading.open(occasion.source, outputs.pixels(occasion.source)) as source:
            sinks = _open_outputs(folder, occasion.source, outputs, source, plan)
            try:
                parts = plan.parts(source, sinks)
                recorded = record_stages(parts, source)
            finally:
                _abort(sinks)
    if not recorded.frames:
        raise NotHereError("no frame could be read again")
    return Bench(occasion.source, plan.reading.frames or len(recorded.frames), recorded), parts


# One run


def run_once(bench: Bench, plan: RunPlan, stage: str | None) -> float:
    """Return the seconds per frame of a run. ``stage``: a stage to replace, or None."""
    with temporary_folder("detect-video-what-if-") as folder:
        outputs = _plan_outputs(folder, plan, bench.source)
        sinks: list[Sink] = []
        began = time.perf_counter()
        try:
            with plan.reading.open(bench.source, outputs.pixels(bench.source)) as source:
                before = time.perf_counter()
                sinks = _open_outputs(folder, bench.source, outputs, source, plan)
                opening = time.perf_counter() - before
                parts = plan.parts(source, sinks)
                parts = replace_stage(parts, stage, bench.recorded, bench.frames)
                written = _drive(parts, plan)
                if parts.sinks:
                    opening = 0.0
                    for sink in sinks:
                        sink.close()
                    sinks = []
            took = time.perf_counter() - began - opening
        finally:
            _abort(sinks)
    if not written:
        raise NotHereError("no frame could be read again")
    return took / written


def _drive(parts: Parts, plan: RunPlan) -> int:
    progress = Progress()
    with plan.loop.library_threads():  # as in the plain run
        for _ in plan.loop.frames(parts, OffTimeline(), progress):
            pass
    return progress.written


def _plan_outputs(folder: Path, plan: RunPlan, source: str) -> OutputPlan:
    return OutputPlan(replace(output_within(folder, plan.output), run_dir=None), [source])


def _open_outputs(
    folder: Path, spec: str, outputs: OutputPlan, source: Source, plan: RunPlan
) -> list[Sink]:
    paths = outputs.paths(spec, source.info)
    sinks = plan.open_sinks(paths, source.info)
    if "jsonl" not in paths:
        sinks.insert(0, plan.open_rows(folder / "rows.jsonl", source.info))
    return sinks


def _abort(sinks: list[Sink]) -> None:
    for sink in sinks:
        sink.abort()


PASS = Pass(
    order=2,
    what="runs with a stage that costs nothing, with or without overlap, or with larger batches",
    facts=WhatIfFacts,
    run=measure_changes,
    undisturbed="its runs use no profiler",
    varies=Varies(
        ("sync", "batch"),
        "also with stages replaced, without video, without overlap and with larger batches",
    ),
)
