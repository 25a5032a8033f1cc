"""The names and shapes of a model's outputs, and whether they fit the maps of a YOLO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

Dims = tuple[int | None, ...]
"""A shape; None for a side that is known only at run time."""

MAX_DETECTIONS = 3000  # limit for a list of detections after NMS; small maps may have as few rows

# Strides of a network's maps, from the largest map to the smallest; P2 and P6 models have one more.
PYRAMIDS = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
# YOLOv3-tiny's two maps have as few rows as a list of detections, so only layouts whose shape
# differs from a list's accept them.
WITH_TINY = (*PYRAMIDS, (16, 32))


def count_cells(height: int, width: int, strides: tuple[int, ...]) -> int:
    return sum(-(-height // stride) * -(-width // stride) for stride in strides)


class OutputShapes:
    __slots__ = ()
    height: int
    width: int

    def outputs(self) -> Mapping[str, Dims]:
        raise NotImplementedError

    def fits_names(self, classes: int) -> bool:
        raise NotImplementedError

    def dims(self, name: str) -> Dims:
        return self.outputs().get(name, ())

    def rank3_outputs(self) -> Iterator[tuple[str, int, int]]:
        """Yield (name, n, m) of the outputs [B, n, m] with known n and m."""
        for name, dims in self.outputs().items():
            if len(dims) == 3 and dims[1] is not None and dims[2] is not None:
                yield name, dims[1], dims[2]

    def pyramid(
        self, rows: int, boxes: int, pyramids: Iterable[tuple[int, ...]] = PYRAMIDS
    ) -> tuple[int, ...] | None:
        """Return the strides whose maps give ``rows`` rows, at ``boxes`` rows per cell, or None."""
        for strides in pyramids:
            if boxes * count_cells(self.height, self.width, strides) == rows:
                return strides
        return None
