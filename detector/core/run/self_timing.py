"""Time engines and precisions in a model's first run on a machine, to find the fastest.

Each installed engine runs only the network, in each precision whose loss of accuracy we know. The
engines take turns for a few rounds. A packaged calibration records the losses (``KnownLosses``).
Without it, we measure them on frames of the source (``MeasuredLosses``) if the run is long enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from detector.core import engines
from detector.core.config.schema import PACKAGED, Config, RuntimeConfig
from detector.core.engines import _ranking, base
from detector.core.engines.base import BuildProgress
from detector.core.errors import EngineError, OutputError, UsageError
from detector.core.errors.machine import usable_cores
from detector.core.run import measurements, saving
from detector.core.run.canvas import open_network, own_canvas
from detector.core.run.prepare import ignore_progress, prepare_network
from detector.core.session.measured import Interval, MeasuredCalibration, MeasuredRow

if TYPE_CHECKING:
    from detector.core.engines.base import Engine
    from detector.core.models.base import Network
    from detector.core.run.losses import KnownLosses, MeasuredLosses
    from detector.core.run.reading import SourceReading

PRECISIONS = ("fp32", "int8", "bf16", "tf32", "fp16")
OPENING = 0.63  # share of the total time after which no further engine is opened
ROUNDS, ROUND_S = 7, 0.03  # number of rounds of each engine, and seconds per round
MAX_ROUNDS = 3 * ROUNDS  # limit of rounds if the load of other programs leaves the result undecided

Clock = Callable[[], float]


@dataclass(slots=True)
class _WarmEngine:
    """An open, warm engine. ``calls``: number of inferences of each thread in a round."""

    name: str
    precision: str
    engine: Engine
    calls: int = 1
    agreement: float = 1.0
    fps: list[float] = field(default_factory=list)


def make(
    network: Network,
    config: Config,
    ahead: tuple[SourceReading, Sequence[str]] | None = None,
    progress: BuildProgress = ignore_progress,
    clock: Clock = time.monotonic,
) -> measurements.Timing | None:
    """Time this network on this machine. Return None if there is nothing to choose. ``ahead``: the
    run's sources, if the timing may read them. Raises EngineError if ``progress`` stops it."""
    from detector.core.run.losses import KnownLosses, MeasuredLosses
    from detector.core.run.quantize.calibrate import packaged
    from detector.core.run.sampling import Ahead

    start, shape = clock(), own_canvas(network, config)
    calibration = packaged(network, config.network.model)
    losses: KnownLosses | MeasuredLosses | None = None
    about = None
    if calibration is not None and not base.NVIDIA_DRIVER.exists():
        losses = KnownLosses.of(calibration)
        about = MeasuredCalibration(
            PACKAGED, calibration.method, calibration.seen, calibration.budget
        )
        if shape != (network.input.height, network.input.width):
            network = open_network(config.with_options({"size": f"{shape[1]}x{shape[0]}"}))
    elif ahead is not None:
        losses = MeasuredLosses.at(
            network, Ahead(*ahead), base.NVIDIA_DRIVER.exists(), usable_cores()
        )
    if losses is None or not _leaves_a_choice(losses, config.runtime):
        return None
    # If there is a packaged calibration, time int8 with it, even if another one is saved.
    timed = config if about is None else config.with_options({"calibrate": PACKAGED})
    rows, rounds = time_engines(network, timed, losses, progress, clock, start)
    if not rows:
        return None
    made = saving.make(
        config,
        "self-timing",
        rows,
        model=network.name,
        model_sha256=network.sha256,
        model_input=shape,
        rounds=rounds,
        calibration=about,
    )
    try:
        where = f"cached the result in {saving.keep(made, config)}"
    except OutputError:
        where = "could not cache the result, so the next run repeats this"
    speeds = ", ".join(
        f"{row.engine} {row.precision} {speed.median:.0f}"
        for row in rows
        if (speed := row.fps["inference"]) is not None
    )
    note = (
        f"first run of {network.name} on this machine: benchmarked the engines "
        f"(inference FPS: {speeds}) and {where}; the {clock() - start:.1f} s that this took are "
        "not in the run's figures; --no-self-timing turns this off"
    )
    return measurements.Timing(made, note)


def _leaves_a_choice(losses: KnownLosses | MeasuredLosses, runtime: RuntimeConfig) -> bool:
    allowed = [
        name
        for name, precision in _list_pairs(losses.precisions, runtime)
        if runtime.engine in ("auto", name) and runtime.precision in ("auto", precision)
    ]
    return len(allowed) > 1


