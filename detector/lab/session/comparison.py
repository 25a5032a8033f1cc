"""What ``compare`` prints with --json; what it keeps of that is in ``measured``."""

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
    """The agreement of a row's detections with the reference's, on the same pictures. ``matched``:
    2 x pairs / (detections of both), at IoU 0.5; null if neither side has any. The means are over
    pairs; null without one.
    """

    matched: float | None
    mean_iou: float | None
    mean_score_diff: float | None
    detections: int
    detections_reference: int
    frames: int


@dataclass(frozen=True)
class ModelCounts:
    """A variant's network. ``input``: height, width. ``size_bytes``: of the graph that the engine
    was given, in its precision. ``macs``: a picture. None where no graph is left to count."""

    name: str
    sha256: str | None
    input: tuple[int, int]
    parameters: int | None
    size_bytes: int | None
    macs: int | None


@dataclass(frozen=True)
class RowRoof:
    """How near to this computer's roof inference was: ``share`` of it, and what ``bound`` it; the
    peaks are measured once, with all cores of the variant."""

    share: float
    bound: str


@dataclass(frozen=True)
class Decision:
    """A row beside the baseline, beyond the noise or not. ``outcome``: faster, slower, same (a
    difference that matters is ruled out) or open. ``ratio`` with ``low`` and ``high``: of FPS, for
    all rows and looks together; null where so few rounds bound nothing. ``p``: corrected by Holm.
    ``largest``: no larger difference fits the rounds. ``smallest``: the least effect that this many
    rounds find in nine of ten cases. Both as shares."""

    outcome: str
    ratio: float
    low: float | None
    high: float | None
    p: float
    largest: float | None
    smallest: float | None


@dataclass(frozen=True)
class Noise:
    """The effect of chance. ``floor``: the share that two processes of the baseline were apart, or
    the general value for two processes (``measured`` false). ``smallest``: the least effect that
    the rows' rounds can show. ``stopped``: rounds (as asked), decided, most (rounds) or time.
    ``alpha``: the rate of false alarms, and ``share``: what the last look could spend of it."""

    floor: dict[Metric, float]
    measured: bool
    smallest: dict[Metric, float | None]
    stopped: str
    rounds: int
    alpha: float
    share: float


@dataclass(frozen=True)
class Row:
    """One variant. Speeds, ratios and CPU are null where ``error`` says why.

    ``ratio``: the median of the rounds' own ratios to the baseline, ``ratio_interval`` the lowest
    and the highest. ``stage_cpu_ms``: milliseconds a frame. ``memory_mb``: peak, in 10^6 bytes.
    ``precision_effect``: a sentence where the requested precision changed nothing. ``reference``:
    the row whose detections ``agreement`` is with. ``latency_ms``: p50 and p90 of one call of the
    network, which holds a whole batch: of the ``latency_calls`` of all rounds, with the lowest and
    the highest of the rounds that are long enough for one.
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
    """The labels of the frames. ``conf``, ``iou`` and ``max_det``: of the pass that was scored."""

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
    """What is the same for all rows; of several ``models``, the first is ``model``. ``budget``: the
    least agreement that ``auto`` accepts. ``usual``: the row that a run uses by default, if asked
    for, and ``why_usual``."""

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
    """``comparable``: null with one round or no row. ``fastest``: the row that wins beyond the
    noise; ``contenders``: rows within the noise of the highest median, that one first.
    ``recorded``: the file that keeps the result, or why none does."""

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


# What one process of a comparison tells


@dataclass(frozen=True)
class CountedLayer:
    """The work and traffic of a layer for a whole batch, in the type that it ran in."""

    precision: str
    macs: int
    bytes: int


@dataclass(frozen=True)
class VariantFacts:
    """The message of a variant once it is open. ``computes``: false for an engine without a
    network. ``model_input``: height, width. ``random_weights``: the seed, if weights are random.
    """

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
    """One turn of a variant. ``cpu_ms``: CPU of each stage's own thread, milliseconds a frame.
    ``calls_ms``: of the network: how long, within 1%, and how many of them.

    ``idle_cpu``: cores that the variant kept busy while the others had their turn. ``others``:
    cores that other programs used meanwhile; None where the system does not tell. ``detections``:
    the file that keeps them, where that was asked for.
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
