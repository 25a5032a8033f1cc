"""Chooses the tiles of each camera (--tiles, ``tiles`` in cameras.yaml).

Each camera has its own grid, so rows of a batch may have different numbers of inputs
(``core.loop.tiled.MixedRequest``).

During the run, ``auto`` makes a trial: it infers ``FRAMES`` pictures of a camera, at intervals of
``TRIAL_INTERVAL_S``, both whole and in 2x2 tiles. Outputs show only the result of the current grid.
Then it distributes the inputs per second that the engine can handle (``SHARE`` of its throughput):
one for every picture, then 2x2 tiles, beginning with the camera that has the smallest objects, and
then 3x3 tiles in the same order. If a finer grid does not fit, the camera keeps the coarser one.

A trial is repeated every ``REPEAT_S`` (``REPEAT_EMPTY_S`` if nothing was detected), and if the
camera's picture size changes.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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

TRIAL_INTERVAL_S = 0.5  # at least this time between two pictures of a trial
REPEAT_S = 3600.0
REPEAT_EMPTY_S = 600.0
SHARE = 0.8  # of the engine's time; the rest is reserve, because pictures arrive unevenly
TIMES = 64  # the last inferences whose median time is used


def choose_tiling(option: Tiling, cameras: Sequence[Camera]) -> Tiling:
    """Return the run's tiling, with room for the finest grid if cameras may differ."""
    own = [Tiling.parse(camera.tiles) for camera in cameras if camera.tiles is not None]
    if not option.auto and not own:
        return option
    finest = Tiling(GRIDS[-1])
    return replace(option, most=max(one.inputs for one in (finest, option, *own)))


@dataclass(slots=True)
class GridTrial:
    next_s: float = 0.0
    frames: int = 0
    whole: list[float] = field(default_factory=list)  # sides of objects (``first_look.sides_of``)
    tiled: list[float] = field(default_factory=list)

    @property
    def sides(self) -> list[float]:
        return max(self.whole, self.tiled, key=len)


@dataclass(slots=True)
class CameraGrid:
    """A camera's grid. ``size``: height, width; 0 at first. ``useful``: finer grids that help."""

    camera: Camera
    class_ids: frozenset[int] | None
    option: Tiling  # --tiles, or the camera's own
    coarsest: Tiling
    tiling: Tiling  # the current grid
    size: tuple[int, int] = (0, 0)
    trial: GridTrial | None = None
    useful: list[Tiling] = field(default_factory=list)
    side: float = 0.0
    why: str = ""
    no_finer: str = ""  # why no finer grid would help
    rate: float | None = None  # pictures per second to detect, when the camera was last live
    line: str = ""  # the last line for the user


