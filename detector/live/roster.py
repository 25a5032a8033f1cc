"""Adds and removes the cameras of a live run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from detector.core.errors import DetectVideoError, UsageError
from detector.core.run.plan import RunPlan
from detector.core.run.selection import class_ids
from detector.core.types import Candidates, Detections
from detector.live.camera_tiles import CameraTiles
from detector.live.config import LiveConfig
from detector.live.events.filters import EventFilters
from detector.live.options import LiveOptions, stamp
from detector.live.routing import Router
from detector.live.sources.base import Camera, Feed, FeedFacts
from detector.live.sources.cameras import compare_cameras, make_cameras
from detector.live.sources.collect import Collector

STOP_TIMEOUT_S = 1.0  # time for feeds to stop

MakeFeed = Callable[[Camera, Callable[[], None]], Feed]


class Roster:
    """The cameras of a run. ``collector`` has the cameras that are running now."""

    def __init__(
        self,
        options: LiveOptions,
        plan: RunPlan,
        make_feed: MakeFeed,
        say: Callable[[str], None],
        tiles: CameraTiles,
        filters: EventFilters,
    ) -> None:
        self._options, self._plan, self._say = options, plan, say
        self._tiles, self._filters = tiles, filters
        self.listed: list[Camera] = []  # from the command line and cameras.yaml
        self.lists = dict(options.lists)
        self._off: set[str] = set()  # cameras that a user stopped
        self._changing = threading.Lock()  # the page and the monitor both change cameras
        self._ended = False
        self._nms = plan.stages()[2]
        self._router: Router | None = None

        def open_feed(camera: Camera, wake: Callable[[], None]) -> Feed:
            feed = make_feed(camera, wake)
            assert self._router is not None
            self._router.open(camera, feed, self._class_ids(camera))
            tiles.open(camera)
            return feed

        self.collector = Collector(
            [], open_feed, frames=options.config.input.frames, give_up_s=options.terms.give_up_s
        )

    def open(self, cameras: Sequence[Camera], router: Router) -> None:
        self._router = router
        for camera in cameras:
            self._class_ids(camera)
        self._filters.take(cameras)
        for camera in cameras:
            self.listed.append(camera)
            self._bind_nms()
            self.collector.add(camera)
        if self._options.duration_s is not None:
            self.collector.end_after(self._options.duration_s)

    def end(self) -> None:
        self._ended = True

    def nms(self, candidates: Candidates) -> Detections:
        """Run NMS for all classes that any camera keeps or that the run blurs."""
        return self._nms(candidates)

    def _class_ids(self, camera: Camera) -> frozenset[int] | None:
        """Return the classes that a camera keeps, or None for all. Raises UsageError."""
        names = self._plan.network.names
        own = class_ids(f"camera {camera.name}: classes", camera.classes, names)
        ids = self._plan.selection.classes if own is None else own
        return None if ids is None else frozenset(ids)

    def classes(self) -> dict[str, list[str]]:
        names = self._plan.network.names
        ids = {one.name: self._class_ids(one) or range(len(names)) for one in self.listed}
        return {camera: [names[i] for i in sorted(ids)] for camera, ids in ids.items()}

    def _bind_nms(self) -> None:
        class_ids = [self._class_ids(camera) for camera in self.listed]
        class_ids.append(self._plan.drawing.blurred)
        every = None if None in class_ids else tuple(sorted(frozenset().union(*class_ids)))  # type: ignore[arg-type]
        plan = self._plan
        self._nms = replace(plan, selection=replace(plan.selection, classes=every)).stages()[2]

    def switch(self, name: str, *, on: bool) -> None:
        with self._changing:
            if self._ended:
                return
            camera = next((one for one in self.listed if one.name == name), None)
            if camera is None:
                raise UsageError(f"{name}: no such camera in {', '.join(self.lists)}")
            running = any(one.camera.name == name for one in self.collector.members())
            if on and not running:
                self._off.discard(name)
                self.collector.add(camera)
            elif not on and running:
                self._off.add(name)
                self._stop_camera(camera)

    def _stop_camera(self, camera: Camera) -> None:
        assert self._router is not None
        self.collector.remove(camera.name, STOP_TIMEOUT_S)
        self._router.close_camera(camera.name)

    def lists_changed(self) -> bool:
        return any(stamp(spec) != before for spec, before in self.lists.items())

    def read_lists_again(self) -> None:
        """Read cameras.yaml again. Add new cameras, remove missing ones, restart changed ones."""
        self.lists = {spec: stamp(spec) for spec in self.lists}
        try:
            cameras = make_cameras(self._options.specs, self._options.config.of(LiveConfig).repeat)
            for camera in cameras:
                self._class_ids(camera)
                self._tiles.check(camera)
            self._filters.take(cameras)
        except DetectVideoError as error:
            self._say(f"{error}; keeping the current cameras")
            return
        with self._changing:
            changes = compare_cameras(self.listed, cameras)
            for camera in changes.removed:
                if camera.name not in self._off:
                    self._stop_camera(camera)
                self._off.discard(camera.name)
            self.listed = list(cameras)
            self._bind_nms()
            for before, after in changes.changed:
                if before.name not in self._off:
                    self._stop_camera(before)
                    self.collector.add(after)
            for camera in changes.added:
                self.collector.add(camera)
        if changes:
            self._say(
                f"cameras: {len(changes.added)} added, {len(changes.removed)} removed, "
                f"{len(changes.changed)} changed"
            )

    def states(self) -> Mapping[str, FeedFacts]:
        return {one.camera.name: one.facts() for one in self.collector.members()}
