"""Interleaved rounds of several variants become rows that can be compared, or the reason why not.

An interval is the lowest and the highest round: so few rounds allow no better estimate. A ratio is
taken within each round, so that a slow minute of the computer, which slows all variants down,
cancels out; the median of these ratios counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import median

from detector.core.analysis.agreement import Agreement
from detector.core.analysis.summary import effect, text
from detector.core.session.measured import Interval, Metric
from detector.lab.analysis.layers import COMPUTE, LAUNCH_SHARE, MEMORY, NEITHER
from detector.lab.session.comparison import (
    METRICS,
    About,
    Comparison,
    CountedLayer,
    Round,
    Row,
    RowAgreement,
    RowRoof,
    SweepCurves,
    SweepRow,
    VariantFacts,
)
from detector.lab.session.evaluation import MeanAccuracy
from detector.lab.session.network import Peaks

# An engine cannot change what these stages cost. Where they differ, something else did too.
UNTOUCHED = ("read", "annotate", "write")
# A difference below this share of a frame's time changes no conclusion, however small the noise.
MATERIAL = 0.02
# By chance, the intervals of two equal variants lie apart in one of 10 comparisons of 3 rounds, and
# in one of 126 comparisons of 5 rounds.
ROUNDS_FOR_A_WINNER = 3
# Of a core. A variant that uses more while it waits for its turn takes time from the others.
IDLE_SHARE = 0.02
KNEE = 0.95  # of the best throughput


@dataclass(slots=True)
class Variant:
    """What is known of one variant. ``error`` with ``exit_code``: why it has no figures.

    ``facts``: what its process said once it was open. ``frames_digest``: of all decoded pictures.
    ``ap``: average precision, where there are labels.
    """

    engine: str
    precision: str
    batch: int
    name: str = ""
    error: str | None = None
    exit_code: int = 0
    facts: VariantFacts | None = None
    rounds: list[Round] = field(default_factory=list)
    agreement: Agreement | None = None
    ap: MeanAccuracy | None = None
    frames_digest: str | None = None
    memory_mb: float | None = None
    model: str | None = None  # as --model names it; None where all rows have the same
    reference: str | None = None
    roof: RowRoof | None = None


def label(engine: str, precision: str, batch: int, model: str | None = None) -> str:
    named = "" if model is None else f"{PurePath(model).stem} "
    return f"{named}{engine} {precision}" + (f" batch {batch}" if batch != 1 else "")


def place_on_roof(
    layers: Sequence[CountedLayer], batch: int, frames_s: float, peaks: Peaks
) -> RowRoof | None:
    """The network at this rate below the roof, layer by layer; None where a type has no peak."""
    spent_ms = 1e3 * batch / frames_s
    by_limit = {COMPUTE: 0.0, MEMORY: 0.0}
    for layer in layers:
        peak = peaks.gflops_s.get(layer.precision)
        if layer.macs and peak is None:
            return None
        compute_ms = 2 * layer.macs / peak / 1e6 if peak else 0.0
        memory_ms = layer.bytes / peaks.bandwidth_at(layer.bytes) / 1e6
        by_limit[COMPUTE if compute_ms >= memory_ms else MEMORY] += max(compute_ms, memory_ms)
    share = sum(by_limit.values()) / spent_ms
    if not share:
        return None
    limit = max(by_limit, key=lambda one: by_limit[one])
    return RowRoof(share=share, bound=NEITHER if share < LAUNCH_SHARE else limit)


def compare_variants(variants: Sequence[Variant], about: About) -> Comparison:
    """The document that ``--json`` prints. ``about``: what is the same for all rows."""
    ran = [variant for variant in variants if variant.error is None and variant.rounds]
    base = ran[0] if ran else None
    warnings = (
        []
        if base is None
        else [*_different_frames(ran), *_different_stages(base, ran), *_busy_while_waiting(ran)]
    )
    rows = tuple(_row(variant, base) for variant in variants)
    comparable = None if base is None or len(base.rounds) < 2 else not warnings
    has_winner = comparable and about.rounds >= ROUNDS_FOR_A_WINNER
    return Comparison(
        **vars(about),
        rows=rows,
        comparable=comparable,
        baseline=base.name if base else None,
        interval="lowest and highest round",
        warnings=tuple(warnings),
        fastest={metric: find_fastest(rows, metric) if has_winner else None for metric in METRICS},
    )


def _row(variant: Variant, base: Variant | None) -> Row:
    sound = variant.error is None and base is not None
    facts = variant.facts or VariantFacts()
    shares = facts.precision_executed
    ratios = {
        metric: _ratio(variant, base, metric) if sound and base else None for metric in METRICS
    }
    return Row(
        name=variant.name,
        engine=variant.engine,
        precision=variant.precision,
        precision_executed=shares,
        precision_text=text(shares),
        precision_effect=effect(variant.precision, shares),
        batch=variant.batch,
        fps={metric: _interval(_series(variant, metric)) if sound else None for metric in METRICS},
        ratio={metric: each.median if each else None for metric, each in ratios.items()},
        ratio_interval={
            metric: (each.low, each.high) if each else None for metric, each in ratios.items()
        },
        agreement=_agreement(variant.agreement),
        ap=variant.ap,
        stage_cpu_ms=_stage_cpu(variant) if sound else None,
        memory_mb=variant.memory_mb,
        load_s=facts.load_s,
        build_s=facts.build_s,
        threads=facts.threads,
        concurrency=facts.concurrency,
        device=facts.device,
        notes=facts.notes,
        error=variant.error,
        model=facts.counts,
        reference=variant.reference,
        latency_ms=_latency(variant) if sound else None,
        roof=variant.roof,
    )


def find_fastest(rows: Sequence[Row], metric: Metric) -> str | None:
    """The row whose slowest round beats the fastest round of every other row, if there is one.

    None too where fewer than two rows have figures.
    """
    ranked = _rank(rows, metric)
    if len(ranked) < 2:
        return None
    (best, name), *others = ranked
    return name if all(best.low > other.high for other, _ in others) else None


def find_contenders(rows: Sequence[Row], metric: Metric) -> list[str]:
    """Rows that the noise does not tell from the one with the highest median, that one first."""
    ranked = _rank(rows, metric)
    return [name for interval, name in ranked if interval.high >= ranked[0][0].low]


def _rank(rows: Sequence[Row], metric: Metric) -> list[tuple[Interval, str]]:
    """Rows with figures, by their medians, the highest first; equal ones in the rows' order."""
    measured = [
        (interval, row.name)
        for row in rows
        if row.error is None and (interval := row.fps[metric]) is not None
    ]
    return sorted(measured, key=lambda one: -one[0].median)


