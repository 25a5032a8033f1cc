"""Interleaved rounds of several variants become rows that can be compared, or the reason why not.

The interval of a row is the lowest and the highest round. A ratio is taken within each round, so
that a slow minute of the computer, which slows all variants down, cancels out; ``statistics``
decides which ratios are reported, and when.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import median

from detector.core.analysis.agreement import Agreement
from detector.core.analysis.summary import effect, text
from detector.core.analysis.verdict import MAX_OTHERS
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

# An engine cannot change the cost of these stages. If it differs, something else changed.
UNTOUCHED = ("read", "annotate", "write")
# A difference below this share of a frame's time changes no conclusion, however small the noise.
MATERIAL = 0.02
# With fewer, chance gives all rounds to one side in more than one of 20 comparisons.
ROUNDS_FOR_A_WINNER = 6
# Share of a core. A waiting variant that uses more takes time from the others.
IDLE_SHARE = 0.02


@dataclass(slots=True)
class Variant:
    """The facts of one variant. ``error`` with ``exit_code``: why it has no figures. ``facts``:
    its process's message once open. ``frames_digest``: of all decoded pictures."""

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
    layers: Sequence[CountedLayer], batch: int, inputs_s: float, peaks: Peaks
) -> RowRoof | None:
    """The network at this rate below the roof, layer by layer; None where a type has no peak."""
    spent_ms = 1e3 * batch / inputs_s
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
    return RowRoof(share=share, bound=NEITHER if share < LEAST_SHARE else limit)


@dataclass(frozen=True, slots=True)
class RoundsLook:
    """When the rounds are judged. ``share``: of ALPHA that may be spent. ``stopped``: why no more
    rounds follow (``Noise``). ``twin``: the baseline once more, in a process of its own."""

    share: float = 1.0
    stopped: str = "rounds"
    twin: Variant | None = None


def compare_variants(
    variants: Sequence[Variant], about: About, look: RoundsLook | None = None
) -> Comparison:
    """Return the document that ``--json`` prints. ``about``: what is the same for all rows."""
    look = look or RoundsLook()
    ran = [variant for variant in variants if variant.error is None and variant.rounds]
    base = ran[0] if ran else None
    warnings = (
        []
        if base is None
        else [
            *_different_frames(ran),
            *_different_stages(base, ran),
            *_busy_while_waiting(ran),
            *_different_load(base, ran),
        ]
    )
    noise, verdicts = (None, {}) if base is None else _judge_rows(base, ran, about, look)
    rows = tuple(_row(variant, base, verdicts.get(id(variant), {})) for variant in variants)
    comparable = None if base is None or len(base.rounds) < 2 else not warnings
    near = {metric: _contenders(ran, metric, look.share) for metric in METRICS}
    return Comparison(
        **vars(about),
        rows=rows,
        comparable=comparable,
        baseline=base.name if base else None,
        interval="lowest and highest round",
        warnings=tuple(warnings),
        fastest={
            metric: names[0] if comparable and len(names) == 1 and len(ran) > 1 else None
            for metric, names in near.items()
        },
        contenders=near,
        noise=noise,
    )


def is_decided(document: Comparison) -> bool:
    verdicts = [each for row in document.rows for each in row.verdict.values() if each is not None]
    return all(each.outcome != "open" for each in verdicts)


def _judge_rows(
    base: Variant, ran: Sequence[Variant], about: About, look: RoundsLook
) -> tuple[Noise, dict[int, dict[Metric, Decision | None]]]:
    others = [variant for variant in ran if variant is not base]
    found: dict[int, dict[Metric, Decision | None]] = {id(one): {} for one in others}
    floors: dict[Metric, float] = {}
    smallest: dict[Metric, float | None] = {}
    for metric in METRICS:
        floor = noise_floor(None if look.twin is None else _log_ratios(look.twin, base, metric))
        floors[metric] = math.expm1(floor)
        series = [_log_ratios(variant, base, metric) for variant in others]
        told = [(one, values) for one, values in zip(others, series, strict=True) if values]
        judged = judge([values for _, values in told], floor, MATERIAL, look.share)
        for (variant, _), verdict in zip(told, judged, strict=True):
            found[id(variant)][metric] = _verdict(verdict)
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
    return noise, found


def _verdict(one: Judged) -> Decision:
    bounded = one.low > 0 and one.largest < math.exp(100)
    return Decision(
        outcome=one.outcome,
        ratio=one.ratio,
        low=one.low if bounded else None,
        high=one.high if bounded else None,
        p=one.p,
        largest=one.largest if bounded else None,
        smallest=_finite(one.smallest),
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
        stage_cpu_ms={one: _interval(_cpu(variant, one)) for one in UNTOUCHED} if sound else None,
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
        latency_calls=_calls(variant) if sound else None,
        roof=variant.roof,
        verdict=verdict,
    )


