"""Tiles of each camera (--tiles, ``tiles`` in cameras.yaml).

Each camera has a grid of its own, so a row of a batch has as many inputs as its camera
(``core.loop.tiled.MixedRequest``).

During the run, ``auto`` infers ``FRAMES`` pictures of a camera, ``APART_S`` apart, both whole and
in 2x2 tiles; outputs show what the camera's current grid finds. Then it distributes the inputs per
second that the engine has time for (``SHARE`` of its throughput): one for every picture, then 2x2
tiles, first for the camera with the smallest objects, then 3x3 likewise. A camera whose finer grid
does not fit keeps the coarser one.

It repeats this every ``AGAIN_S`` (``EMPTY_AGAIN_S`` if nothing was found) and at a new size.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from detector.core.errors import UsageError
from detector.core.run.first_look import GRIDS, sides_of, small_side, tell_size, useful_grids
from detector.core.run.sampling import FRAMES
from detector.core.run.tiling import Tiling
from detector.live.selection import keep
from detector.live.sources.base import Camera, FeedFacts

if TYPE_CHECKING:
    from detector.core.loop.tiled import MixedRequest
    from detector.core.run.plan import RunPlan
    from detector.core.stages.tiles import FrameTiles, TiledFit
    from detector.core.types import AnyPicture, Detections, Fit, Frame, Image

APART_S = 0.5  # least time between two pictures of a look
AGAIN_S = 3600.0
EMPTY_AGAIN_S = 600.0
SHARE = 0.8  # of the engine's time: pictures do not arrive evenly
TIMES = 64  # inferences whose median is used


def tiling_of_cameras(asked: Tiling, cameras: Sequence[Camera]) -> Tiling:
    """Return the run's tiling, with room for the finest grid if cameras may differ."""
    own = [Tiling.parse(camera.tiles) for camera in cameras if camera.tiles is not None]
    if not asked.auto and not own:
        return asked
    finest = Tiling(GRIDS[-1])
    return replace(asked, most=max(one.inputs for one in (finest, asked, *own)))


@dataclass(slots=True)
class Look:
    next_s: float = 0.0
    frames: int = 0
    whole: list[float] = field(default_factory=list)  # sides of objects (``first_look.sides_of``)
    tiled: list[float] = field(default_factory=list)

    @property
    def sides(self) -> list[float]:
        return max(self.whole, self.tiled, key=len)


@dataclass(slots=True)
class TiledFeed:
    """A camera. ``size``: height, width; 0 at first. ``useful``: helpful grids, coarsest first."""

    camera: Camera
    class_ids: frozenset[int] | None
    asked: Tiling
    tiling: Tiling
    size: tuple[int, int] = (0, 0)
    look: Look | None = None
    useful: list[Tiling] = field(default_factory=list)
    side: float = 0.0
    why: str = ""
    no_finer: str = ""  # why no finer grid would help
    rate: float | None = None  # pictures per second to detect, when it was last live
    line: str = ""  # the last one for the user


