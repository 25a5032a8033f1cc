"""--only-detections, for sinks that do not implement it themselves."""

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
    """Return a subclass of the sink that skips frames without detections."""
    return type(sink.__name__, (_OnlyDetections, sink), {})
