"""The types of ``eval --json`` and of the evaluation.json that it writes to a session. A figure is
a number, or null if there was nothing to count, such as a class without labelled boxes. If a
dataclass has several bases, the fields of the last base come first in the JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from detector.core.session import codec
from detector.core.session.document import Exit, FrameCounts, Rates

SCHEMA = 1
Figure = float | None
Interval = tuple[Figure, Figure]  # a 95 % interval, by resampling pictures


@dataclass(frozen=True)
class AveragePrecision:
    """COCO's six figures, 0 to 1. ``ap``: the mean over IoU 0.50 to 0.95. ``ap_small``,
    ``ap_medium``, ``ap_large``: for boxes below 32 x 32 pixels, below 96 x 96, and larger."""

    ap: Figure
    ap50: Figure
    ap75: Figure
    ap_small: Figure
    ap_medium: Figure
    ap_large: Figure


@dataclass(frozen=True)
class _Counts:
    pictures: int
    boxes: int


@dataclass(frozen=True)
class ClassAccuracy(AveragePrecision, _Counts):
    """One class. ``pictures``: how many were labelled for it. ``boxes``: how many should be found.

    Recall and precision are at IoU 0.5; ``..._conf25`` counts only scores of 0.25 or more.
    ``ignored_boxes``: labelled boxes that count neither as missed nor as false.
    """

    ap50_interval: Interval
    recall: Figure
    recall_conf25: Figure
    precision_conf25: Figure
    ignored_boxes: int


@dataclass(frozen=True)
class MeanAccuracy(AveragePrecision):
    """The six figures as means over the classes with labelled boxes, and for each class."""

    ap50_interval: Interval
    per_class: dict[str, ClassAccuracy]


@dataclass(frozen=True)
class ConfusionMatrix:
    """``counts``: a row per labelled class and a column per detected class. The last row counts
    detections without a label, the last column missed labels."""

    conf: float
    iou: float
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Accuracy(MeanAccuracy):
    """``curves``: class -> precision at IoU 0.5 for each recall of 0, 0.01 .. 1."""

    curves: dict[str, tuple[Figure, ...]]
    confusion: ConfusionMatrix


@dataclass(frozen=True)
class TrackAccuracy:
    """Accuracy of the ids of tracks (--track), 0 to 1; ``mota`` may be below 0. ``hota`` combines
    ``detection`` and ``association``. ``objects``: number labelled; ``tracks``: number found."""

    hota: Figure
    detection: Figure
    association: Figure
    idf1: Figure
    mota: Figure
    switches: int
    fragmentations: int
    objects: int
    tracks: int


@dataclass(frozen=True)
class DatasetTracks(TrackAccuracy):
    """Figures over all sequences of a dataset, and for each sequence if there are several."""

    sequences: dict[str, TrackAccuracy] | UnsetType = UNSET


@dataclass(frozen=True)
class Result:
    """One row of ``eval``: an EngineResult, a FileResult or an InterruptedResult."""


@dataclass(frozen=True)
class _Run:
    engine: str
    model: str
    precision: str
    batch: int
    model_input: tuple[int, int]  # height, width
    tiles: str  # as given to --tiles: "2x2", "none"
    fps: Rates
    frames: FrameCounts


@dataclass(frozen=True)
class EngineResult(Accuracy, _Run, Result):
    """``plots``: name -> file. ``difference``: these figures minus those of the first row. An
    evaluation.json has neither key: it has one row, and the plots are next to it.
    ``coco_results``: a file with the detections as COCO's results, if the labels are COCO's."""

    notes: tuple[str, ...]
    session: str | None
    plots: dict[str, str] | UnsetType = UNSET
    difference: AveragePrecision | UnsetType = UNSET
    tracking: DatasetTracks | UnsetType = UNSET
    coco_results: str | UnsetType = UNSET


@dataclass(frozen=True)
class _File:
    detections: str


@dataclass(frozen=True)
class FileResult(Accuracy, _File, Result):
    """The result of scoring a file of detections. There is no speed, since no engine ran."""

    notes: tuple[str, ...]
    session: str
    plots: dict[str, str] | UnsetType = UNSET
    tracking: DatasetTracks | UnsetType = UNSET
    coco_results: str | UnsetType = UNSET


@dataclass(frozen=True)
class InterruptedResult(Result):
    """A run that ended early, so it has no scores."""

    engine: str
    exit: Exit


@dataclass(frozen=True)
class EvaluatedData:
    """``subset``: choice of --subset. ``video``: the video whose frames are labelled; null if
    picture files are labelled."""

    path: str
    format: str
    subset: str | None
    video: str | None
    pictures: int
    boxes: int
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """The origin of the scored detections: a run (Thresholds), or a file (GivenDetections)."""


@dataclass(frozen=True)
class Thresholds(Settings):
    conf: float
    iou: float
    agnostic: bool
    max_det: int
    max_det_class: int


@dataclass(frozen=True)
class GivenDetections(Settings):
    detections: str


@dataclass(frozen=True)
class Evaluation:
    """The whole document. ``mapping``: the file that maps the model's classes to the labels'."""

    schema: int
    dataset: EvaluatedData
    settings: Settings
    mapping: str | None
    results: tuple[Result, ...]
    notes: tuple[str, ...]
    exit: Exit


SUBTYPES: dict[type[Any], tuple[type[Any], ...]] = {
    Result: (EngineResult, FileResult, InterruptedResult),
    Settings: (Thresholds, GivenDetections),
}


def read_result(text: str | bytes, origin: str) -> EngineResult | FileResult:
    """Read an evaluation.json. Raises UsageError with ``origin`` and the wrong key."""
    content = codec.from_json(text, dict[str, Any], origin)
    if "detections" in content:
        return codec.from_builtins(content, FileResult, origin)
    return codec.from_builtins(content, EngineResult, origin)
