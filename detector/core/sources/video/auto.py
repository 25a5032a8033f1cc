"""Read with the fastest reader until the first error, then with PyAV, so that every decodable frame
is returned once.

The fastest reader is PyAV on all cores for planes (``_threaded.py``), and cv2 for BGR. But cv2
gives other BGR pixels on ARM64 than on x86. So on ARM64, PyAV reads BGR if it gives those of x86.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detector.core.errors.machine import ARM64
from detector.core.sources.base import ANY, Choice, SteppingSource
from detector.core.sources.video._container import probe, require_frame

if TYPE_CHECKING:
    from detector.core.sources.video.av import AvSource
    from detector.core.sources.video.opencv import CheckedSource


def open(
    path: str, stride: int = 1, frames: int | None = None, pixels: str = "bgr", choice: Choice = ANY
) -> SteppingSource:
    """Open a video. Raises SourceError if neither cv2 nor PyAV decodes a frame."""
    video = probe(path, choice)
    source: AvSource | CheckedSource
    as_planes = pixels != "bgr" and not video.why_no_planes
    if video.grey is not None:
        from detector.core.sources.video.av import AvSource

        source = AvSource(video, stride, frames, pixels=pixels)
    elif not (video.decodable and (as_planes or video.factor > 1 or (ARM64 and video.plain))):
        from detector.core.sources.video.opencv import CheckedSource

        source = CheckedSource(video, stride, frames)
        source.why_no_planes = (
            "" if pixels == "bgr" else video.why_no_planes or "PyAV has no decoder"
        )
    else:
        from detector.core.sources.video._threaded import ThreadedSource

        source = ThreadedSource(video, stride, frames, pixels)
    return require_frame(source, video)
