"""Compares two saved sessions: what became slower, and whether that exceeds the runs' own noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.session.document import SessionDocument
from detector.lab.analysis.loop.activities import activities_of, durations_ms, frames_written
from detector.lab.session.read import SavedSession

DRAWS = 1000
FEWEST = 5  # samples; fewer give no interval
BLOCKS = 20  # neighbouring frames are drawn together: a slow minute is one event, not a thousand
SEED = 0
SHORTEST_MS = 1e-12  # for ratios of calls that took no time


@dataclass(frozen=True, slots=True)
class Change:
    """``before``, ``after``: milliseconds. ``ratio``: after / before, with its 95% bootstrap
    interval (``low``, ``high``)."""

    what: str
    before: float
    after: float
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > 1:
            return "slower"
        return "faster" if self.high < 1 else "no difference beyond the noise"

    def regresses(self, limit: float) -> bool:
        """True where it is slower by more than ``limit`` (0.05 = 5%), and the whole interval says
        that it is slower."""
        return self.ratio > 1 + limit and self.low > 1

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "before_ms": self.before,
            "after_ms": self.after,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict,
        }


SETTINGS = (
    "model",
    "engine",
    "precision",
    "batch",
    "model_input",
    "engine_threads",
    "concurrency",
    "sync",
)
# Options that change how long a stage takes. Paths and the number of frames do not.
OPTIONS = {
    "runtime": ("device", "engine_options"),
    "selection": ("conf", "iou", "classes", "agnostic", "max_det"),
    "input": ("decoder", "stride", "tiles"),
    "output": (
        "save",
        "no_video",
        "only_detections",
        "lead",
        "quality",
        "preset",
        "crf",
        "encoder",
    ),
    "drawing": ("line_width", "font_scale", "font", "hide_labels", "hide_scores", "blur"),
    "loop": ("queue_batches", "nvtx", "instruments"),
}
END_TO_END = "end to end, per frame"


def diff(before: SavedSession, after: SavedSession) -> list[Change]:
    """End to end first, then every stage of which both runs have enough samples."""
    pairs = {END_TO_END: (periods_ms(before), periods_ms(after))}
    pairs |= {
        stage: (durations_ms(before.spans, stage), durations_ms(after.spans, stage))
        for stage in before.document.stages
    }
    return [
        change(what, *samples)
        for what, samples in pairs.items()
        if min(map(len, samples)) >= FEWEST
    ]


def periods_ms(session: SavedSession) -> NDArray[np.float64]:
    """[N] float64: milliseconds from one frame's end to the next one's, over every source. Their
    mean is the time of a frame in the steady state."""
    parts = [
        np.diff(frames_written(activities_of(session.spans, source))) / 1e6
        for source in np.unique(session.spans["source"]).tolist()
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def change(what: str, before: NDArray[np.float64], after: NDArray[np.float64]) -> Change:
    """The ratio of the means, with an interval by block bootstrap."""
    dice = np.random.default_rng(SEED)
    ratios = _means(after, dice) / _means(before, dice)
    low, high = np.percentile(ratios, (2.5, 97.5))
    first, second = float(before.mean()), float(after.mean())
    ratio = max(second, SHORTEST_MS) / max(first, SHORTEST_MS)
    return Change(what, first, second, ratio, float(low), float(high))


def _means(values: NDArray[np.float64], dice: np.random.Generator) -> NDArray[np.float64]:
    blocks = np.array_split(values, min(BLOCKS, len(values)))
    sums = np.array([block.sum() for block in blocks])
    counts = np.array([len(block) for block in blocks])
    picked = dice.integers(0, len(blocks), (DRAWS, len(blocks)))
    means: NDArray[np.float64] = sums[picked].sum(axis=1) / counts[picked].sum(axis=1)
    return np.maximum(means, SHORTEST_MS)


def what_differs(before: SavedSession, after: SavedSession) -> list[str]:
    """Settings, libraries and computers that differ, a line each. They may be the reason for a
    change."""
    first, second = _settings(before.document), _settings(after.document)
    pairs = {name: (first.get(name), second.get(name)) for name in {**first, **second}}
    lines = [f"{name}: {_shown(a)} -> {_shown(b)}" for name, (a, b) in pairs.items() if a != b]
    old, new = before.document, after.document
    if old.model_sha256 != new.model_sha256 and old.model == new.model:
        lines.append("the models of that name are not the same file")
    clips = [sorted(document.clip_sha256.values(), key=str) for document in (old, new)]
    if clips[0] != clips[1]:
        lines.append("the clips are not the same file")
    return lines


def _settings(document: SessionDocument) -> dict[str, Any]:
    """What should be the same in both runs, by the name under which it is printed."""
    environment = document.environment
    return {
        **{name: getattr(document, name) for name in SETTINGS},
        **{
            name: document.config.get(group, {}).get(name)
            for group, names in OPTIONS.items()
            for name in names
        },
        "machine": environment.cpu.model,
        "cores": environment.cpu.cores,
        "detect-video": environment.detect_video,
        **environment.libraries,
    }


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    return "-" if value is None else str(value)
