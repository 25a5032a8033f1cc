"""The instrument: spans, waits, histograms, NVTX ranges. Records; never prints."""

from detector.timeline.native import Burnt, Natives
from detector.timeline.spans import KINDS, OTHER, WAIT_INPUT, WAIT_OUTPUT, WORK
from detector.timeline.stages import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, STAGES, WRITE
from detector.timeline.timeline import OffTimeline, Timeline
from detector.timeline.track import OffTrack, Track

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
