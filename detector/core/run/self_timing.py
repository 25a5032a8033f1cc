"""The first run of a model on a machine: time which engine and precision are fastest.

Each installed engine runs the network alone, for a few alternating rounds, in each precision that
needs no calibration. A calibration tells what a precision loses (``KnownLosses``); without one, we
measure it on frames of the run's source (``MeasuredLosses``) if the run is long enough to repay it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from detector.core import engines
from detector.core.config.schema import PACKAGED, Config, RuntimeConfig
from detector.core.engines import base
from detector.core.engines.base import BuildProgress
from detector.core.errors import EngineError, OutputError, UsageError
from detector.core.errors.machine import usable_cores
from detector.core.run import measurements
from detector.core.run.canvas import open_network, own_canvas
from detector.core.run.prepare import prepare_network, silent
from detector.core.session.measured import Interval, MeasuredCalibration, MeasuredRow

if TYPE_CHECKING:
    from detector.core.engines.base import Engine
    from detector.core.models.base import Network
    from detector.core.run.losses import Losses
    from detector.core.run.reading import SourceReading

PRECISIONS = ("fp32", "int8", "bf16", "tf32", "fp16")
OPENING = 0.63  # share of the total time after which no further engine is opened
ROUNDS, ROUND_S = 7, 0.03  # of each engine
MOST_ROUNDS = 3 * ROUNDS  # if other programs' load leaves the fastest undecided

Clock = Callable[[], float]


@dataclass(slots=True)
class _WarmEngine:
    """An open, warm engine. ``calls``: of each thread in a round."""

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
    progress: BuildProgress = silent,
    clock: Clock = time.monotonic,
) -> measurements.Timing | None:
    """Times this network on this machine; None if there is nothing to choose. ``ahead``: what the
    run reads, if it may be looked at. Raises EngineError if ``progress`` stops it."""
    from detector.core.run.losses import KnownLosses, MeasuredLosses
    from detector.core.run.quantize.calibrate import packaged
    from detector.core.run.sampling import Ahead

    start, shape = clock(), own_canvas(network, config)
    calibration = packaged(network, config.network.model)
    losses: Losses | None = None
    about = None
    if calibration is not None and not base.NVIDIA_DRIVER.exists():
        losses = KnownLosses.of(calibration)
        about = MeasuredCalibration(
            PACKAGED, calibration.method, calibration.seen, calibration.budget
        )
        if shape != (network.input.height, network.input.width):
            network = open_network(_at(config, shape))
    elif ahead is not None:
        losses = MeasuredLosses.at(
            network, Ahead(*ahead), base.NVIDIA_DRIVER.exists(), usable_cores()
        )
    if losses is None or not _leaves_a_choice(losses, config.runtime):
        return None
    timed = _bare(config) if about is not None else config
    rows, rounds = time_engines(network, timed, losses, progress, clock, start)
    if not rows:
        return None
    made = measurements.make(
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
        where = f"cached the result in {measurements.keep(made, config)}"
    except OutputError:
        where = "could not cache the result, so the next run repeats this"
    speeds = ", ".join(
        f"{row.engine} {row.precision} {speed.median:.0f}"
        for row in rows
        if (speed := row.fps["inference"]) is not None
    )
    note = (
        f"first run of {network.name} on this machine: benchmarked the engines in "
        f"{clock() - start:.1f} s (not counted in these figures; inference FPS: {speeds}) "
        f"and {where}; --no-self-timing turns this off"
    )
    return measurements.Timing(made, note)


def _leaves_a_choice(losses: Losses, runtime: RuntimeConfig) -> bool:
    """Return whether the user's options leave more than one choice."""
    allowed = [
        name
        for name, precision in _order(losses.precisions, runtime)
        if runtime.engine in ("auto", name) and runtime.precision in ("auto", precision)
    ]
    return len(allowed) > 1


def _bare(config: Config) -> Config:
    """Return the configuration with the packaged calibration, whatever else is saved."""
    return replace(config, calibration=replace(config.calibration, calibrate=PACKAGED))


def _at(config: Config, shape: tuple[int, int]) -> Config:
    return replace(config, runtime=replace(config.runtime, size=f"{shape[1]}x{shape[0]}"))


