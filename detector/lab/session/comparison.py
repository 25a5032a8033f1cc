"""The document of ``compare --json``. Later runs use only the part in core/session/measured.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from msgspec import UNSET, UnsetType

from detector.core.session.document import PrecisionShare
from detector.core.session.measured import Interval, Metric
from detector.lab.session.evaluation import MeanAccuracy

SCHEMA = 1
METRICS: tuple[Metric, ...] = get_args(Metric)
Shares = dict[str, PrecisionShare]


# Figures of one row


@dataclass(frozen=True)
class RowAgreement:
    """The agreement of a row's detections with those of the reference, on the same pictures.
    ``matched``: 2 x pairs / (detections of both rows), at IoU 0.5; null without detections.
    ``mean_iou``, ``mean_score_diff``: means over the pairs; null without pairs.
    """

    matched: float | None
    mean_iou: float | None
    mean_score_diff: float | None
    detections: int
    detections_reference: int
    frames: int


@dataclass(frozen=True)
class ModelCounts:
    """A variant's network. ``input``: height, width. ``size_bytes``: size of the graph or plan that
    the engine received. ``macs``: number per picture. Counts are null without a graph."""

    name: str
    sha256: str | None
    input: tuple[int, int]
    parameters: int | None
    size_bytes: int | None
    macs: int | None


@dataclass(frozen=True)
class RowRoof:
    """Inference compared with this computer's roofline. ``share``: the part of the roofline that it
    reached. ``bound``: what limits it. Peaks are for all threads of the variant."""

    share: float
    bound: str


@dataclass(frozen=True)
class Decision:
    """A row compared with the baseline. ``outcome``: faster, slower, same (a relevant difference is
    ruled out) or open. ``ratio``: FPS / FPS of the baseline. ``low``, ``high``: the ratio's
    interval, corrected for all rows and interim looks; null after too few rounds. ``p``: p value,
    corrected by Holm's method. ``largest``: the largest difference (a share) not ruled out.
    ``smallest``: the least difference that this many rounds detect in nine of ten cases."""

    outcome: str
    ratio: float
    low: float | None
    high: float | None
    p: float
    largest: float | None
    smallest: float | None


@dataclass(frozen=True)
class Noise:
    """The effect of chance. ``floor``: relative speed difference of two processes of the baseline;
    assumed if not ``measured``. ``smallest``: the least difference that the rounds detect in every
    row. ``stopped``: why the rounds ended: "rounds" (all done), "decided", "most" (the maximum) or
    "time". ``alpha``: rate of false alarms. ``share``: the last look's part of ``alpha``."""

    floor: dict[Metric, float]
    measured: bool
    smallest: dict[Metric, float | None]
    stopped: str
    rounds: int
    alpha: float
    share: float


@dataclass(frozen=True)
class Row:
    """One variant. Speeds, ratios and CPU times are null if it failed; ``error`` says why.

    ``ratio``: FPS / FPS of the baseline, as median over rounds; ``ratio_interval``: the lowest and
    highest round. ``stage_cpu_ms``: milliseconds per frame. ``memory_mb``: peak, in 10^6 bytes.
    ``precision_effect``: a sentence if the requested precision changed nothing. ``reference``: the
    row that ``agreement`` compares with. ``latency_ms``: p50 and p90 of a network call with a whole
    batch, over the ``latency_calls`` of all rounds. Their intervals run from the lowest to the
    highest round with enough calls.
    """

    name: str
    engine: str
    precision: str
    precision_executed: Shares | None
    precision_text: str
    precision_effect: str | None
    batch: int
    fps: dict[Metric, Interval | None]
    ratio: dict[Metric, float | None]
    ratio_interval: dict[Metric, tuple[float, float] | None]
    agreement: RowAgreement | None
    ap: MeanAccuracy | None
    stage_cpu_ms: dict[str, Interval | None] | None
    memory_mb: float | None
    load_s: float | None
    build_s: float | None
    threads: int | None
    concurrency: int | None
    device: str | None
    notes: tuple[str, ...]
    error: str | None
    model: ModelCounts | None = None
    reference: str | None = None
    latency_ms: dict[str, Interval | None] | None = None
    latency_calls: int | None = None
    roof: RowRoof | None = None
    verdict: dict[Metric, Decision | None] = field(default_factory=dict)


# The document


@dataclass(frozen=True)
class ComparedLabels:
    """The labels of the frames. ``conf``, ``iou``, ``max_det``: options of the scored run."""

    path: str
    format: str
    mapping: str | None
    classes: tuple[str, ...] | None
    pictures: int
    boxes: int
    conf: float
    iou: float
    max_det: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ComparedVideo:
    path: str
    width: int
    height: int
    fps: float


@dataclass(frozen=True, kw_only=True)
class About:
    """The facts that all rows share. ``model``: the first of several ``models``. ``budget``: the
    minimum agreement for ``auto``. ``usual``: the row with a run's default engine and precision, if
    known; ``why_usual``: why these are the default."""

    schema: int = SCHEMA
    source: str
    model: str | None = None
    model_sha256: str | None = None
    model_input: tuple[int, int] | None = None  # height, width
    random_weights: int | None = None
    rounds: int
    frames: int | None = None
    reference: str | None = None
    models: tuple[str, ...] = ()
    budget: float
    labels: ComparedLabels | None = None
    usual: str | None = None
    why_usual: str | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison(About):
    """``comparable``: false if there are ``warnings``, null for one round or no row. ``fastest``:
    the row that wins beyond the noise. ``contenders``: the row with the highest median, and rows
    that noise may have put below it. ``recorded``: the result's file, or why it is missing."""

    rows: tuple[Row, ...]
    comparable: bool | None
    baseline: str | None
    interval: str
    warnings: tuple[str, ...]
    fastest: dict[Metric, str | None]
    contenders: dict[Metric, tuple[str, ...]] = field(default_factory=dict)
    noise: Noise | None = None
    video: ComparedVideo | UnsetType = UNSET
    recorded: str | UnsetType = UNSET


# Messages from the process of a variant


@dataclass(frozen=True)
class CountedLayer:
    """A layer's MACs and memory traffic for a whole batch, in the ``precision`` that it ran in."""

    precision: str
    macs: int
    bytes: int


@dataclass(frozen=True)
class VariantFacts:
    """The facts that a variant sends once its engine is open. ``computes``: false for engine null.
    ``model_input``: height, width. ``random_weights``: the seed, if weights are random."""

    load_s: float | None = None
    build_s: float | None = None
    computes: bool = True
    precision_executed: Shares | None = None
    threads: int | None = None
    concurrency: int | None = None
    device: str | None = None
    notes: tuple[str, ...] = ()
    model: str | None = None
    model_sha256: str | None = None
    model_input: tuple[int, int] | None = None
    random_weights: int | None = None
    class_names: tuple[str, ...] = ()
    counts: ModelCounts | None = None
    layers: tuple[CountedLayer, ...] = ()


@dataclass(frozen=True)
class Round:
    """A variant's turn in a round. ``cpu_ms``: stage -> CPU time of its thread per frame.
    ``calls_ms``: the network calls, as (duration to within 1%, number of such calls).

    ``idle_cpu``: cores that the variant kept busy during the other variants' turns. ``others``:
    cores that other programs used during this turn; None if unknown. ``detections``: the file with
    the detections, if requested.
    """

    fps: dict[Metric, float | None]
    cpu_ms: dict[str, float]
    frames: int
    idle_cpu: float = 0.0
    calls_ms: tuple[tuple[float, int], ...] = ()
    others: float | None = None
    cores: int = 0
    video_bytes: int = 0
    detections: str | None = None
