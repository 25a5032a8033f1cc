"""Interleaved rounds of several variants -> rows that may be held against each other, or the reason why not.

An interval is the lowest and the highest round, not an estimate from so few. A ratio is taken within each round, so
that a slow minute of the machine, which falls on all variants, falls out of it; its median is what counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from detector.analysis.accuracy.matching import Agreement
from detector.analysis.summary import effect, text

SCHEMA = 1
METRICS = ("inference", "end_to_end")
# An engine cannot change what these cost; where they differ, something else differed too.
UNTOUCHED = ("read", "annotate", "write")
# A difference of less than this share of a frame's time changes no conclusion, however small the noise is.
MATERIAL = 0.02
ROUNDS_FOR_A_WINNER = (
    3  # two equal variants of 3 rounds each lie apart in one of ten comparisons, of 5 in one of 126
)
IDLE_SHARE = (
    0.02  # of a core: above it, a variant that waits for its turn takes time from the others
)


@dataclass(frozen=True, slots=True)
class Round:
    """One variant's turn. ``cpu_ms``: CPU of each stage's own thread, milliseconds a frame. ``idle_cpu``: cores that
    the variant kept busy while the others had their turn."""

    fps: Mapping[str, float | None]  # by METRICS
    cpu_ms: Mapping[str, float]
    frames: int
    idle_cpu: float = 0.0


@dataclass(slots=True)
class Variant:
    """What is known of one variant. ``facts``: what its process said once it was open. ``frames_digest``: of all
    decoded pictures. ``ap``: ``analysis.accuracy``'s figures, where there are labels. ``error`` with ``exit_code``: why
    it has no figures."""

    engine: str
    precision: str
    batch: int
    name: str = ""
    error: str | None = None
    exit_code: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    agreement: Agreement | None = None
    ap: dict[str, Any] | None = None
    frames_digest: str | None = None
    memory_mb: float | None = None


def label(engine: str, precision: str, batch: int) -> str:
    return f"{engine} {precision}" + (f" batch {batch}" if batch != 1 else "")


def compared(variants: Sequence[Variant], about: Mapping[str, Any]) -> dict[str, Any]:
    """The document that ``--json`` prints. ``about``: what is the same for all rows, taken over as it is."""
    ran = [variant for variant in variants if variant.error is None and variant.rounds]
    base = ran[0] if ran else None
    warnings = (
        [] if base is None else [*_other_frames(ran), *_unlike_stages(base, ran), *_restless(ran)]
    )
    rows = [row(variant, base) for variant in variants]
    comparable = None if base is None or len(base.rounds) < 2 else not warnings
    document = {
        "schema": SCHEMA,
        **about,
        "rows": rows,
        "comparable": comparable,
        "baseline": base.name if base else None,
        "interval": "lowest and highest round",
        "warnings": warnings,
    }
    return {**document, "fastest": {metric: fastest(document, metric) for metric in METRICS}}


def row(variant: Variant, base: Variant | None) -> dict[str, Any]:
    """One row; figures are null where ``error`` says why."""
    sound = variant.error is None and base is not None
    shares = variant.facts.get("precision_executed")
    ratios = {
        metric: _ratio(variant, base, metric) if sound and base else None for metric in METRICS
    }
    return {
        "name": variant.name,
        "engine": variant.engine,
        "precision": variant.precision,
        "precision_executed": shares,
        "precision_text": text(shares),
        "precision_effect": effect(variant.precision, shares),
        "batch": variant.batch,
        "fps": {
            metric: _interval(_series(variant, metric)) if sound else None for metric in METRICS
        },
        "ratio": {metric: found["median"] if found else None for metric, found in ratios.items()},
        "ratio_interval": {
            metric: found and [found["low"], found["high"]] for metric, found in ratios.items()
        },
        "agreement": _agreement(variant.agreement),
        "ap": variant.ap,
        "stage_cpu_ms": _stage_cpu(variant) if sound else None,
        "memory_mb": variant.memory_mb,
        **{
            key: variant.facts.get(key)
            for key in ("load_s", "build_s", "threads", "concurrency", "device")
        },
        "notes": variant.facts.get("notes", []),
        "error": variant.error,
    }


def fastest(document: Mapping[str, Any], metric: str) -> str | None:
    """The name of the row whose slowest round beats every other row's fastest; None inside the noise.

    None too where the rows cannot be compared, or there are too few of them or of the rounds.
    """
    rows = [row for row in document["rows"] if row["error"] is None and row["fps"][metric]]
    if (
        not document["comparable"]
        or len(rows) < 2
        or document.get("rounds", 0) < ROUNDS_FOR_A_WINNER
    ):
        return None
    best = max(rows, key=lambda row: row["fps"][metric]["median"])
    others = [row for row in rows if row is not best]
    clear = all(best["fps"][metric]["low"] > other["fps"][metric]["high"] for other in others)
    return str(best["name"]) if clear else None


def contenders(document: Mapping[str, Any], metric: str) -> list[str]:
    """Rows that the noise does not tell from the one with the highest median, that one first."""
    rows = [row for row in document["rows"] if row["error"] is None and row["fps"][metric]]
    if not rows:
        return []
    ranked = sorted(rows, key=lambda row: -row["fps"][metric]["median"])
    low = ranked[0]["fps"][metric]["low"]
    return [row["name"] for row in ranked if row["fps"][metric]["high"] >= low]


def _series(variant: Variant, metric: str) -> list[float]:
    return [value for turn in variant.rounds if (value := turn.fps[metric]) is not None]


def _interval(values: Sequence[float]) -> dict[str, float] | None:
    return {"median": median(values), "low": min(values), "high": max(values)} if values else None


def _ratio(variant: Variant, base: Variant, metric: str) -> dict[str, float] | None:
    """Of the rounds that both had, each against its neighbour in time."""
    pairs = [
        (own.fps[metric], other.fps[metric])
        for own, other in zip(variant.rounds, base.rounds, strict=False)
    ]
    return _interval([own / other for own, other in pairs if own is not None and other])


def _agreement(found: Agreement | None) -> dict[str, Any] | None:
    """``matched`` is the share 2 x matched / (A + B); null where neither side found anything, which proves nothing."""
    if found is None:
        return None
    counted = found.reference + found.other > 0
    return {
        "matched": found.share if counted else None,
        "mean_iou": None if math.isnan(found.mean_iou) else found.mean_iou,
        "mean_score_diff": None if math.isnan(found.mean_score_diff) else found.mean_score_diff,
        "detections": found.other,
        "detections_reference": found.reference,
        "frames": found.frames,
    }


def _cpu(variant: Variant, stage: str) -> list[float]:
    return [turn.cpu_ms.get(stage, 0.0) for turn in variant.rounds]


def _stage_cpu(variant: Variant) -> dict[str, Any]:
    return {stage: _interval(_cpu(variant, stage)) for stage in UNTOUCHED}


def _frame_ms(variant: Variant) -> float:
    rates = _series(variant, "end_to_end")
    return 1e3 / median(rates) if rates else math.inf


def _other_frames(ran: Sequence[Variant]) -> list[str]:
    """Rows that were not given the pictures that the first row was given."""
    first = ran[0]
    odd = [variant.name for variant in ran if variant.frames_digest != first.frames_digest]
    counts = {turn.frames for variant in ran for turn in variant.rounds}
    said = [
        f"{name} was given other pictures than {first.name}: the source does not decode alike"
        for name in odd
    ]
    return said + (
        [f"rounds differ in length: {min(counts)} to {max(counts)} frames"]
        if len(counts) > 1
        else []
    )


def _unlike_stages(base: Variant, ran: Sequence[Variant]) -> list[str]:
    """Stages that no engine can touch and that cost another amount than in the first row: by more than either row's
    own rounds differ among themselves, and by enough of a frame's time to matter."""
    said = []
    for variant in ran:
        for stage in UNTOUCHED:
            own, other = _cpu(variant, stage), _cpu(base, stage)
            gap = abs(median(own) - median(other))
            noise = max(max(own) - min(own), max(other) - min(other))
            if gap > noise and gap > MATERIAL * min(_frame_ms(variant), _frame_ms(base)):
                said.append(
                    f"{stage} costs {median(own):.2f} ms of CPU a frame beside {variant.name} and {median(other):.2f} "
                    f"beside {base.name}: {_why_unlike(stage, variant, base)}, so these rows are not comparable"
                )
    return said