def time_engines(
    network: Network,
    config: Config,
    losses: Losses,
    progress: BuildProgress,
    clock: Clock = time.monotonic,
    begun: float | None = None,
) -> tuple[list[MeasuredRow], int]:
    """Return inference FPS of each engine and precision, measured in alternating rounds, and the
    number of rounds. No rows if no time is left since ``begun``."""
    from detector.core.run.losses import LIMIT_S

    begun = clock() if begun is None else begun
    limit_s = LIMIT_S
    doing = f"benchmarking the engines for {network.name}"
    with ExitStack() as stack:
        candidates: list[_WarmEngine] = []
        for name, precision in _order(losses.precisions, config.runtime):
            if candidates and clock() - begun > limit_s * OPENING:
                break
            with suppress(EngineError, UsageError):
                one = _open(network, config, name, precision, stack, clock)
                if not candidates and not losses.are_known:
                    limit_s = losses.limit_s(1 / _round(one, clock))
                    if clock() - begun > limit_s * OPENING:
                        return [], 0  # before anything is decoded
                agreement = losses.agreement(one.engine, name, precision)
                if agreement is None:
                    return [], 0
                one.agreement = agreement
                candidates.append(one)
        if not losses.are_known and len(candidates) < 2:
            return [], 0
        for done in range(MOST_ROUNDS):
            if not progress(doing, min(done, ROUNDS), ROUNDS):
                raise EngineError("engine benchmark was stopped; --no-self-timing skips it")
            if done >= measurements.ENOUGH_ROUNDS and clock() - begun > limit_s:
                break
            if done >= ROUNDS and not _is_undecided(candidates):
                break
            for one in candidates:
                one.fps.append(_round(one, clock))
    rows = [
        measurements.row(
            one.name,
            one.precision,
            {"engine": one.name, "precision": one.precision},
            one.agreement,
            inference=_interval(one.fps),
        )
        for one in candidates
    ]
    return rows, max((len(one.fps) for one in candidates), default=0)


def _is_undecided(candidates: Sequence[_WarmEngine]) -> bool:
    """Return whether one candidate would be worth taking by its median but not by its range."""
    if not candidates:
        return False
    first, *others = (_interval(one.fps) for one in candidates)
    worth = [one for one in others if one.median >= measurements.WORTH * first.median]
    return bool(worth) and all(one.low <= first.high for one in worth)


def _order(precisions: Collection[object], runtime: RuntimeConfig) -> list[tuple[str, str]]:
    """Return (engine, precision) of what is installed; the others are compared with the first."""
    usable = engines.usable()
    first = runtime.engine
    if first == "auto":
        first = engines.choose_by_rank("fp32", runtime.device)[0]
    timed = (first,) if base.NVIDIA_DRIVER.exists() else measurements.TIMED
    there = [name for name in timed if usable.get(name, "") is None]
    pairs = [(name, precision) for precision in PRECISIONS for name in there]
    speed = {("openvino", "int8"): 0, ("ort", "int8"): 1, ("openvino", "bf16"): 2}
    pairs.sort(key=lambda pair: (pair != (first, "fp32"), speed.get(pair, 3)))
    return [
        (name, precision)
        for name, precision in pairs
        if precision in precisions and precision in engines.find(name).precisions
    ]


def _open(
    network: Network, config: Config, name: str, precision: str, stack: ExitStack, clock: Clock
) -> _WarmEngine:
    runtime = replace(config.runtime, engine=name, precision=precision)
    engines.graph_wanted(name, precision, runtime.device)  # refuses before anything is imported
    ready = prepare_network(network, name, replace(config, runtime=runtime), lambda most: most)
    engine = stack.enter_context(engines.open(name, ready.network, ready.options))
    for request in engine.requests:
        request.infer(1)
    start = clock()
    engine.requests[0].infer(1)
    took_s = max(clock() - start, 1e-6)
    return _WarmEngine(name, precision, engine, max(1, round(ROUND_S / took_s)))


def _round(one: _WarmEngine, clock: Clock) -> float:
    """Return frames per second, with as many concurrent requests as in a run."""
    # its import takes a fiftieth of a start, and only one run in many needs it
    from concurrent.futures import ThreadPoolExecutor

    at_once = one.engine.requests[: one.engine.concurrency]

    def work(index: int) -> None:
        for _ in range(one.calls):
            at_once[index].infer(1)

    with ThreadPoolExecutor(len(at_once)) as pool:
        start = clock()
        list(pool.map(work, range(len(at_once))))
        return one.calls * len(at_once) / max(clock() - start, 1e-6)


def _interval(fps: Sequence[float]) -> Interval:
    """Return the interval without the best and worst quarter, perhaps due to other programs."""
    cut = max(1, len(fps) // 4)
    inner = sorted(fps)[cut:-cut] or sorted(fps)
    return Interval(inner[len(inner) // 2], inner[0], inner[-1])
