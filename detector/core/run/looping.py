"""Run the loop for one source, with or without threads, and create its timeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from detector.core.config.schema import Config
from detector.core.run.limits import opencv_threads

if TYPE_CHECKING:
    from detector.core.loop.parts import Parts, Progress
    from detector.core.session.document import LoopSizes
    from detector.core.session.outcome import SourceRun
    from detector.core.timeline.native import Natives
    from detector.core.timeline.timeline import OffTimeline, Timeline
    from detector.core.types import Detections, Frame

    OnFrame = Callable[[Frame, Detections], None]


@dataclass(frozen=True, slots=True)
class Loop:
    sync: bool
    queue_batches: int
    nvtx: bool
    instruments: bool

    @classmethod
    def of(cls, config: Config) -> Loop:
        loop = config.loop
        return cls(loop.sync, loop.queue_batches, loop.nvtx, loop.instruments)

    def timeline(self, natives: Natives | None, **more: Any) -> Timeline | OffTimeline:
        """Return a timeline for one run of the loop. ``more``: further options of ``Timeline``."""
        from detector.core.timeline.timeline import OffTimeline, Timeline

        if not self.instruments:
            return OffTimeline()
        process_clock = time.process_time_ns if self.sync else None
        return Timeline(process_clock=process_clock, nvtx=self.nvtx, natives=natives, **more)

    def bounds(self, parts: Parts) -> LoopSizes:
        """Return the sizes that limit the loop. They explain its waits."""
        from detector.core.loop.parts import image_count, results_ahead

        return {
            "batch": len(parts.requests[0].slot),
            "concurrency": parts.concurrency,
            "requests": len(parts.requests),
            "images": image_count(parts),
            "queue_batches": parts.queue_batches,
            "results": results_ahead(parts),
            "sync": self.sync,
        }

    def frames(
        self, parts: Parts, timeline: Timeline | OffTimeline, progress: Progress
    ) -> Generator[tuple[Frame, Detections], None, None]:
        """Yield every frame with its detections, after the sinks got it."""
        if self.sync:
            from detector.core.loop.sync import frames_in_turn as frames
        else:
            from detector.core.loop.overlapped import frames_overlapped as frames
        return frames(parts, timeline, progress)

    def marked(
        self, parts: Parts, timeline: Timeline | OffTimeline, progress: Progress
    ) -> Generator[tuple[Frame, Detections], None, None]:
        """Yield ``frames`` inside a range for profilers. The range's label lists the ``bounds``."""
        label = "loop " + " ".join(f"{key}={value:d}" for key, value in self.bounds(parts).items())
        with timeline.run(label), closing(self.frames(parts, timeline, progress)) as frames:
            yield from frames

    def lost_ranges(self) -> list[str]:
        """Return a warning if a profiler is attached but cannot record ranges of this run."""
        from detector.core.timeline.nvtx_ranges import attach, warning_of

        if not (self.nvtx and self.instruments):
            return []
        return [line] if (line := warning_of(attach())) else []

    def library_threads(self) -> AbstractContextManager[None]:
        return opencv_threads(overlapped=not self.sync)

    def drive(
        self,
        parts: Parts,
        run: SourceRun,
        progress: Progress,
        on_frame: OnFrame = lambda frame, detections: None,
    ) -> None:
        """Run one source through the loop. Store its counts in ``run``, even if a stage raises."""
        run.loop = self.bounds(parts)
        try:
            with closing(self.marked(parts, run.timeline, progress)) as frames:
                for frame, detections in frames:
                    class_ids = detections.found().class_ids.tolist()
                    run.by_class.update(class_ids)
                    run.empty += not class_ids
                    run.cut += detections.cut
                    on_frame(frame, detections)
                    if progress.written == 1:
                        run.timeline.mark()
                run.timeline.mark()
        finally:
            run.read, run.written = progress.read, progress.written
            run.device_ms, run.reused = progress.device_ms, progress.reused
            run.coasted = progress.coasted
            for stage in parts.between.values():
                run.notes += stage.close()
                for name, findings in stage.findings().items():
                    getattr(run, name).extend(findings)


@dataclass(frozen=True, slots=True)
class RunClock:
    """Measures the wall time and the CPU time of a source's run."""

    started: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.process_time)
    main_cpu: float = field(default_factory=time.thread_time)

    def note(self, run: SourceRun) -> None:
        """Store the times since the start. Call it in the thread that created the clock."""
        run.run_s = time.perf_counter() - self.started
        run.process_cpu_s = time.process_time() - self.cpu
        run.main_thread_cpu_s = time.thread_time() - self.main_cpu
