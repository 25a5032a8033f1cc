"""What the run would do if a stage were free, if nothing overlapped, if there were one more core: by replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detector.analysis.activities import Activity, LoopShape
from detector.analysis.replay import Load, replay, wall
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
    alone_s: Mapping[str, float],
    cpu_s: Mapping[str, float],
    other_s: Mapping[str, float],
    cores: float,
) -> Load:
    """The load of a recorded run. Its durations were recorded while the threads slowed each other down; the replay does
    so again, so each stage's calls are scaled to what they take alone.

    ``alone_s``, ``cpu_s``: seconds of a call of each stage with the machine to itself, on average, and CPU seconds with
    what libraries burn for it. ``other_s``: seconds a thread spent outside of any span.
    """
    recorded = {stage: _durations(activities, stage) for stage in STAGES}
    scale = {stage: _ratio(alone_s.get(stage), _mean(values)) for stage, values in recorded.items()}
    demand = {stage: _ratio(cpu_s.get(stage), alone_s.get(stage), otherwise=0.0) for stage in recorded}
    frames = len(recorded[PREPROCESS])
    return Load(frames, shape, recorded, demand, _between(activities, other_s), cores).scaled(scale)


def replayed(load: Load, measured_s: float) -> Replayed:
    return Replayed(load, wall(replay(load)), measured_s)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _ratio(above: float | None, below: float | None, otherwise: float = 1.0) -> float:
    return otherwise if above is None or not below else above / below


def _durations(activities: Sequence[Activity], stage: str) -> list[float]:
    found = {one.number: (one.end_ns - one.start_ns) / 1e9 for one in activities if one.stage == stage}
    return [found.get(index, 0.0) for index in range(max(found, default=-1) + 1)]


def _between(activities: Sequence[Activity], other_s: Mapping[str, float]) -> dict[str, float]:
    """A thread's unclaimed time, shared out evenly over its calls."""
    calls: dict[str, int] = {}
    for one in activities:
        calls[one.thread] = calls.get(one.thread, 0) + 1
    thread_of = {one.stage: one.thread for one in activities}
    return {stage: other_s.get(thread, 0.0) / calls[thread] for stage, thread in thread_of.items()}


def predictions(base: Replayed, stages: Sequence[str] = (INFER, READ, WRITE, PREPROCESS)) -> list[Prediction]:
    """The usual questions, best answer first. The replay says by how much a change helps; from the measured rate on."""
    load, now = base.load, base.load.frames / base.measured_s
    changes = {f"{stage} free": load.scaled({stage: 0.0}) for stage in stages if sum(load.seconds.get(stage, ()))}
    changes["infer twice as fast"] = load.scaled({INFER: 0.5})
    if load.shape.sync:
        changes["overlap on"] = replace(load, shape=replace(load.shape, sync=False))
    else:
        changes["overlap off"] = replace(load, shape=replace(load.shape, sync=True))
    changes["one more core"] = replace(load, cores=load.cores + 1)
    found = []
    for name, changed in changes.items():
        seconds = wall(replay(changed))
        factor = base.wall_s / seconds if seconds else float("inf")
        found.append(Prediction(name, now * factor, factor - 1))
    return sorted(found, key=lambda one: -one.gain)
