"""--only-detections, for the sinks that have no rule of their own: they get those frames alone."""

from __future__ import annotations

from detector.core.sinks.base import Sink
from detector.core.types import Detections, Frame, Image


class _OnlyDetections(Sink):
    def see(self, image: Image, detections: Detections) -> None:
        if len(detections):
            super().see(image, detections)

    def write(self, frame: Frame, detections: Detections) -> None:
        if len(detections):
            super().write(frame, detections)


def only_detections(sink: type[Sink]) -> type[Sink]:
    """Return the same sink, which leaves out frames without detections."""
    return type(sink.__name__, (_OnlyDetections, sink), {})
