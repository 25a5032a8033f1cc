"""Compare two saved sessions: what became slower, and whether that exceeds the runs' noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from detector.core.session.document import SessionDocument
from detector.lab.analysis.load import CpuChange, OtherLoad, most_grown
from detector.lab.analysis.loop.activities import activities_of, durations_ms, frames_written
from detector.lab.analysis.statistics import ALPHA, compare_means, holm
from detector.lab.session.read import SavedSession

FEWEST = 5  # samples; stages with fewer are skipped
VAGUE = 2.0  # an interval that includes this ratio and its inverse shows nothing
INCOMPARABLE = "cannot be compared"
SHORTEST_MS = 1e-12  # avoids ratios of zero for calls that took no time


@dataclass(frozen=True, slots=True)
class RunChange:
    """``ratio``: after / before, with its 95% interval (``low``, ``high``). ``p``: p value of the
    test for a difference; for a stage, corrected for the number of stages. ``smallest``: the
    least effect that the test detects in 9 of 10 cases."""

    what: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    p: float
    smallest: float

    @property
    def verdict(self) -> str:
        if self.low < 1 / VAGUE and self.high > VAGUE:
            return INCOMPARABLE
        if self.p > ALPHA:
            return "no difference beyond the noise"
        return "slower" if self.ratio > 1 else "faster"

    @property
    def largest(self) -> float:
        """Return the largest difference, as a share, that is compatible with the two runs."""
        return max(abs(self.low - 1), abs(self.high - 1))

    def regresses(self, limit: float) -> bool:
        """Return whether the run is slower by more than ``limit`` (0.05 = 5%), beyond the noise."""
        return self.ratio > 1 + limit and self.low > 1

    def as_json(self) -> dict[str, Any]:
        names = ("ratio", "low", "high", "verdict", "p", "largest", "smallest")
        times = {"what": self.what, "before_ms": self.before, "after_ms": self.after}
        return times | {name: getattr(self, name) for name in names}


SETTINGS = (
    *("model", "engine", "precision", "batch", "model_input", "engine_threads", "concurrency"),
    "sync",
)
# Options that change how long a stage takes. Paths and the number of frames do not.
OPTIONS = {
    "runtime": ("device", "engine_options"),
    "selection": ("conf", "iou", "classes", "agnostic", "max_det"),
    "input": ("decoder", "stride", "tiles"),
    "output": (
        *("save", "no_video", "only_detections", "lead", "quality", "preset", "crf"),
        "encoder",
    ),
    "drawing": ("line_width", "font_scale", "font", "hide_labels", "hide_scores", "blur"),
    "loop": ("queue_batches", "nvtx", "instruments"),
}
END_TO_END = "end to end, per frame"


def diff(before: SavedSession, after: SavedSession) -> list[RunChange]:
    """List the end-to-end change, then the change of each stage with enough samples in both runs.
    Stages' p values are corrected for multiple tests; the end-to-end change is tested alone."""
    pairs = {END_TO_END: (periods_ms(before), periods_ms(after))}
    pairs |= {
        stage: (durations_ms(before.spans, stage), durations_ms(after.spans, stage))
        for stage in before.document.stages
    }
    changes = [
        change(what, *samples)
        for what, samples in pairs.items()
        if min(map(len, samples)) >= FEWEST
    ]
    stages = [one for one in changes if one.what != END_TO_END]
    corrected = holm([one.p for one in stages])
    overall = [one for one in changes if one.what == END_TO_END]
    return overall + [replace(one, p=p) for one, p in zip(stages, corrected, strict=True)]


def judge_gate(
    limit: float, frame: RunChange, load: OtherLoad | None, cpu: Sequence[CpuChange]
) -> tuple[Literal["passed", "failed", "not judged"], str]:
    """Return the outcome of ``--max-regression`` and its reason. If the loads of other
    programs differ, CPU times decide. Otherwise the end-to-end change ``frame`` decides."""
    if load is not None and load.crowded:
        others = f"other programs used {max(load.before, load.after):.1f} of {load.cores} cores"
        return "not judged", f"{others}, so CPU times differ, too; repeat without them"
    if load is not None and load.differs:
        if (worst := most_grown(cpu, limit)) is None:
            return "passed", "no CPU time grew beyond the limit and what other programs explain"
        times = f"{worst.before:.2f} -> {worst.after:.2f} ms per frame ({worst.ratio - 1:+.0%})"
        return "failed", f"CPU time of {worst.what}: {times}, more than other programs explain"
    interval = f"[{frame.low - 1:+.1%} .. {frame.high - 1:+.1%}]"
    reason = f"a frame takes {frame.ratio - 1:+.1%} {interval}; {limit:+.1%} is allowed"
    if frame.verdict == INCOMPARABLE:
        return "not judged", f"{reason}; run more frames"
    return "failed" if frame.regresses(limit) else "passed", reason


def periods_ms(session: SavedSession) -> NDArray[np.float64]:
    """Return the milliseconds [N] between the ends of successive frames."""
    parts = [
        np.diff(frames_written(activities_of(session.spans, source))) / 1e6
        for source in np.unique(session.spans["source"]).tolist()
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def change(what: str, before: NDArray[np.float64], after: NDArray[np.float64]) -> RunChange:
    means = compare_means(np.maximum(before, SHORTEST_MS), np.maximum(after, SHORTEST_MS))
    return RunChange(what, float(before.mean()), float(after.mean()), *means)


def list_differences(before: SavedSession, after: SavedSession) -> list[str]:
    first, second = _settings(before.document), _settings(after.document)
    pairs = {name: (first.get(name), second.get(name)) for name in {**first, **second}}
    lines = [f"{name}: {_format(a)} -> {_format(b)}" for name, (a, b) in pairs.items() if a != b]
    old, new = before.document, after.document
    if old.model_sha256 != new.model_sha256 and old.model == new.model:
        lines.append("the model files differ, though they have the same name")
    clips = [sorted(document.clip_sha256.values(), key=str) for document in (old, new)]
    if clips[0] != clips[1]:
        lines.append("the clips are different files")
    return lines


def _settings(document: SessionDocument) -> dict[str, Any]:
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
        "commit": environment.commit,
        **environment.libraries,
    }


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    return "-" if value is None else str(value)
