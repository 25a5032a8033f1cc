"""Routes each picture to the outputs of its own camera.

``Router`` is the only sink of a live loop. It has the outputs of all cameras, selects detections,
records when each output received a picture, and sends events.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from detector.core.run.detect import Watcher
from detector.core.types import Detections, Frame, Image
from detector.live.base import RUN_ENDED, Event, run_concurrently
from detector.live.events.rules import EventRules
from detector.live.figures import LiveStatus
from detector.live.selection import keep
from detector.live.sources.base import Camera, Feed, FeedFacts

Counts = Counter[tuple[str, str, str]]  # keys: camera, kind of output, name of the count


class CameraSink(Protocol):
    def write(self, frame: Frame, detections: Detections) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a camera. The summary shows ``path``. ``drawn`` returns whether the next picture
    needs boxes. ``counts`` returns totals. ``see`` gets pictures before boxes are drawn. ``paused``
    returns whether nothing can be written now, as on a full disk."""

    name: str  # "jsonl", "recording", ...
    sink: CameraSink
    path: Path
    drawn: Callable[[], bool] = lambda: False
    counts: Callable[[], Mapping[str, int]] = dict
    see: Callable[[Image, Detections], None] | None = None
    paused: Callable[[], bool] = lambda: False


class Router:
    """The sink of a live loop. ``make`` opens a camera's outputs before its feed starts.
    ``watcher`` receives pictures with boxes. ``snapshot`` may add a picture to an event. ``hide``
    pixelates objects, even those that ``keep`` drops. Only the writer's thread calls
    ``needs_boxes``, ``keep`` and ``write``."""

    def __init__(
        self,
        make: Callable[[Camera, Feed], Sequence[Output]],
        status: LiveStatus,
        *,
        watcher: Watcher | None = None,
        rules: EventRules | None = None,
        send: Callable[[Event], None] = lambda event: None,
        snapshot: Callable[[Event, Callable[[], Image]], Event] = lambda event, picture: event,
        draw: Callable[[Image, Detections], None] = lambda image, detections: None,
        hide: Callable[[Image, Detections], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._make, self._status, self._clock = make, status, clock
        self._watcher, self._rules, self._send = watcher, rules, send
        self._snapshot, self._draw, self._hide = snapshot, draw, hide
        self._lock = threading.RLock()  # protects outputs, and the order of events
        self._outputs: dict[str, tuple[Output, ...]] = {}
        self._cameras: dict[str, Camera] = {}
        self._classes: dict[str, frozenset[int] | None] = {}
        self._shows = False  # the watcher receives the current picture
        self._drawn = False  # the current picture has boxes
        self.paths: dict[str, dict[str, str]] = {}  # camera -> kind -> path, over the whole run
        self._closed: Counts = Counter()  # counts of closed outputs
        self._reported: Counts = Counter()  # all counts at the last call of ``counts``

    def open(self, camera: Camera, feed: Feed, classes: frozenset[int] | None) -> None:
        self._status.zones.open(camera.name)
        outputs = tuple(self._make(camera, feed))
        with self._lock:
            self._cameras[camera.name], self._classes[camera.name] = camera, classes
            self._outputs[camera.name] = outputs
            paths = self.paths.setdefault(camera.name, {})
            paths.update({output.name: str(output.path) for output in outputs})

    def close_camera(self, name: str, why: str = "the camera was removed") -> None:
        """Close a camera's outputs. Its pictures in flight are dropped."""
        with self._lock:
            outputs = self._outputs.pop(name, ())
            if self._rules is not None:
                now = time.perf_counter_ns(), time.time()
                self._send_all(self._rules.forget(name, *now, why))
        for output in outputs:
            output.sink.close()
            with self._lock:  # if the camera is added again, its new outputs count from 0
                _add_counts(self._closed, name, output)

    def close(self, why: str = RUN_ENDED) -> None:
        """Close all outputs concurrently, because each may take a second."""
        run_concurrently(partial(self.close_camera, name, why) for name in list(self._outputs))

    def counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return camera -> kind of output -> its counts since the last call."""
        with self._lock:
            now = self._closed.copy()
            for name, outputs in self._outputs.items():
                for output in outputs:
                    _add_counts(now, name, output)
            before, self._reported = self._reported, now
        counts: dict[str, dict[str, dict[str, int]]] = {}
        for (camera, kind, what), count in now.items():
            of_kind = counts.setdefault(camera, {}).setdefault(kind, {})
            of_kind[what] = count - before[camera, kind, what]
        return counts

    def states(self) -> dict[tuple[str, str], tuple[bool, int]]:
        """Return camera and output -> whether the output is paused, and how much it lost."""
        with self._lock:
            return {
                (name, one.name): (one.paused(), one.counts().get("lost", 0))
                for name, outputs in self._outputs.items()
                for one in outputs
            }

    def keep(self, frame: Frame, detections: Detections) -> Detections:
        """Drop detections in masks, and those of classes that the camera does not keep."""
        assert frame.arrival is not None
        camera = self._cameras[frame.arrival.camera]
        height, width = frame.image.shape[:2]
        kept = keep(detections, width, height, camera.masks, self._classes[camera.name])
        if self._hide is not None and kept is not detections:
            self._hide(frame.image, detections)
        return kept

    def needs_boxes(self, frame: Frame) -> bool:
        assert frame.arrival is not None
        name = frame.arrival.camera
        self._shows = self._watcher is not None and self._watcher.wants_pictures(name)
        outputs = self._outputs.get(name, ())
        self._drawn = self._shows or any(output.drawn() for output in outputs)
        return self._drawn

    def annotate(self, frame: Frame, detections: Detections) -> None:
        """Draw boxes, after calling the outputs that need the picture without boxes."""
        assert frame.arrival is not None
        seeing = [one.see for one in self._outputs.get(frame.arrival.camera, ()) if one.see]
        if seeing and self._hide is not None:
            self._hide(frame.image, detections)
        for see in seeing:
            see(frame.image, detections)
        self._draw(frame.image, detections)

    def write(self, frame: Frame, detections: Detections) -> None:
        assert frame.arrival is not None
        name, moments = frame.arrival.camera, {}
        with self._lock:
            outputs = self._outputs.get(name)  # None: the camera has been removed
            # Predicted boxes (of frames without inference) cause no events.
            if self._rules is not None and outputs is not None and not frame.coasting:
                if detections.scene is not None and detections.scene.book is not None:
                    self._status.zones.set_book(name, detections.scene.book)
                for event in map(self._status.zones.count, self._rules.update(frame, detections)):
                    picture = partial(self._drawn_picture, frame, detections)
                    self._send(self._snapshot(event, picture))
                moments["events"] = self._clock()
            for output in outputs or ():  # after the events, which start clips
                output.sink.write(frame, detections)
                moments[output.name] = self._clock()
        if self._shows and self._watcher is not None:
            self._watcher.show(frame, detections)
            moments["page"] = self._clock()
        self._status.note(frame, detections, moments, self._clock())

    def _drawn_picture(self, frame: Frame, detections: Detections) -> Image:
        image = frame.image
        if not self._drawn:
            image = image.copy()
            self._draw(image, detections)
        return image

    def tick(self, states: Mapping[str, FeedFacts], now_ns: int, now_s: float) -> None:
        """Send events of cameras that connected or disconnected."""
        if self._rules is None:
            return
        with self._lock:
            for name, facts in states.items():
                if name in self._outputs:  # otherwise the camera has been removed
                    self._send_all(self._rules.feed_changed(name, facts, now_ns, now_s))

    def _send_all(self, events: Sequence[Event]) -> None:
        for event in events:
            self._send(event)


def _add_counts(sums: Counts, camera: str, output: Output) -> None:
    for what, count in output.counts().items():
        sums[camera, output.name, what] += count
