"""Measures the gain of a run if a stage costs nothing, or with another loop, in turns. Each change
runs between two unchanged runs, on the same first frames of the source. A run has all outputs of
the plain run and no instruments; its time goes from opening the source to closing the outputs.
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
from detector.core.run.plan import Asked, RunPlan, resolve
from detector.core.session.document import SessionDocument
from detector.core.timeline import OffTimeline
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
    record_stages,
    replace_stage,
    what_replaces,
    why_none,
)
from detector.lab.session.passes import Interval, WhatIfFacts

if TYPE_CHECKING:
    from detector.core.sinks.base import Sink
    from detector.core.sources.base import Source

ROUNDS, MOST_ROUNDS = 3, 10  # of very many, one is always the odd one
USUAL_ROUNDS = 5  # a run has as many frames as let these fit the budget
BUDGET_S = 60.0
LEAST_FRAMES = 24  # in any case, however long they take


@dataclass(frozen=True, slots=True)
class Tried:
    """A change. ``stage``: to replace; None: a new ``config``. ``how``: the replacement."""

    name: str
    stage: str | None
    config: Config
    how: str


@dataclass(frozen=True, slots=True)
class Bench:
    source: str
    frames: int
    kept: RecordedRows


Run = Callable[[], float]
"""Returns its seconds a frame."""


def measure_changes(occasion: Occasion) -> WhatIfFacts:
    document = occasion.plain.document
    if not document.frames.written:
        raise NotHereError("the run wrote no frame")
    if document.streams is not UNSET:
        raise NotHereError("cameras set the pace, whatever a stage costs")
    not_measured = _list_small(occasion)
    tried = _list_changes(occasion.config, document, not_measured)
    frames = _choose_frames(occasion, len(tried))
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
                not_measured[one.name] = _in_a_line(error)
            else:
                runs[one.name] = partial(run_once, bench, plan, one.stage)
        turns = take_turns(lambda: run_once(bench, plain, None), runs, occasion.seconds)
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
        doubts=list_doubts(frames, turns.plain, document),
    )


def take_turns(
    plain: Run,
    changes: Mapping[str, Run],
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Turns:
    """Plain, A, plain, B, plain ... for ``ROUNDS``, and for up to ``MOST_ROUNDS`` while another one
    fits into ``budget_s``. The first run of all warms up and does not count."""
    turns, began = Turns(), clock()
    plain()
    before, rounds = plain(), 0
    turns.plain.append(before)
    started = clock()
    while rounds < ROUNDS or (
        rounds < MOST_ROUNDS and clock() - began + (clock() - started) / rounds <= budget_s
    ):
        for name, run in changes.items():
            if name in turns.failed:
                continue
            try:
                with_it = run()
            except DetectVideoError as error:  # a larger batch may not fit a device's memory
                turns.drop(name, _in_a_line(error))
                continue
            after = plain()
            turns.add(name, before, with_it, after)
            turns.plain.append(after)
            before = after
        rounds += 1
    return turns


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


# Which changes, and on what


def _list_small(occasion: Occasion) -> dict[str, str]:
    document, small = occasion.plain.document, {}
    for stage, figures in document.stages.items():
        if not figures.calls:
            small[f"{stage} free"] = "this stage did not run"
        elif (share := stage_share(document, stage)) < LEAST:
            small[f"{stage} free"] = f"it takes {share:.1%} of a frame's time; runs vary by more"
    return small


def _choose_frames(occasion: Occasion, changes: int) -> int:
    def fitting(rounds: int) -> int:
        return int(1e3 * occasion.seconds / ((2 * changes * rounds + 2) * occasion.period_ms))

    enough = max(fitting(USUAL_ROUNDS), min(fitting(ROUNDS), FEW), LEAST_FRAMES)
    return min(occasion.frames, enough)


def _list_changes(
    config: Config, document: SessionDocument, small: Mapping[str, str]
) -> list[Tried]:
    free = (Tried(f"{one} free", one, config, what_replaces(one)) for one in document.stages)
    other = (
        Tried(one.change, None, config.with_options(one.options), one.how or " ".join(one.words))
        for one in list_candidates(document)
        if one.options is not None
    )
    return [*(one for one in free if one.name not in small), *other]


def _plan_for(
    one: Tried, parts: Parts, plain: RunPlan, occasion: Occasion, opened: ExitStack, frames: int
) -> RunPlan:
    if one.stage is not None:
        if one.stage == "annotate" and parts.annotate is None:
            raise NotHereError("nothing is drawn")
        if (reason := why_none(parts, one.stage)) is not None:
            raise NotHereError(reason)
        return plain
    batch = one.config.runtime.batch
    if batch == plain.network.batch:
        if one.config.loop.sync != occasion.config.loop.sync:
            execution = execution_of(plain.loaded)
            occasion.seen.append(replace(execution, sync=one.config.loop.sync))
        return Asked.of(one.config).on(plain.loaded)
    if frames < LARGER * batch:
        raise NotHereError("too few frames")
    return _open_plan(occasion, one.config, opened)


def _open_plan(occasion: Occasion, config: Config, opened: ExitStack) -> RunPlan:
    plan = resolve(config, specs=[occasion.source])
    opened.enter_context(plan.loaded.engine)
    occasion.seen.append(execution_of(plan.loaded))
    return plan


def _make_bench(occasion: Occasion, plan: RunPlan) -> tuple[Bench, Parts]:
    with temporary_folder("detect-video-what-if-") as folder:
        outputs = _plan_outputs(folder, plan, occasion.source)
        with plan.reading.open(occasion.source, outputs.pixels(occasion.source)) as source:
            sinks = _open_outputs(folder, occasion.source, outputs, source, plan)
            try:
                parts = plan.parts(source, sinks)
                kept = record_stages(parts, source)
            finally:
                _abort(sinks)
    if not kept.frames:
        raise NotHereError("no frame could be read again")
    return Bench(occasion.source, plan.reading.frames or len(kept.frames), kept), parts


# One run


def run_once(bench: Bench, plan: RunPlan, stage: str | None) -> float:
    """Seconds a frame, from opening the source to closing outputs. ``stage``: replaced."""
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
                parts = replace_stage(parts, stage, bench.kept, bench.frames)
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
    with plan.loop.library_threads():  # as the run has them
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
    what="runs with one stage free, or another overlap or batch size",
    facts=WhatIfFacts,
    run=measure_changes,
    undisturbed="its runs use no profiler",
    varies=Varies(
        ("sync", "batch"),
        "also with stages replaced, without video, without overlap and with larger batches",
    ),
)
