"""The instrument: spans, waits, histograms, NVTX ranges. Records; never prints."""

from detector.timeline.native import Burnt, Natives
from detector.timeline.spans import (
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
    Track,
)
from detector.timeline.timeline import OffTimeline, Timeline

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
    "Timeline",
    "Track",
]
