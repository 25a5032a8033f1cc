"""Turn interleaved rounds of several variants into rows, and warn if they are not comparable.

A row's interval goes from its slowest to its fastest round. Ratios are taken within a round: a slow
minute of the computer slows down all variants, so it cancels out. ``statistics`` decides which
differences count, and when a comparison may stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import median

from detector.core.analysis.agreement import Agreement
from detector.core.analysis.summary import effect, text
from detector.core.analysis.verdict import MAX_OTHERS, describe_others
from detector.core.errors.text import counted
from detector.core.session.measured import Interval, Metric
from detector.core.timeline.histogram import SAMPLE_FLOORS
from detector.lab.analysis.layers import COMPUTE, LEAST_SHARE, MEMORY, NEITHER
from detector.lab.analysis.statistics import ALPHA, Judged, judge, noise_floor, sign_p
from detector.lab.session.comparison import (
    METRICS,
    About,
    Comparison,
    CountedLayer,
    Decision,
    Noise,
    Round,
    Row,
    RowAgreement,
    RowRoof,
    VariantFacts,
)
from detector.lab.session.evaluation import MeanAccuracy
from detector.lab.session.network import Peaks

# An engine cannot change the cost of these stages. If their cost differs, something else changed.
UNTOUCHED = ("read", "annotate", "write")
# A difference below this share of a frame's time changes no conclusion, however small the noise.
MATERIAL = 0.02
# With fewer rounds, one of two equally fast rows wins every round in over 5% of comparisons.
ROUNDS_FOR_A_WINNER = 6
# Share of a core. A variant that uses more while it waits slows down the others.
IDLE_SHARE = 0.02


@dataclass(slots=True)
class Variant:
    """One variant and its results. If it has none, ``error`` and ``exit_code`` say why. ``facts``:
    what its process reports of the model and engine. ``frames_digest``: hash of all pictures."""

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
    model: str | None = None  # as given to --model; None if the same in all rows
    reference: str | None = None
    roof: RowRoof | None = None


def label(engine: str, precision: str, batch: int, model: str | None = None) -> str:
    named = "" if model is None else f"{PurePath(model).stem} "
    return f"{named}{engine} {precision}" + (f" batch {batch}" if batch != 1 else "")


def place_on_roof(
    layers: Sequence[CountedLayer], batch: int, inputs_s: float, peaks: Peaks
) -> RowRoof | None:
    """Return the share of the roofline that the layers together reach; None if unknown."""
    batch_ms = 1e3 * batch / inputs_s
    by_limit = {COMPUTE: 0.0, MEMORY: 0.0}
    for layer in layers:
        peak = peaks.gflops_s.get(layer.precision)
        if layer.macs and peak is None:
            return None
        compute_ms = 2 * layer.macs / peak / 1e6 if peak else 0.0
        memory_ms = layer.bytes / peaks.bandwidth_at(layer.bytes) / 1e6
        by_limit[COMPUTE if compute_ms >= memory_ms else MEMORY] += max(compute_ms, memory_ms)
    share = sum(by_limit.values()) / batch_ms
    if not share:
        return None
    limit = max(by_limit, key=lambda one: by_limit[one])
    return RowRoof(share=share, bound=NEITHER if share < LEAST_SHARE else limit)


@dataclass(frozen=True, slots=True)
class RoundsLook:
    """One look (interim analysis) at the rounds so far. ``share``: the part of ALPHA that it
    spends. ``stopped``: see ``Noise``. ``twin``: a second process of the baseline."""

    share: float = 1.0
    stopped: str = "rounds"
    twin: Variant | None = None


def compare_variants(
    variants: Sequence[Variant], about: About, look: RoundsLook = RoundsLook()
) -> Comparison:
    """Return the document that ``--json`` prints. ``about``: facts shared by all rows."""
    ran = [variant for variant in variants if variant.error is None and variant.rounds]
    base = ran[0] if ran else None
    warnings = (
        []
        if base is None
        else [
            *_warn_of_frames(ran),
            *_warn_of_stages(base, ran),
            *_warn_of_idle_cpu(ran),
            *_warn_of_load(base, ran),
        ]
    )
    noise, decisions = (None, {}) if base is None else _judge_rows(base, ran, look)
    rows = tuple(_row(variant, base, decisions.get(id(variant), {})) for variant in variants)
    comparable = None if base is None or len(base.rounds) < 2 else not warnings
    contenders = {metric: _find_contenders(ran, metric, look.share) for metric in METRICS}
    return Comparison(
        **vars(about),
        rows=rows,
        comparable=comparable,
        baseline=base.name if base else None,
        interval="lowest and highest round",
        warnings=tuple(warnings),
        fastest={
            metric: names[0] if comparable and len(names) == 1 and len(ran) > 1 else None
            for metric, names in contenders.items()
        },
        contenders=contenders,
        noise=noise,
    )


def is_decided(document: Comparison) -> bool:
    decisions = [one for row in document.rows for one in row.verdict.values() if one is not None]
    return all(one.outcome != "open" for one in decisions)


def _judge_rows(
    base: Variant, ran: Sequence[Variant], look: RoundsLook
) -> tuple[Noise, dict[int, dict[Metric, Decision | None]]]:
    others = [variant for variant in ran if variant is not base]
    decisions: dict[int, dict[Metric, Decision | None]] = {id(one): {} for one in others}
    floors: dict[Metric, float] = {}
    smallest: dict[Metric, float | None] = {}
    for metric in METRICS:
        floor = noise_floor(None if look.twin is None else _log_ratios(look.twin, base, metric))
        floors[metric] = math.expm1(floor)
        series = [_log_ratios(variant, base, metric) for variant in others]
        measured = [(one, values) for one, values in zip(others, series, strict=True) if values]
        judged = judge([values for _, values in measured], floor, MATERIAL, look.share)
        for (variant, _), result in zip(measured, judged, strict=True):
            decisions[id(variant)][metric] = _to_decision(result)
        smallest[metric] = _finite(max((one.smallest for one in judged), default=math.inf))
    noise = Noise(
        floor=floors,
        measured=look.twin is not None,
        smallest=smallest,
        stopped=look.stopped,
        rounds=len(base.rounds),
        alpha=ALPHA,
        share=look.share,
    )
    return noise, decisions


def _to_decision(judged: Judged) -> Decision:
    bounded = judged.low > 0 and judged.largest < math.exp(100)
    return Decision(
        outcome=judged.outcome,
        ratio=judged.ratio,
        low=judged.low if bounded else None,
        high=judged.high if bounded else None,
        p=judged.p,
        largest=judged.largest if bounded else None,
        smallest=_finite(judged.smallest),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _log_ratios(variant: Variant, base: Variant, metric: Metric) -> list[float]:
    return [math.log(ratio) for ratio in _ratios(variant, base, metric) if ratio > 0]


def _row(variant: Variant, base: Variant | None, verdict: dict[Metric, Decision | None]) -> Row:
    sound = variant.error is None and base is not None
    facts = variant.facts or VariantFacts()
    shares = facts.precision_executed
    ratios = {
        metric: _interval(_ratios(variant, base, metric)) if sound and base else None
        for metric in METRICS
    }
    return Row(
        name=variant.name,
        engine=variant.engine,
        precision=variant.precision,
        precision_executed=shares,
        precision_text=text(shares),
        precision_effect=effect(variant.precision, shares),
        batch=variant.batch,
        fps={metric: _interval(_fps(variant, metric)) if sound else None for metric in METRICS},
        ratio={metric: each.median if each else None for metric, each in ratios.items()},
        ratio_interval={
            metric: (each.low, each.high) if each else None for metric, each in ratios.items()
        },
        agreement=_to_agreement(variant.agreement),
        ap=variant.ap,
        stage_cpu_ms={one: _interval(_cpu_ms(variant, one)) for one in UNTOUCHED}
        if sound
        else None,
        memory_mb=variant.memory_mb,
        load_s=facts.load_s,
        build_s=facts.build_s,
        threads=facts.threads,
        concurrency=facts.concurrency,
        device=facts.device,
        notes=(*_describe_load(base), *facts.notes),
        error=variant.error,
        model=facts.counts,
        reference=variant.reference,
        latency_ms=_summarise_latency(variant) if sound else None,
        latency_calls=_count_calls(variant) if sound else None,
        roof=variant.roof,
        verdict=verdict,
    )


def _find_contenders(ran: Sequence[Variant], metric: Metric, share: float) -> tuple[str, ...]:
    """List the row with the highest median, and all rows that may be as fast. We do not correct for
    the number of tests: a winner has to pass all of them (Berger, Technometrics 24, 1982)."""
    ranked = sorted(
        (one for one in ran if _fps(one, metric)), key=lambda one: -median(_fps(one, metric))
    )
    best = ranked[:1]
    return tuple(
        one.name
        for one in ranked
        if one is best[0] or not _is_beaten(_log_ratios(one, best[0], metric), share)
    )


def _is_beaten(ratios: Sequence[float], share: float) -> bool:
    beyond = min(0.0, median(ratios) + noise_floor(None)) if ratios else 0.0
    return beyond < 0 and sign_p(ratios, -noise_floor(None)) <= ALPHA * share


def _fps(variant: Variant, metric: Metric) -> list[float]:
    return [value for turn in variant.rounds if (value := turn.fps[metric]) is not None]


def _interval(values: Sequence[float]) -> Interval | None:
    return Interval.over(values) if values else None


def _ratios(variant: Variant, base: Variant, metric: Metric) -> list[float]:
    pairs = [
        (own.fps[metric], other.fps[metric])
        for own, other in zip(variant.rounds, base.rounds, strict=False)
    ]
    return [own / other for own, other in pairs if own is not None and other]


def _to_agreement(counted: Agreement | None) -> RowAgreement | None:
    """Convert the counts. ``matched`` is None if neither variant has detections."""
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


def _summarise_latency(variant: Variant) -> dict[str, Interval | None]:
    """Summarise the calls of all rounds together, since one round may have too few for a p90."""
    rounds = [turn.calls_ms for turn in variant.rounds]
    all_calls = [call for calls in rounds for call in calls]
    intervals: dict[str, Interval | None] = {}
    for p in (50, 90):
        whole, each = _percentile(all_calls, p), [_percentile(calls, p) for calls in rounds]
        known = [ms for ms in (whole, *each) if ms is not None]
        intervals[f"p{p}"] = None if whole is None else Interval(whole, min(known), max(known))
    return intervals


def _count_calls(variant: Variant) -> int:
    return sum(count for turn in variant.rounds for _, count in turn.calls_ms)


def _percentile(calls: Sequence[tuple[float, int]], p: int) -> float | None:
    """Return the nearest-rank percentile of (milliseconds, count) pairs; None: too few calls."""
    left = sum(count for _, count in calls)
    if left < SAMPLE_FLOORS[p]:
        return None
    left = math.ceil(left * p / 100)
    for ms, count in sorted(calls):
        left -= count
        if left <= 0:
            return ms
    return None


def _cpu_ms(variant: Variant, stage: str) -> list[float]:
    return [turn.cpu_ms.get(stage, 0.0) for turn in variant.rounds]


def _frame_ms(variant: Variant) -> float:
    rates = _fps(variant, "end_to_end")
    return 1e3 / median(rates) if rates else math.inf


def _warn_of_frames(ran: Sequence[Variant]) -> list[str]:
    first = ran[0]
    odd = [variant.name for variant in ran if variant.frames_digest != first.frames_digest]
    counts = {turn.frames for variant in ran for turn in variant.rounds}
    warnings = [
        f"the pictures of {name} and {first.name} differ: the source decodes differently"
        for name in odd
    ]
    if len(counts) > 1:
        warnings.append(f"rounds differ in length: {min(counts)} to {max(counts)} frames")
    return warnings


def _warn_of_stages(base: Variant, ran: Sequence[Variant]) -> list[str]:
    """Warn if a stage that no engine can change costs more or less than in the first row."""
    warnings = []
    for variant in ran:
        # If the models differ, so do the boxes to draw and write. Only reading is the same work.
        for stage in UNTOUCHED if variant.model == base.model else UNTOUCHED[:1]:
            own, other = _cpu_ms(variant, stage), _cpu_ms(base, stage)
            gap = abs(median(own) - median(other))
            noise = max(max(own) - min(own), max(other) - min(other))
            if gap > noise and gap > MATERIAL * min(_frame_ms(variant), _frame_ms(base)):
                boxes = [one.agreement.other if one.agreement else None for one in (variant, base)]
                cause = f"the rows found {boxes[0]} and {boxes[1]} boxes"
                if stage == "read" or boxes[0] == boxes[1]:
                    cause = "the engine cannot affect this"
                warnings.append(
                    f"stage {stage}: {median(own):.2f} ms of CPU per frame with {variant.name}, "
                    f"but {median(other):.2f} with {base.name}: {cause}, so these rows are not "
                    "comparable"
                )
    return warnings


def _warn_of_idle_cpu(ran: Sequence[Variant]) -> list[str]:
    warnings = []
    for variant in ran if len(ran) > 1 else ():
        idle = median([turn.idle_cpu for turn in variant.rounds])
        if idle > IDLE_SHARE:
            warnings.append(f"{variant.name} used {idle:.0%} of a core while the other rows ran")
    return warnings


def _warn_of_load(base: Variant, ran: Sequence[Variant]) -> list[str]:
    first, cores = _median_load(base), base.rounds[0].cores
    loads = [
        f"{own:.1f} during {variant.name}"
        for variant in ran[1:]
        if first is not None
        and (own := _median_load(variant)) is not None
        and abs(own - first) > MAX_OTHERS * cores
    ]
    if not loads:
        return []
    return [
        f"other programs used {first:.1f} of {counted(cores, 'core')} during {base.name} and "
        f"{', '.join(loads)}, so these rows are not comparable; measure again when the machine is "
        "less busy"
    ]


def _describe_load(base: Variant | None) -> list[str]:
    others = base and describe_others(_median_load(base), base.rounds[0].cores)
    return [f"{others}, so FPS are lower than on an idle machine"] if others else []


def _median_load(variant: Variant) -> float | None:
    loads = [turn.others for turn in variant.rounds if turn.others is not None]
    return median(loads) if loads else None
