"""The threaded loop: reading, inference and writing at the same time, in order.

    one reader thread      read, preprocess into a free request's slot
    worker threads         infer, head, nms; as many as the engine's concurrency
    the caller's thread    annotate, write, in the source's order
    drawing threads        draw ahead of the caller's thread, if ``Parts.drawers`` is set

Requests and pictures come from pools. Filled batches wait in a bounded queue. Results wait in a
queue that restores order. In steady state nothing is allocated per frame: the pool has pictures
for the batches of all requests and one more batch. If a stage fails, every queue closes, the
threads end and are joined, and the caller gets the stage's own error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

from detector.core.loop.parts import (
    Batch,
    BatchRequest,
    Pairs,
    Parts,
    Progress,
    decode,
    deliver,
    draw,
    fill,
    follow,
    image_pool,
    infer,
    results_ahead,
    select,
)
from detector.core.loop.queues import AnyTrack, ClosedError, InOrder, LendingPool, Queue
from detector.core.timeline.native import give_name
from detector.core.timeline.spans import ANNOTATE
from detector.core.timeline.timeline import OffTimeline, Timeline
from detector.core.types import Detections, Frame

if TYPE_CHECKING:
    from detector.core.timeline.crew import Crew, Pending


def frames_overlapped(
    parts: Parts, timeline: Timeline | OffTimeline, progress: Progress
) -> Generator[tuple[Frame, Detections], None, None]:
    """Yield each frame after its sinks have written it. Its picture may be overwritten once the
    next frame is requested. Closing the generator early stops and joins the threads."""
    threads = _LoopThreads(parts, timeline, progress)
    with timeline.track("writer") as track:
        try:
            threads.start()
            for frame, detections in deliver(track, parts, progress, threads.draw(track)):
                yield frame, detections
                threads.images.put(frame.buffer)
        except ClosedError:
            pass  # a thread failed: its error is raised below
        finally:
            threads.stop()
        if threads.failures:
            raise threads.failures[0]


class _LoopThreads:
    def __init__(self, parts: Parts, timeline: Timeline | OffTimeline, progress: Progress) -> None:
        self._parts, self._timeline, self._progress = parts, timeline, progress
        self.images = image_pool(parts)
        self._requests: LendingPool[BatchRequest] = LendingPool("request", parts.requests)
        self._filled: Queue[Batch] = Queue("batch", parts.queue_batches)
        self._done: InOrder[Batch] = InOrder("result", results_ahead(parts))
        # A token for each idle worker. The reader waits for a token only if ``fresh`` is set.
        self._fresh = parts.hooks is not None and parts.hooks.fresh
        self._idle: LendingPool[None] = LendingPool("worker", [None] * parts.concurrency)
        self._channels = (self.images, self._requests, self._idle, self._filled, self._done)
        self.failures: list[BaseException] = []
        self._unwritten = 0  # frames of the current batch that the writer has not taken
        self._drawers: Crew | None = None
        self._threads = [self._thread("reader", self._read)]
        self._threads += [self._thread(f"worker-{i}", self._work) for i in range(parts.concurrency)]

    def _thread(self, name: str, job: Callable[[AnyTrack], None]) -> threading.Thread:
        def run() -> None:
            give_name(name)
            try:
                with self._timeline.track(name) as track:
                    job(track)
            except ClosedError:
                pass
            except BaseException as error:  # re-raised in the caller's thread
                self.failures.append(error)
                self._close()

        return threading.Thread(target=run, name=f"detect-video {name}", daemon=True)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        if self._parts.drawers and not self._parts.timed:
            from detector.core.timeline.crew import Crew

            with self._timeline.book_threads(ANNOTATE):
                self._drawers = Crew("drawer", self._parts.drawers)

    def _read(self, track: AnyTrack) -> None:
        number = 0
        while True:
            request = self._requests.get(track, number)
            if self._fresh:
                self._idle.get(track, number)
            batch = fill(track, self._parts, self._progress, self.images, request, number)
            if batch is None:
                break
            self._filled.put(track, number, batch)
            number += 1
            if batch.last:
                break
        self._filled.finish()
        self._done.finish(number)

    def _work(self, track: AnyTrack) -> None:
        number = 0
        while (batch := self._filled.get(track, number)) is not None:
            number = batch.number
            infer(track, self._parts, batch)
            if self._fresh:
                self._idle.put(None)
            self._detect(track, batch)
            self._done.put(track, number, batch)

    def _detect(self, track: AnyTrack, batch: Batch) -> None:
        """Run head and nms. If one fails, ``results`` raises the error after earlier batches."""
        try:
            candidates = decode(track, self._parts, batch)
            self._requests.put(batch.request)
            select(track, self._parts, batch, candidates)
        except BaseException as error:
            batch.failure = error

    def results(self, track: AnyTrack) -> Generator[tuple[Frame, Detections], None, None]:
        while (batch := self._done.get(track)) is not None:
            if batch.failure is not None:
                raise batch.failure
            self._progress.add_device_ms(batch.device_ms)
            self._unwritten = len(batch.frames)
            for pair in follow(track, self._parts, batch):
                self._unwritten -= 1
                yield pair

    def draw(self, track: AnyTrack) -> Pairs:
        """Annotate up to ``drawers`` frames at once, and yield them in order. Drawn frames do not
        wait for the inference of later frames. They are yielded even if a later frame fails."""
        annotate, drawers = self._parts.annotate, self._drawers
        if annotate is None or drawers is None:
            yield from draw(track, self._parts, self.results(track))
            return
        ahead: deque[tuple[int, Frame, Detections, Pending[None]]] = deque()
        results, failure = enumerate(self.results(track)), None
        while failure is None:
            try:
                number, pair = next(results)
            except StopIteration:
                return
            except Exception as error:
                failure = error
            else:
                ahead.append((number, *pair, drawers.submit(partial(annotate, *pair))))
            while len(ahead) > (self._parts.drawers if not failure and self._has_more() else 0):
                number, frame, detections, drawn = ahead.popleft()
                with track.span(ANNOTATE, number):
                    drawn.result()
                yield frame, detections
        raise failure

    def _has_more(self) -> bool:
        """Return whether the writer can take another frame without waiting."""
        batch = self._done.peek()
        return self._unwritten > 0 or (batch is not None and batch.failure is None)

    def _close(self) -> None:
        for channel in self._channels:
            channel.close()

    def stop(self) -> None:
        self._close()
        if self._drawers is not None:
            self._drawers.close()
        for thread in self._threads:
            if thread.ident is not None:  # else the system refused to start it
                thread.join()
