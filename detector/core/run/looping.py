"""One run of the loop: what measures it, what bounds it, and whether it is threaded."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from detector.core.config.schema import Config

if TYPE_CHECKING:
    from detector.core.loop.parts import Parts, Progress
    from detector.core.session.document import LoopSizes
    from detector.core.timeline import Natives, OffTimeline, Timeline
    from detector.core.types import Detections, Frame


def new_timeline(config: Config, natives: Natives | None, **kept: Any) -> Timeline | OffTimeline:
    """What measures one run of the loop. ``kept``: ``Timeline``'s words on which rows it keeps."""
    from detector.core.timeline import OffTimeline, Timeline

    loop = config.loop
    if not loop.instruments:
        return OffTimeline()
    cpu_clock = time.process_time_ns if loop.sync else time.thread_time_ns
    return Timeline(cpu_clock=cpu_clock, nvtx=loop.nvtx, natives=natives, **kept)


def loop_bounds(parts: Parts, config: Config) -> LoopSizes:
    """What limits the loop: requests, pictures and queue places. Whoever explains its waits needs
    these."""
    from detector.core.loop.parts import image_count, results_ahead

    return {
        "batch": len(parts.requests[0].slot),
        "concurrency": parts.concurrency,
        "requests": len(parts.requests),
        "images": image_count(parts),
        "queue_batches": parts.queue_batches,
        "results": results_ahead(parts),
        "sync": config.loop.sync,
    }


def loop_label(sizes: LoopSizes) -> str:
    """The mark of a run in an nsys recording: it says by itself what the waits mean."""
    return "loop " + " ".join(f"{name}={value:d}" for name, value in sizes.items())


def run_loop(
    parts: Parts, config: Config, timeline: Timeline | OffTimeline, progress: Progress
) -> Generator[tuple[Frame, Detections], None, None]:
    """Yields every frame with its detections, after the sinks have it: threaded, or --sync."""
    from detector.core.loop.overlapped import frames_overlapped
    from detector.core.loop.sync import frames_in_turn

    loop = frames_in_turn if config.loop.sync else frames_overlapped
    return loop(parts, timeline, progress)