class CameraTiles:
    """The grids of all cameras. Only the loop's reader may call ``give``."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan, self._tiling = plan, plan.tiling
        self._lock = threading.Lock()
        self._grids: dict[str, CameraGrid] = {}
        self._times: deque[float] = deque(maxlen=TIMES)
        self._fill = cast("FrameTiles", plan.stages()[0])  # a FrameTiles if ``differ``
        spared = plan.spared
        self._every = (spared and spared.every) or 1  # --infer-every auto: maybe every frame

    @property
    def differ(self) -> bool:
        return self._tiling.most > 0

    def check(self, camera: Camera) -> None:
        """Raise UsageError if a camera that is added later needs more tiles than the run has."""
        if camera.tiles is None:
            return
        if max(2, Tiling.parse(camera.tiles).inputs) > self._tiling.most:
            raise UsageError(
                f"camera {camera.name}: tiles: {camera.tiles}: this run was started without room "
                "for tiles; restart it"
            )

    def open(self, camera: Camera, class_ids: frozenset[int] | None) -> None:
        option = self._tiling if camera.tiles is None else Tiling.parse(camera.tiles)
        coarsest = Tiling(None if option.auto else option.grid)
        with self._lock:
            self._grids[camera.name] = CameraGrid(camera, class_ids, option, coarsest, coarsest)

    def close(self, name: str) -> None:
        with self._lock:
            self._grids.pop(name, None)

    def text(self, name: str) -> str:
        """Return a camera's current grid, as in --tiles; the run's if the camera was removed."""
        with self._lock:
            entry = self._grids.get(name)
            return Tiling(self._tiling.grid).text if entry is None else entry.tiling.text

    def lines(self) -> list[str]:
        with self._lock:
            return [entry.line for entry in self._grids.values() if entry.line]

    def give(self, frame: Frame, request: MixedRequest, row: int) -> Callable[..., Fit]:
        assert frame.arrival is not None
        if request.input_s:
            self._times.append(request.input_s)
        with self._lock:
            entry = self._grids.get(frame.arrival.camera)
            grid = None if entry is None else entry.tiling.grid
            trial = None if entry is None else self._next_trial(entry, frame)
        shown = GRIDS[0] if trial is not None and grid is None else grid
        request.give(row, Tiling(shown).inputs)

        def fill(picture: AnyPicture, slot: Image) -> Fit:
            fit = self._fill.fill(picture, slot, shown)
            if trial is None or entry is None:
                return fit
            return _TrialFit(fit, grid is not None, partial(self._add_result, entry, trial))

        return fill

    def _next_trial(self, entry: CameraGrid, frame: Frame) -> GridTrial | None:
        if not entry.option.auto or frame.arrival is None:
            return None
        now_s = frame.arrival.arrived_ns / 1e9
        if frame.size != entry.size:  # earlier results do not apply to another size
            entry.size, entry.tiling, entry.useful = frame.size, Tiling(), []
            entry.trial = GridTrial()
        trial = entry.trial
        if trial is None or now_s < trial.next_s or trial.frames >= FRAMES:
            return None
        trial.next_s = now_s + TRIAL_INTERVAL_S
        return trial

    def _add_result(
        self, entry: CameraGrid, trial: GridTrial, whole: Detections, tiled: Detections
    ) -> None:
        with self._lock:
            trial.whole += self._sides(entry, whole)
            trial.tiled += self._sides(entry, tiled)
            trial.frames += 1

    def _sides(self, entry: CameraGrid, detections: Detections) -> list[float]:
        height, width = entry.size
        selected = keep(detections, width, height, entry.camera.masks, entry.class_ids)
        # Boxes below --conf are only for the tracker.
        sure = selected.only(selected.scores >= self._plan.selection.conf)
        return sides_of(sure, entry.size, self._plan.network)

    def decide(self, states: Mapping[str, FeedFacts]) -> list[str]:
        """Choose all grids if a trial has ended; return lines for the user. Called often."""
        with self._lock:
            for name, entry in self._grids.items():
                if (facts := states.get(name)) is not None and facts.fps:
                    most = entry.camera.rate
                    rate = facts.fps if most is None else min(facts.fps, float(most))
                    entry.rate = rate / self._every
            finished = [
                entry
                for entry in self._grids.values()
                if entry.trial is not None and entry.trial.frames >= FRAMES
            ]
            for entry in finished:
                self._conclude(entry)
            return self._distribute(finished) if finished else []

    def _conclude(self, entry: CameraGrid) -> None:
        trial, (height, width) = entry.trial, entry.size
        assert trial is not None
        if not trial.sides:
            entry.useful, entry.side, entry.no_finer = [], 0.0, ""
            minutes = REPEAT_EMPTY_S / 60
            entry.why = f"found nothing in {FRAMES} frames; checking again in {minutes:.0f} min"
        else:
            entry.side = small_side(trial.sides)
            entry.useful, entry.no_finer = useful_grids(
                entry.side, (width, height), self._plan.network
            )
            entry.why = tell_size(trial.sides, trial.frames)
        repeat_s = REPEAT_S if trial.sides else REPEAT_EMPTY_S
        entry.trial = GridTrial(trial.next_s - TRIAL_INTERVAL_S + repeat_s)

    def _distribute(self, finished: Sequence[CameraGrid]) -> list[str]:
        possible = self._possible_rate()
        entries = sorted(self._grids.values(), key=lambda entry: entry.side)
        known = [entry.rate for entry in entries if entry.rate is not None]
        grids = {id(entry): entry.coarsest for entry in entries}
        refused: dict[int, str] = {}

        def needed(entry: CameraGrid, tiling: Tiling) -> float:
            """Return inputs per second; a camera with unknown rate counts as the fastest."""
            rate = max(known, default=0.0) if entry.rate is None else entry.rate
            return rate * tiling.inputs

        used = sum(needed(entry, grids[id(entry)]) for entry in entries)
        for step in range(len(GRIDS)):
            for entry in entries:
                key = id(entry)
                if not entry.option.auto or len(entry.useful) <= step or key in refused:
                    continue
                finer = entry.useful[step]
                more = used - needed(entry, grids[key]) + needed(entry, finer)
                if more > possible:
                    refused[key] = (
                        f"; {finer.text} would need {more:.0f} inputs per second for all cameras, "
                        f"and {possible:.0f} are possible"
                    )
                    continue
                grids[key], used = finer, more
        lines = []
        for entry in entries:
            before, entry.tiling = entry.tiling, grids[id(entry)]
            if not entry.option.auto or not (entry in finished or before != entry.tiling):
                continue
            line = f"{entry.camera.name}: --tiles auto: {entry.tiling.text}: {entry.why}"
            line += refused.get(id(entry), entry.no_finer)
            if before != entry.tiling or not entry.line:
                lines.append(line)
            entry.line = line
        return lines

    def _possible_rate(self) -> float:
        if not self._times:
            return 0.0
        return SHARE * self._plan.loaded.engine.concurrency / statistics.median(self._times)


class _TrialFit:
    """A fit that reports whole and tiled results, and returns those of the current grid."""

    def __init__(
        self, fit: TiledFit, tiled: bool, report: Callable[[Detections, Detections], None]
    ) -> None:
        self._fit, self._tiled, self._report = fit, tiled, report

    def to_source(self, detections: Sequence[Detections]) -> Detections:
        whole, tiled = self._fit.whole(detections), self._fit.to_source(detections)
        self._report(whole, tiled)
        return tiled if self._tiled else whole
