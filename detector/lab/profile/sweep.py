"""Batches and precisions of the run's engine on the same frames, turn by turn, by ``compare``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from detector.core import engines
from detector.core.errors import DetectVideoError
from detector.core.errors.machine import NotHereError
from detector.core.session.codec import from_builtins
from detector.lab.profile.base import Occasion, Pass, Varies
from detector.lab.session.passes import Execution, SweepFacts

if TYPE_CHECKING:
    from detector.lab.session.comparison import Comparison

BATCHES = (1, 2, 4, 8)
ROUNDS = 3
FRAMES = 24  # a round: three of the largest batch


def sweep_batches(occasion: Occasion) -> SweepFacts:
    from detector.lab.analysis.compare import sweep_curves
    from detector.lab.compare.rounds import Plan, compare

    engine = occasion.plain.document.engine
    config = occasion.config
    if engines.only_engine(config.network.model) is not None:
        raise NotHereError("a TensorRT plan has a fixed batch and precision")
    frames = min(FRAMES, occasion.frames)
    plain = replace(
        config,
        input=replace(config.input, frames=frames),
        output=replace(config.output, output=None, run_dir=None),
    )
    batches = [batch for batch in BATCHES if batch <= frames]
    plan = Plan(occasion.source, plain, [engine], _precisions(engine, occasion), batches, ROUNDS)
    document, variants = compare(plan, lambda doing, done, of: None)
    if not any(variant.rounds for variant in variants):
        raise NotHereError(f"no variant ran: {variants[0].error}")
    occasion.seen += _list_executions(document)
    kept = ("rounds", "frames", "comparable", "warnings", "reference")
    facts = {
        "engine": engine,
        **sweep_curves(document.rows),
        **{key: getattr(document, key) for key in kept},
    }
    return from_builtins(facts, SweepFacts, "the sweep")


def _list_executions(document: Comparison) -> list[Execution]:
    """Of the variants that ran."""
    return [
        Execution(
            engine=row.engine,
            precision=row.precision,
            threads=row.threads,
            concurrency=row.concurrency,
            batch=row.batch,
            model_input=document.model_input,
        )
        for row in document.rows
        if row.error is None and document.model_input and row.threads and row.concurrency
    ]


def _precisions(engine: str, occasion: Occasion) -> list[str]:
    """The run's own first, then those that the engine has here without a calibration."""
    own, device = occasion.plain.document.precision, occasion.config.runtime.device
    able = engines.find(engine).precisions
    own = own if own in able else "fp32"  # the null engine's is none
    others = [name for name in able if name not in (own, "int8") and _can_run(engine, name, device)]
    return [own, *others]


def _can_run(engine: str, precision: str, device: str) -> bool:
    try:
        engines.graph_wanted(engine, precision, device)
    except DetectVideoError:
        return False
    return True


PASS = Pass(
    order=120,
    what="batches 1 to 8 in every precision",
    facts=SweepFacts,
    run=sweep_batches,
    undisturbed="its runs use no profiler",
    varies=Varies(("batch", "precision"), "also with other batches and precisions"),
    on_request="--sweep",  # takes minutes where a precision is slow: fp16 on most CPUs
)
