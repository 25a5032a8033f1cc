"""Chooses the tiles of each camera (``tiles`` in cameras.yaml, or --tiles).

Pictures of one batch may have different numbers of tiles (``core.loop.tiled.MixedRequest``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from detector.core.errors import UsageError
from detector.core.run.tiling import Tiling
from detector.live.sources.base import Camera

if TYPE_CHECKING:
    from detector.core.loop.tiled import MixedRequest
    from detector.core.run.plan import RunPlan
    from detector.core.stages.tiles import FrameTiles
    from detector.core.types import Fit, Frame

ROOM = Tiling((3, 3))  # least room if a camera has its own tiles, since cameras may be added later


def choose_tiling(option: Tiling, cameras: Sequence[Camera]) -> Tiling:
    """Return the run's tiling. If cameras have their own tiles, ``most`` fits all of them."""
    own = [Tiling.parse(camera.tiles) for camera in cameras if camera.tiles is not None]
    return replace(option, most=max(one.inputs for one in (ROOM, option, *own))) if own else option


class CameraTiles:
    """The tiles of all cameras. Only the loop's reader may call ``give``."""

    def __init__(self, plan: RunPlan) -> None:
        self._tiling = plan.tiling
        self._tilings: dict[str, Tiling] = {}
        self._fill = cast("FrameTiles", plan.stages()[0])  # only used if ``differ``

    @property
    def differ(self) -> bool:
        return self._tiling.most > 0

    def check(self, camera: Camera) -> None:
        """Raise UsageError if a camera added later needs more tiles than the run has room for."""
        if camera.tiles is None:
            return
        if max(2, Tiling.parse(camera.tiles).inputs) > self._tiling.most:
            raise UsageError(
                f"camera {camera.name}: tiles: {camera.tiles}: this run was started without room "
                "for these tiles; restart the run"
            )

    def open(self, camera: Camera) -> None:
        own = camera.tiles
        self._tilings[camera.name] = self._tiling if own is None else Tiling.parse(own)

    def give(self, frame: Frame, request: MixedRequest, row: int) -> Callable[..., Fit]:
        assert frame.arrival is not None
        tiling = self._tilings[frame.arrival.camera]
        request.counts[row] = tiling.inputs
        return partial(self._fill.fill, grid=tiling.grid)
