"""Cameras and streams, whose pictures arrive whether or not there is time to process them.

A feed never raises: it reports an error as a state, and retries.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from detector.core.errors import DetectVideoError, SourceError, UsageError
from detector.core.sources._forms import is_live
from detector.core.sources.base import Source
from detector.core.types import Frame, Image, ReadCounts, SourceInfo

if TYPE_CHECKING:
    from detector.core.run.reading import SourceReading
    from detector.core.timeline.spans import OffTrack, ThreadTrack
    from detector.live.config import LiveConfig
    from detector.live.sources.base import Terms
    from detector.live.sources.collect import Collector

# Buffers have this size until the first camera's size is known.
INFO = SourceInfo("", "live", 1920, 1080, Fraction(0), Fraction(1, 90_000))


class LiveSource(Source):
    form = r"\d{1,3}|/dev/video\d+|[a-z][a-z0-9+.-]*://.*|.*\.ya?ml"
    order = -100  # before the sources of files, because an address is not a file
    arrives = True

    def __init__(self, collector: Collector, path: str) -> None:
        self.collector = collector
        self.info = replace(INFO, path=path)
        self.counts = ReadCounts()
        self.notes = []

    @classmethod
    def claims(cls, spec: str) -> bool:
        if is_live(spec):
            return True
        if not spec.lower().endswith((".yaml", ".yml")):
            return False
        from detector.live.sources.cameras import is_camera_list

        try:
            return is_camera_list(spec)
        except DetectVideoError:  # let ``open`` report what is wrong with the YAML file
            return True

    @classmethod
    def open_arriving(cls, spec: str, reading: SourceReading) -> LiveSource:
        return cls.open(
            spec,
            terms=make_terms(reading),
            loop=reading.looped,
            stride=reading.stride,
            frames=reading.frames,
        )

    @classmethod
    def open(
        cls,
        spec: str,
        *,
        decoder: str = "auto",
        stride: int = 1,
        frames: int | None = None,
        terms: Terms | None = None,
        loop: bool = False,
    ) -> LiveSource:
        """Start the feeds of ``spec``. Raises SourceError, UsageError."""
        from detector.live.sources.cameras import make_cameras
        from detector.live.sources.collect import Collector
        from detector.live.sources.readers import make_feed

        if stride != 1:
            raise UsageError('stride is for files; set the key "rate" of a camera in cameras.yaml')
        cameras = make_cameras([spec], loop)
        if own := [camera.name for camera in cameras if camera.tiles is not None]:
            raise UsageError(
                f"{spec}: tiles of {', '.join(own)}: only the command detect-video supports tiles "
                "per camera; give one value for all cameras: Detector(tiles='2x2')"
            )
        collector = Collector(
            cameras,
            lambda camera, wake: make_feed(camera, terms, wake=wake),
            frames=frames,
            give_up_s=None if terms is None else terms.give_up_s,
        )
        collector.start()
        path = ", ".join(str(member.camera.address) for member in collector.members())
        return cls(collector, path)

    def restrict(self, start_s: Fraction | None, duration_s: Fraction | None) -> None:
        """End the run after ``duration_s`` of wall time. Raises UsageError for a ``start_s``."""
        if start_s is not None:
            raise UsageError(f"{self.info.path}: --start is for files; a camera has no start")
        if duration_s is not None:
            self.collector.end_after(float(duration_s))

    def arrive(self, track: ThreadTrack | OffTrack, index: int, row: int) -> bool:
        return self.collector.arrive(track, index, row)

    def read(self, into: Image | None = None) -> Frame | None:
        """Return any camera's next frame. At the end, raises SourceError if no camera was live."""
        frame = self.collector.read(into)
        if frame is None and not self.collector.was_live():
            raise SourceError(self.collector.failures())
        return frame

    def close(self) -> None:
        self.collector.stop()


def make_terms(reading: SourceReading) -> Terms:
    from detector.live.sources.base import Terms

    live: LiveConfig = reading.added["live"]
    return Terms(
        live.policy == "every",
        live.max_age,
        live.start_timeout,
        live.wait,
        grey=reading.choice.grey,
    )