class CameraTiles:
    """The grids of all cameras. The loop's reader calls ``give``, reader and writer what that
    returns; any thread calls the rest."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan, self._tiling = plan, plan.tiling
        self._lock = threading.Lock()
        self._places: dict[str, TiledFeed] = {}
        self._times: deque[float] = deque(maxlen=TIMES)
        self._fill = cast("FrameTiles", plan.stages()[0])  # FrameTiles if cameras may differ
        spared = plan.spared
        self._every = (spared and spared.every) or 1  # auto may infer every frame

    @property
    def differ(self) -> bool:
        return self._tiling.most > 0

    def check(self, camera: Camera) -> None:
        """Raise UsageError if a later camera needs more tiles than this run has room for."""
        if camera.tiles is None:
            return
        if max(2, Tiling.parse(camera.tiles).inputs) > self._tiling.most:
            raise UsageError(
                f"camera {camera.name}: tiles: {camera.tiles}: this run was started without room "
                "for tiles; restart it"
            )

    def open(self, camera: Camera, class_ids: frozenset[int] | None) -> None:
        asked = self._tiling if camera.tiles is None else Tiling.parse(camera.tiles)
        place = TiledFeed(camera, class_ids, asked, Tiling() if asked.auto else Tiling(asked.grid))
        with self._lock:
            self._places[camera.name] = place

    def close(self, name: str) -> None:
        with self._lock:
            self._places.pop(name, None)

    def text(self, name: str) -> str:
        """Return a camera's current grid as in the option; the run's grid if the camera is gone."""
        with self._lock:
            place = self._places.get(name)
            return Tiling(self._tiling.grid).text if place is None else place.tiling.text

    def lines(self) -> list[str]:
        with self._lock:
            return [place.line for place in self._places.values() if place.line]

    def give(self, frame: Frame, request: MixedRequest, row: int) -> Callable[..., Fit]:
        assert frame.arrival is not None
        if request.input_s:
            self._times.append(request.input_s)
        with self._lock:
            place = self._places.get(frame.arrival.camera)
            grid = None if place is None else place.tiling.grid
            look = None if place is None else self._take_look(place, frame)
        shown = GRIDS[0] if look is not None and grid is None else grid
        request.give(row, Tiling(shown).inputs)

        def fill(picture: AnyPicture, slot: Image) -> Fit:
            fit = self._fill.fill(picture, slot, shown)
            if look is None or place is None:
                return fit
            return _Looked(fit, grid is not None, lambda *found: self._note(place, look, *found))

        return fill

    def _take_look(self, place: TiledFeed, frame: Frame) -> Look | None:
        if not place.asked.auto or frame.arrival is None:
            return None
        now_s = frame.arrival.arrived_ns / 1e9
        if frame.size != place.size:  # treat it as another camera
            place.size, place.tiling, place.useful = frame.size, Tiling(), []
            place.look = Look()
        look = place.look
        if look is None or now_s < look.next_s or look.frames >= FRAMES:
            return None
        look.next_s = now_s + APART_S
        return look

    def _note(self, place: TiledFeed, look: Look, whole: Detections, tiled: Detections) -> None:
        with self._lock:
            look.whole += self._sides(place, whole)
            look.tiled += self._sides(place, tiled)
            look.frames += 1

    def _sides(self, place: TiledFeed, found: Detections) -> list[float]:
        height, width = place.size
        kept = keep(found, width, height, place.camera.masks, place.class_ids)
        sure = kept.only(kept.scores >= self._plan.selection.conf)  # trackers get more
        return sides_of(sure, place.size, self._plan.network)

    def decide(self, states: Mapping[str, FeedFacts]) -> list[str]:
        """Decide each camera's grid after a look; return lines for the user. Called often."""
        with self._lock:
            for name, place in self._places.items():
                if (facts := states.get(name)) is not None and facts.fps:
                    place.rate = self._wanted_rate(place.camera, facts.fps)
            finished = [
                place
                for place in self._places.values()
                if place.look is not None and place.look.frames >= FRAMES
            ]
            for place in finished:
                self._conclude(place)
            return self._share_out(finished) if finished else []

    def _wanted_rate(self, camera: Camera, fps: float) -> float:
        rate = fps if camera.rate is None else min(fps, float(camera.rate))
        return rate / self._every

    def _conclude(self, place: TiledFeed) -> None:
        look, (height, width) = place.look, place.size
        assert look is not None
        if not look.sides:
            place.useful, place.side, place.no_finer = [], 0.0, ""
            minutes = EMPTY_AGAIN_S / 60
            place.why = f"found nothing in {FRAMES} frames; checking again in {minutes:.0f} min"
        else:
            place.side = small_side(look.sides)
            found = useful_grids(place.side, (width, height), self._plan.network)
            place.useful, place.no_finer = found
            place.why = tell_size(look.sides, look.frames)
        again = AGAIN_S if look.sides else EMPTY_AGAIN_S
        place.look = Look(look.next_s - APART_S + again)

    def _share_out(self, finished: Sequence[TiledFeed]) -> list[str]:
        room = self._room()
        wants = sorted(self._places.values(), key=lambda place: place.side)
        known = [place.rate for place in wants if place.rate is not None]
        got = {id(place): Tiling(None if place.asked.auto else place.asked.grid) for place in wants}
        refused: dict[int, str] = {}

        def needed(place: TiledFeed, tiling: Tiling) -> float:
            """Return inputs per second. A camera that was never live counts as the fastest one."""
            rate = max(known, default=0.0) if place.rate is None else place.rate
            return rate * tiling.inputs

        used = sum(needed(place, got[id(place)]) for place in wants)
        for step in range(len(GRIDS)):
            for place in wants:
                key = id(place)
                if not place.asked.auto or len(place.useful) <= step or key in refused:
                    continue
                finer = place.useful[step]
                more = used - needed(place, got[key]) + needed(place, finer)
                if more > room:
                    refused[key] = (
                        f"; {finer.text} would need {more:.0f} inputs per second for all cameras, "
                        f"and {room:.0f} are possible"
                    )
                    continue
                got[key], used = finer, more
        lines = []
        for place in wants:
            before, place.tiling = place.tiling, got[id(place)]
            if not place.asked.auto or not (place in finished or before != place.tiling):
                continue
            line = f"{place.camera.name}: --tiles auto: {place.tiling.text}: {place.why}"
            line += refused.get(id(place), place.no_finer)
            if before != place.tiling or not place.line:
                lines.append(line)
            place.line = line
        return lines

    def _room(self) -> float:
        if not self._times:
            return 0.0
        return SHARE * self._plan.loaded.engine.concurrency / statistics.median(self._times)


class _Looked:
    """A fit that reports both whole and tiled results, and returns those of the current grid."""

    def __init__(
        self, fit: TiledFit, tiled: bool, report: Callable[[Detections, Detections], None]
    ) -> None:
        self._fit, self._tiled, self._report = fit, tiled, report

    def to_source(self, found: Sequence[Detections]) -> Detections:
        whole, tiled = self._fit.whole(found), self._fit.to_source(found)
        self._report(whole, tiled)
        return tiled if self._tiled else whole