def _series(variant: Variant, metric: Metric) -> list[float]:
    return [value for turn in variant.rounds if (value := turn.fps[metric]) is not None]


def _interval(values: Sequence[float]) -> Interval | None:
    return Interval.over(values) if values else None


def _ratio(variant: Variant, base: Variant, metric: Metric) -> Interval | None:
    """Over the rounds that both have, each against its neighbour in time."""
    pairs = [
        (own.fps[metric], other.fps[metric])
        for own, other in zip(variant.rounds, base.rounds, strict=False)
    ]
    return _interval([own / other for own, other in pairs if own is not None and other])


def _agreement(counted: Agreement | None) -> RowAgreement | None:
    """Where neither side detected anything, that proves nothing: ``matched`` is None then."""
    if counted is None:
        return None
    total = counted.reference + counted.other
    return RowAgreement(
        matched=counted.share if total else None,
        mean_iou=None if math.isnan(counted.mean_iou) else counted.mean_iou,
        mean_score_diff=None if math.isnan(counted.mean_score_diff) else counted.mean_score_diff,
        detections=counted.other,
        detections_reference=counted.reference,
        frames=counted.frames,
    )


def _latency(variant: Variant) -> dict[str, Interval | None]:
    return {
        name: _interval(
            [ms for turn in variant.rounds if (ms := turn.latency_ms.get(name)) is not None]
        )
        for name in ("p50", "p90")
    }