def time_engines(
    network: Network,
    config: Config,
    losses: KnownLosses | MeasuredLosses,
    progress: BuildProgress,
    clock: Clock,
    begun: float,
) -> tuple[list[MeasuredRow], int]:
    """Return a row with inference FPS for each engine and precision, and the number of alternating
    rounds. Return no rows if ``begun`` was so long ago that too little time is left."""
    from detector.core.run.losses import LIMIT_S

    limit_s = LIMIT_S
    doing = f"benchmarking the engines for {network.name}"
    with ExitStack() as stack:
        candidates: list[_WarmEngine] = []
        for name, precision in _list_pairs(losses.precisions, config.runtime):
            if candidates and clock() - begun > limit_s * OPENING:
                break
            with suppress(EngineError, UsageError):
                candidate = _open_engine(network, config, name, precision, stack, clock)
                if not candidates and not losses.are_known:
                    limit_s = losses.limit_s(1 / _run_round(candidate, clock))
                    if clock() - begun > limit_s * OPENING:
                        return [], 0  # no time is left to decode frames
                agreement = losses.agreement(candidate.engine, name, precision)
                if agreement is None:
                    return [], 0
                candidate.agreement = agreement
                candidates.append(candidate)
        if not losses.are_known and len(candidates) < 2:
            return [], 0
        for done in range(MAX_ROUNDS):
            if not progress(doing, min(done, ROUNDS), ROUNDS):
                raise EngineError("engine benchmark was stopped; --no-self-timing skips it")
            if done >= measurements.ENOUGH_ROUNDS and clock() - begun > limit_s:
                break
            if done >= ROUNDS and not _is_undecided(candidates):
                break
            for candidate in candidates:
                candidate.fps.append(_run_round(candidate, clock))
    rows = [
        saving.row(
            candidate.name,
            candidate.precision,
            {"engine": candidate.name, "precision": candidate.precision},
            candidate.agreement,
            inference=_inner_interval(candidate.fps),
        )
        for candidate in candidates
    ]
    return rows, max((len(candidate.fps) for candidate in candidates), default=0)


def _is_undecided(candidates: Sequence[_WarmEngine]) -> bool:
    """Return whether some medians are high enough to replace the first engine, but the rounds do
    not prove it yet: the intervals of these engines all overlap the first engine's."""
    if not candidates:
        return False
    first, *others = (_inner_interval(candidate.fps) for candidate in candidates)
    least = measurements.MIN_SPEEDUP * first.median
    fast_enough = [interval for interval in others if interval.median >= least]
    return bool(fast_enough) and all(interval.low <= first.high for interval in fast_enough)


def _list_pairs(precisions: Collection[object], runtime: RuntimeConfig) -> list[tuple[str, str]]:
    """Return usable pairs (engine, precision). The first is the default, which others must beat."""
    reasons = engines.why_unusable()
    first = runtime.engine
    if first == "auto":
        first = _ranking.choose_by_rank("fp32", runtime.device)[0]
    timed = (first,) if base.NVIDIA_DRIVER.exists() else measurements.TIMED
    installed = [name for name in timed if reasons.get(name, "") is None]
    pairs = [(name, precision) for precision in PRECISIONS for name in installed]
    speed = {("openvino", "int8"): 0, ("ort", "int8"): 1, ("openvino", "bf16"): 2}
    pairs.sort(key=lambda pair: (pair != (first, "fp32"), speed.get(pair, 3)))
    return [
        (name, precision)
        for name, precision in pairs
        if precision in precisions and precision in engines.find(name).precisions
    ]


def _open_engine(
    network: Network, config: Config, name: str, precision: str, stack: ExitStack, clock: Clock
) -> _WarmEngine:
    config = config.with_options({"engine": name, "precision": precision})
    # Refuse a precision or device before a slow import.
    engines.graph_precision_for(name, precision, config.runtime.device)
    prepared = prepare_network(network, name, config, lambda concurrency: concurrency)
    engine = stack.enter_context(engines.open(name, prepared.network, prepared.options))
    for request in engine.requests:
        request.infer(1)
    start = clock()
    engine.requests[0].infer(1)
    took_s = max(clock() - start, 1e-6)
    return _WarmEngine(name, precision, engine, max(1, round(ROUND_S / took_s)))


def _run_round(candidate: _WarmEngine, clock: Clock) -> float:
    """Run one round with as many concurrent requests as a run has. Return frames per second."""
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and rarely needed

    requests = candidate.engine.requests[: candidate.engine.concurrency]

    def work(index: int) -> None:
        for _ in range(candidate.calls):
            requests[index].infer(1)

    with ThreadPoolExecutor(len(requests)) as pool:
        start = clock()
        list(pool.map(work, range(len(requests))))
        return candidate.calls * len(requests) / max(clock() - start, 1e-6)


def _inner_interval(fps: Sequence[float]) -> Interval:
    """Return the interval of the middle half. (Other programs may affect the extreme rounds.)"""
    cut = max(1, len(fps) // 4)
    inner = sorted(fps)[cut:-cut] or sorted(fps)
    return Interval(inner[len(inner) // 2], inner[0], inner[-1])