def _why_unlike(stage: str, variant: Variant, base: Variant) -> str:
    """Boxes are drawn and written: who finds others pays for others. Nothing else of theirs is an engine's."""
    found = [one.agreement.other if one.agreement else None for one in (variant, base)]
    if stage == "read" or found[0] == found[1]:
        return "no engine can change that"
    return f"they found {found[0]} and {found[1]} boxes"


def _restless(ran: Sequence[Variant]) -> list[str]:
    """Variants that took a share of a core from the others while these had their turn."""
    said = []
    for variant in ran if len(ran) > 1 else ():
        idle = median([turn.idle_cpu for turn in variant.rounds])
        if idle > IDLE_SHARE:
            said.append(f"{variant.name} kept {idle:.0%} of a core busy while the other rows ran")
    return said


# ----------------------------------------------------------------------
# A comparison over batches and precisions, read as curves: latency, throughput, and where more batch stops paying.

KNEE = 0.95  # of the best throughput


def swept(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``rows`` of compare's document, each with ``batch_ms``: its frames' inference one after the other, at the median
    rate; ``knees``: precision -> the least batch within 5% of the best inference FPS."""
    found = [{**row, "batch_ms": _batch_ms(row)} for row in rows]
    ran = [row for row in found if row["batch_ms"] is not None]
    knees = {}
    for precision in dict.fromkeys(row["precision"] for row in ran):
        rates = {
            row["batch"]: row["fps"]["inference"]["median"]
            for row in ran
            if row["precision"] == precision
        }
        knees[precision] = min(
            batch for batch, rate in rates.items() if rate >= KNEE * max(rates.values())
        )
    return {"rows": found, "knees": knees}


def _batch_ms(row: Mapping[str, Any]) -> float | None:
    rate = (row["fps"] or {}).get("inference")
    return 1e3 * int(row["batch"]) / float(rate["median"]) if rate else None
