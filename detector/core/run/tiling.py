"""--tiles: decide before the first frame how to cut each frame into several inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from detector.core.config.schema import Config
from detector.core.errors import UsageError

if TYPE_CHECKING:
    from detector.core.loop.parts import BatchRequest
    from detector.core.models.base import Network
    from detector.core.types import SourceInfo

GRID = re.compile(r"([1-9][0-9]{0,2})x([1-9][0-9]{0,2})")
MAX_TILES = 64  # more is surely a mistake: a frame could take a minute
SPARE = 1.5  # decode at least this many times the size that the network sees (docs/performance.md)
MAX_ENLARGEMENT = 1.1  # largest scale of a tile; enlarging it more would not show more detail
NONE = "none"


@dataclass(frozen=True, slots=True)
class Tiling:
    """A division of frames into tiles. ``grid``: (columns, rows); None: one input. ``most``: if
    cameras have their own tiles, the most inputs that a frame can have; otherwise 0."""

    grid: tuple[int, int] | None = None
    most: int = 0

    @classmethod
    def of(cls, config: Config) -> Tiling:
        tiling = cls.parse(config.input.tiles)
        if config.runtime.rect and tiling.grid is not None:
            raise UsageError("--rect and --tiles contradict each other; omit one")
        return tiling

    def reduction(self, network: Network, turns: bool) -> Callable[[int, int], int]:
        """Return a function: (width, height) of a picture -> the divisor by which decoding may
        reduce both. It is the largest of 8, 4, 2 that leaves ``SPARE`` times the size that the
        network sees; if none does, 1. Tiles start at even pixels, so with tiles it is 2 or 1."""
        from detector.core.stages.preprocess import place
        from detector.core.stages.tiles import tile_size

        rules, grid = network.input, self.grid
        size = (max(rules.width, rules.height),) * 2 if turns else (rules.width, rules.height)

        def divisor(width: int, height: int) -> int:
            if grid is not None:
                width, height = tile_size(width, height, *grid)
            shown = place(width, height, *size, rules.geometry)
            shrinks = min(width / shown[2], height / shown[3]) / SPARE
            fits = (number for number in ((2,) if grid else (8, 4, 2)) if number <= shrinks)
            return next(fits, 1)

        return divisor

    @classmethod
    def parse(cls, text: str | None) -> Tiling:
        """Parse ``2x2`` or ``none``. Raises UsageError."""
        if text is None or text == NONE:
            return cls()
        match = GRID.fullmatch(text.lower())
        if match is None:
            raise UsageError(f"--tiles {text}: not a number of tiles; use 2x2 or 3x2")
        columns, rows = int(match.group(1)), int(match.group(2))
        if columns * rows == 1:
            raise UsageError(f"--tiles {text}: that is the whole picture; omit it, or use 2x2")
        if columns * rows > MAX_TILES:
            raise UsageError(
                f"--tiles {text}: {columns * rows} tiles are too many; use at most {MAX_TILES}"
            )
        return cls((columns, rows))

    @property
    def text(self) -> str:
        """The value of --tiles."""
        return NONE if self.grid is None else "{}x{}".format(*self.grid)

    @property
    def inputs(self) -> int:
        """Number of inputs per frame: its tiles and the whole picture."""
        return 1 if self.grid is None else 1 + self.grid[0] * self.grid[1]

    def tile_size(self, picture: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return (width, height) of a tile of ``picture``, or of the picture if it has no tiles."""
        if picture is None or self.grid is None:
            return picture
        from detector.core.stages.tiles import tile_size

        return tile_size(*picture, *self.grid)

    def check(self, picture: tuple[int, int] | None, network: Network) -> None:
        """Raise UsageError if the tiles would be scaled by more than ``MAX_ENLARGEMENT``."""
        if self.grid is None or picture is None:
            return
        rules, (width, height) = network.input, self.tile_size(picture) or picture
        if min(rules.width / width, rules.height / height) > MAX_ENLARGEMENT:
            raise UsageError(
                f"--tiles {self.text}: tiles of {width}x{height} pixels are smaller than the "
                f"network's input of {rules.width}x{rules.height}; use fewer, or "
                f"--size {max(width, height) // 32 * 32 or 32}"
            )

    def check_source(self, info: SourceInfo, network: Network) -> None:
        """Unless the source is a camera, call ``check`` with the size of its first picture."""
        if info.kind != "live":
            self.check((info.width, info.height), network)

    def requests(self, requests: Sequence[BatchRequest]) -> Sequence[BatchRequest]:
        if self.grid is None and not self.most:
            return requests
        from detector.core.loop.tiled import MixedRequest, TiledRequest

        if self.most:
            return [MixedRequest(request, self.most) for request in requests]
        return [TiledRequest(request, self.inputs) for request in requests]

    def stages(self, preprocess: Any, head: Any, nms: Any, **joining: Any) -> tuple[Any, Any, Any]:
        """Wrap preprocess, head and nms for tiled frames. ``joining``: see ``join_tiles``."""
        if self.grid is None and not self.most:
            return preprocess, head, nms
        from detector.core.stages import tiles

        join = partial(tiles.join_tiles, **joining)
        fill = tiles.FrameTiles(preprocess, join, None if self.most else self.grid)
        each = tiles.each_given_tile if self.most else tiles.each_tile
        return fill, each(head), lambda candidates: [nms(one) for one in candidates]
