"""Find out which encoders run on this machine, and how fast they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from detector.core.config.schema import ENCODERS
from detector.core.errors.writing import temporary_folder

SIZE = 1280, 720
FRAMES = 30  # one second of video; more frames than an encoder buffers
RATE = Fraction(30)


def encoders(quick: bool, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """Return for each encoder ``usable``, ``reason``, ``fps`` (1280x720, --quality balanced)."""
    try:
        from detector.core.sinks.video.encoders import cure_of, why_not
    except ImportError:  # PyAV is missing; ``doctor`` reports that elsewhere
        return {}
    results: dict[str, Any] = {}
    for name in ENCODERS:
        reason = why_not(name)
        if reason is not None and (cure := cure_of(name, reason)) is not None:
            reason = f"{reason}; {cure}"
        fps = None if quick or reason is not None else measure(name, clock)
        results[name] = {"usable": reason is None, "reason": reason, "fps": fps}
    return results


def unusable(reason: str) -> dict[str, Any]:
    """Return what ``encoders`` would return if no encoder could be used."""
    return {name: {"usable": False, "reason": reason, "fps": None} for name in ENCODERS}


def measure(name: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return pictures per second. Measure from opening the file until it is finished."""
    from detector.core.sinks.video import VideoSink
    from detector.core.types import Detections, Frame, SourceInfo

    width, height = SIZE
    info = SourceInfo("drawn", "video", width, height, RATE, 1 / RATE)
    images = list(_pictures())
    with temporary_folder("detect-video-doctor-") as folder:
        sink = VideoSink(Path(folder, "drawn.mp4"), encoder=name, audio=False)
        start = clock()
        sink.open(info)
        for index, image in enumerate(images):
            sink.write(Frame(index, index, index / float(RATE), image), Detections.empty())
        sink.close()
        return len(images) / max(clock() - start, 1e-6)


def _pictures() -> Iterator[Any]:
    """Yield u8 BGR [720, 1280, 3]: a texture that moves slowly, and blocks that move faster."""
    import cv2
    import numpy as np

    width, height = SIZE
    noise = np.random.default_rng(1).integers(0, 256, (height // 8, width // 8 + 16, 3), np.uint8)
    texture = cv2.resize(noise, (width + 128, height), interpolation=cv2.INTER_CUBIC)
    for number in range(FRAMES):
        image = np.ascontiguousarray(texture[:, 2 * number : 2 * number + width])
        for block in range(8):
            x = (block * 160 + 9 * number) % (width - 60)
            cv2.rectangle(
                image, (x, 80 * block), (x + 60, 80 * block + 60), (0, 30 * block, 200), -1
            )
        yield image