def _contenders(ran: Sequence[Variant], metric: Metric, share: float) -> tuple[str, ...]:
    """Rows that the noise does not tell from the one with the highest median, that one first. Not
    corrected: a winner has to beat each of the others (Berger, Technometrics 24, 1982)."""
    ranked = sorted(
        (one for one in ran if _series(one, metric)), key=lambda one: -median(_series(one, metric))
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


def _series(variant: Variant, metric: Metric) -> list[float]:
    return [value for turn in variant.rounds if (value := turn.fps[metric]) is not None]


def _interval(values: Sequence[float]) -> Interval | None:
    return Interval.over(values) if values else None


def _ratio(variant: Variant, base: Variant, metric: Metric) -> Interval | None:
    return _interval(_ratios(variant, base, metric))


def _ratios(variant: Variant, base: Variant, metric: Metric) -> list[float]:
    """Over the rounds that both have, each against its neighbour in time."""
    pairs = [
        (own.fps[metric], other.fps[metric])
        for own, other in zip(variant.rounds, base.rounds, strict=False)
    ]
    return [own / other for own, other in pairs if own is not None and other]


def _agreement(counted: Agreement | None) -> RowAgreement | None:
    """Compare detections. If neither side has any, ``matched`` is None: it proves nothing."""
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
    """Summarise the calls of all rounds together: a short round has too few for a p90."""
    rounds = [turn.calls_ms for turn in variant.rounds]
    together = [call for calls in rounds for call in calls]
    found: dict[str, Interval | None] = {}
    for p in (50, 90):
        whole, each = _percentile(together, p), [_percentile(calls, p) for calls in rounds]
        told = [ms for ms in (whole, *each) if ms is not None]
        found[f"p{p}"] = None if whole is None else Interval(whole, min(told), max(told))
    return found


def _calls(variant: Variant) -> int:
    return sum(count for turn in variant.rounds for _, count in turn.calls_ms)


def _percentile(calls: Sequence[tuple[float, int]], p: int) -> float | None:
    """Return the nearest-rank percentile of (milliseconds, count); None if too few."""
    left = sum(count for _, count in calls)
    if left < SAMPLE_FLOORS[p]:
        return None
    left = math.ceil(left * p / 100)
    for ms, count in sorted(calls):
        left -= count
        if left <= 0:
            return ms
    return None


def _cpu(variant: Variant, stage: str) -> list[float]:
    return [turn.cpu_ms.get(stage, 0.0) for turn in variant.rounds]


def _frame_ms(variant: Variant) -> float:
    rates = _series(variant, "end_to_end")
    return 1e3 / median(rates) if rates else math.inf


def _different_frames(ran: Sequence[Variant]) -> list[str]:
    first = ran[0]
    odd = [variant.name for variant in ran if variant.frames_digest != first.frames_digest]
    counts = {turn.frames for variant in ran for turn in variant.rounds}
    warnings = [
        f"{name} received different pictures from {first.name}: the source decodes differently"
        for name in odd
    ]
    if len(counts) > 1:
        warnings.append(f"rounds differ in length: {min(counts)} to {max(counts)} frames")
    return warnings


def _different_stages(base: Variant, ran: Sequence[Variant]) -> list[str]:
    """Stages that no engine can change, but whose cost differs noticeably from the first row's."""
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
                    f"{stage} takes {median(own):.2f} ms of CPU per frame with {variant.name} and "
                    f"{median(other):.2f} with {base.name}: {why}, so these rows are not comparable"
                )
    return warnings


def _why_different(stage: str, variant: Variant, base: Variant) -> str:
    """Boxes are drawn and written, so a row with more boxes pays for more."""
    boxes = [one.agreement.other if one.agreement else None for one in (variant, base)]
    if stage == "read" or boxes[0] == boxes[1]:
        return "the engine cannot affect this"
    return f"the rows found {boxes[0]} and {boxes[1]} boxes"


def _busy_while_waiting(ran: Sequence[Variant]) -> list[str]:
    warnings = []
    for variant in ran if len(ran) > 1 else ():
        idle = median([turn.idle_cpu for turn in variant.rounds])
        if idle > IDLE_SHARE:
            warnings.append(f"{variant.name} used {idle:.0%} of a core while the other rows ran")
    return warnings


def _different_load(base: Variant, ran: Sequence[Variant]) -> list[str]:
    first, cores = _others(base), base.rounds[0].cores
    told = [
        f"{own:.1f} during {variant.name}"
        for variant in ran[1:]
        if first is not None
        and (own := _others(variant)) is not None
        and abs(own - first) > MAX_OTHERS * cores
    ]
    if not told:
        return []
    return [
        f"other programs used {first:.1f} of {counted(cores, 'core')} during {base.name} and "
        f"{', '.join(told)}, so these rows are not comparable; measure again when the machine is "
        "less busy"
    ]


def _others(variant: Variant) -> float | None:
    told = [turn.others for turn in variant.rounds if turn.others is not None]
    return median(told) if told else None
