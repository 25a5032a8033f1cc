"""Time the stages and waits of all threads: spans, histograms, NVTX ranges. Never prints."""

from detector.core.timeline.native import Burnt, Natives
from detector.core.timeline.spans import (
    ANNOTATE,
    HEAD,
    INFER,
    KINDS,
    NMS,
    OTHER,
    PREPROCESS,
    READ,
    STAGES,
    WAIT_INPUT,
    WAIT_OUTPUT,
    WORK,
    WRITE,
    OffTrack,
    ThreadTrack,
)
from detector.core.timeline.timeline import OffTimeline, Timeline

__all__ = [
    "ANNOTATE",
    "HEAD",
    "INFER",
    "KINDS",
    "NMS",
    "OTHER",
    "PREPROCESS",
    "READ",
    "STAGES",
    "WAIT_INPUT",
    "WAIT_OUTPUT",
    "WORK",
    "WRITE",
    "Burnt",
    "Natives",
    "OffTimeline",
    "OffTrack",
    "ThreadTrack",
    "Timeline",
]