def _cpu(variant: Variant, stage: str) -> list[float]:
    return [turn.cpu_ms.get(stage, 0.0) for turn in variant.rounds]


def _stage_cpu(variant: Variant) -> dict[str, Interval | None]:
    return {stage: _interval(_cpu(variant, stage)) for stage in UNTOUCHED}


def _frame_ms(variant: Variant) -> float:
    rates = _series(variant, "end_to_end")
    return 1e3 / median(rates) if rates else math.inf


def _different_frames(ran: Sequence[Variant]) -> list[str]:
    """Rows that were not given the pictures that the first row was given."""
    first = ran[0]
    odd = [variant.name for variant in ran if variant.frames_digest != first.frames_digest]
    counts = {turn.frames for variant in ran for turn in variant.rounds}
    warnings = [
        f"{name} was given other pictures than {first.name}: the source decodes differently"
        for name in odd
    ]
    if len(counts) > 1:
        warnings.append(f"rounds differ in length: {min(counts)} to {max(counts)} frames")
    return warnings


def _different_stages(base: Variant, ran: Sequence[Variant]) -> list[str]:
    """Stages that no engine can change, but whose cost differs from the first row's: by more than
    the rounds of either row differ, and by enough of a frame's time to matter."""
    warnings = []
    for variant in ran:
        # Another model finds other boxes, which are drawn and written; reading is the same work.
        for stage in UNTOUCHED if variant.model == base.model else UNTOUCHED[:1]:
            own, other = _cpu(variant, stage), _cpu(base, stage)
            gap = abs(median(own) - median(other))
            noise = max(max(own) - min(own), max(other) - min(other))
            if gap > noise and gap > MATERIAL * min(_frame_ms(variant), _frame_ms(base)):
                why = _why_different(stage, variant, base)
                warnings.append(
                    f"{stage} costs {median(own):.2f} ms of CPU a frame beside {variant.name} and "
                    f"{median(other):.2f} beside {base.name}: {why}, so these rows are not "
                    "comparable"
                )
    return warnings


def _why_different(stage: str, variant: Variant, base: Variant) -> str:
    """Boxes are drawn and written, so a row with more boxes pays for more. An engine changes
    nothing else in these stages."""
    boxes = [one.agreement.other if one.agreement else None for one in (variant, base)]
    if stage == "read" or boxes[0] == boxes[1]:
        return "no engine can change that"
    return f"they found {boxes[0]} and {boxes[1]} boxes"


def _busy_while_waiting(ran: Sequence[Variant]) -> list[str]:
    """Variants that used a core while the others had their turn."""
    warnings = []
    for variant in ran if len(ran) > 1 else ():
        idle = median([turn.idle_cpu for turn in variant.rounds])
        if idle > IDLE_SHARE:
            warnings.append(f"{variant.name} used {idle:.0%} of a core while the other rows ran")
    return warnings


def sweep_curves(rows: Sequence[Row]) -> SweepCurves:
    """A comparison over batches and precisions as curves: the latency of each batch, and the batch
    from which a larger one stops paying."""
    rates: dict[str, dict[int, float]] = {}  # precision -> batch -> frames a second
    for row in rows:
        if (rate := row.fps["inference"]) is not None:
            rates.setdefault(row.precision, {})[row.batch] = rate.median
    knees = {
        precision: min(batch for batch, rate in own.items() if rate >= KNEE * max(own.values()))
        for precision, own in rates.items()
    }
    return SweepCurves(tuple(SweepRow(**vars(row), batch_ms=_batch_ms(row)) for row in rows), knees)


def _batch_ms(row: Row) -> float | None:
    rate = row.fps["inference"]
    return 1e3 * row.batch / rate.median if rate is not None else None
