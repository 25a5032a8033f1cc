"""What the run would do if a stage were free, if nothing overlapped, if there were one more core: by replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detector.analysis.activities import Activity, LoopShape
from detector.analysis.costs import Cost
from detector.analysis.replay import Beside, Load, replay, wall
from detector.timeline.stages import INFER, PREPROCESS, READ, STAGES, WRITE


@dataclass(frozen=True, slots=True)
class Prediction:
    """``gain``: growth of the end-to-end FPS against the run as it was, 0.08 = 8% faster."""

    change: str
    predicted_fps: float
    gain: float

    def as_json(self) -> dict[str, Any]:
        return {"change": self.change, "predicted_fps": self.predicted_fps, "gain": self.gain}


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run beside its replay. ``error``: replayed wall time / measured - 1."""

    load: Load
    wall_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.wall_s / self.measured_s - 1 if self.measured_s else 0.0


def load_of(
    activities: Sequence[Activity],
    shape: LoopShape,
    costs: Mapping[str, Cost],
    between_s: Mapping[str, float],
    cores: float,
) -> Load:
    """The load of a recorded run. Its durations were recorded while the threads slowed each other down; the replay does
    so again, so each stage's calls are scaled to what they take alone, on average.

    ``between_s``: seconds that a thread spent outside of any span, by thread.
    """
    recorded = {stage: _durations(activities, stage) for stage in STAGES}
    scale = {stage: _ratio(cost.seconds, _mean(recorded[stage])) for stage, cost in costs.items()}
    demand = {stage: _ratio(cost.cpu, cost.seconds, otherwise=0.0) for stage, cost in costs.items()}
    frames = len(recorded[PREPROCESS])
    beside = {
        stage: Beside([cost.aside.seconds] * frames, cost.aside.cpu / cost.aside.seconds, cost.aside.room)
        for stage, cost in costs.items()
        if cost.aside is not None and cost.aside.seconds
    }
    load = Load(frames, shape, recorded, demand, _between(activities, between_s), cores).scaled(scale)
    return replace(load, beside=beside)


def rebatched(load: Load, batch: int, ratio: float, images: int) -> Load:
    """The same frames in other batches. ``ratio``: of an infer call's time, the new batch over the old one;
    ``images``: in the pool then. An infer call takes what its frames took, times what the ratio leaves of each."""
    old, each = load.shape.batch, ratio * load.shape.batch / batch
    calls = load.seconds[INFER]
    by_frame = [calls[frame // old] / old for frame in range(load.frames) if frame // old < len(calls)]
    infer = [each * sum(by_frame[start : start + batch]) for start in range(0, load.frames, batch)]
    # A ragged last batch runs full.
    if infer and load.frames % batch:
        infer[-1] *= batch / (load.frames % batch)
    return replace(load, shape=replace(load.shape, batch=batch, images=images), seconds={**load.seconds, INFER: infer})


def replayed(load: Load, measured_s: float) -> Replayed:
    return Replayed(load, wall(replay(load)), measured_s)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _ratio(above: float | None, below: float | None, otherwise: float = 1.0) -> float:
    return otherwise if above is None or not below else above / below


def _durations(activities: Sequence[Activity], stage: str) -> list[float]:
    found = {one.number: (one.end_ns - one.start_ns) / 1e9 for one in activities if one.stage == stage}
    return [found.get(index, 0.0) for index in range(max(found, default=-1) + 1)]


def _between(activities: Sequence[Activity], between_s: Mapping[str, float]) -> dict[str, float]:
    """A thread's unclaimed time, shared out evenly over its calls."""
    calls: dict[str, int] = {}
    for one in activities:
        calls[one.thread] = calls.get(one.thread, 0) + 1
    thread_of = {one.stage: one.thread for one in activities}
    return {stage: between_s.get(thread, 0.0) / calls[thread] for stage, thread in thread_of.items()}


def predictions(base: Replayed, larger: Load | None = None) -> list[Prediction]:
    """The usual questions, best answer first. The replay says by how much a change helps; from the measured rate on.
    ``larger``: the load in larger batches, where somebody measured what they cost."""
    load = base.load
    changes = {f"{stage} free": load.scaled({stage: 0.0}) for stage in FREED if sum(load.seconds.get(stage, ()))}
    changes["infer twice as fast"] = load.scaled({INFER: 0.5})
    if load.shape.sync:
        changes["overlap on"] = replace(load, shape=replace(load.shape, sync=False))
    else:
        changes["overlap off"] = replace(load, shape=replace(load.shape, sync=True))
    if larger is not None:
        changes[f"batch {larger.shape.batch}"] = larger
    changes["one more core"] = replace(load, cores=load.cores + 1)
    found = [_prediction(name, changed, base) for name, changed in changes.items()]
    return sorted(found, key=lambda one: -one.gain)


FREED = (INFER, READ, WRITE, PREPROCESS)


def _prediction(name: str, changed: Load, base: Replayed) -> Prediction:
    seconds = wall(replay(changed))
    factor = base.wall_s / seconds if seconds else float("inf")
    return Prediction(name, base.load.frames / base.measured_s * factor, factor - 1)
