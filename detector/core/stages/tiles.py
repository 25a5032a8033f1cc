"""Cut a picture into tiles, each an input of the network, and join their detections.

A picture is reduced to the size of a network's input. Tiles are reduced less, so that small objects
stay larger. This is sliced inference (Akyon et al., 2022, "Slicing Aided Hyper Inference"). Tiles
overlap by a fifth, as in that paper. Tiles cut large objects, so the whole picture is an input too.

Boxes of two inputs are one object if they have the same class and an IoU above ``SAME``. A seam is
a tile's edge inside the picture. A box at a seam may be only a piece of an object. Overlapping
tiles should find the same objects in their common pixels. So if one box is at a seam, both are
clipped to these pixels before they are compared. A piece (a box at a seam) and a whole box are also
one object if the whole box contains over ``INSIDE`` of the piece's area. Of an object's boxes, keep

    the best-scored box that is not at a seam;
    if all are at seams, the box that encloses them, with their best score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core.types import (
    AnyPicture,
    Candidates,
    Detections,
    Image,
    Letterbox,
    Planes,
    Reduced,
    size_of,
)

OVERLAP = 0.2  # share of a tile's side that overlaps the next tile
SAME = 0.5  # boxes of two inputs are one object if their IoU is higher
INSIDE = 0.5  # share of a piece's area that the whole box contains
BLOCK = 256  # number of boxes compared with all others in one step
EDGE = 0.03  # share of a tile's side; a box that ends this close to a seam is "at" it

Boxes = NDArray[np.float32]  # xyxy [M, 4]
Outputs = list[NDArray[np.float32]]


class Region(NamedTuple):
    """A part of a picture, in pixels. ``x1`` and ``y1`` are even, for YUV 4:2:0."""

    x1: int
    y1: int
    x2: int
    y2: int


@lru_cache(64)
def regions(width: int, height: int, columns: int, rows: int) -> tuple[Region, ...]:
    """Return the parts that the inputs show: the whole picture, then the tiles, row by row."""
    tiles = [
        Region(left, top, right, bottom)
        for top, bottom in _split(height, rows)
        for left, right in _split(width, columns)
    ]
    return (Region(0, 0, width, height), *tiles)


def _split(length: int, count: int) -> list[tuple[int, int]]:
    """Return start and end of ``count`` equal parts. Neighbours share ``OVERLAP`` of a part."""
    part = length / (count - (count - 1) * OVERLAP)
    ends = []
    for at in range(count):
        first = min(int(at * part * (1 - OVERLAP)) // 2 * 2, max(0, (length - 1) // 2 * 2))
        last = length if at == count - 1 else min(length, first + max(2, round(part / 2) * 2))
        ends.append((first, last))
    return ends


def tile_size(width: int, height: int, columns: int, rows: int) -> tuple[int, int]:
    first = regions(width, height, columns, rows)[1]
    return first.x2 - first.x1, first.y2 - first.y1


def cut_out(picture: AnyPicture, region: Region) -> AnyPicture:
    """Return a part of a picture as a view."""
    x1, y1, x2, y2 = region
    half = np.s_[y1 // 2 : (y2 + 1) // 2, x1 // 2 : (x2 + 1) // 2]
    if isinstance(picture, Reduced):  # with tiles, its factor is 2, so ``half`` fits
        return Reduced(picture.pixels[half], picture.factor, x2 - x1, y2 - y1)
    if not isinstance(picture, Planes):
        return picture[y1:y2, x1:x2]
    return Planes(
        picture.y[y1:y2, x1:x2], picture.u[half], picture.v[half], picture.colours, picture.convert
    )


class FrameTiles:
    """Fills a frame's inputs, u8 RGB [T, H, W, 3], each by ``preprocess``. ``join``: ``join_tiles``
    with its options bound. ``grid``: columns and rows; None: the whole picture alone."""

    def __init__(
        self,
        preprocess: Callable[[AnyPicture, Image], Letterbox],
        join: Callable[[Sequence[Detections], Sequence[Region]], Detections],
        grid: tuple[int, int] | None,
    ) -> None:
        self._preprocess, self._join, self._grid = preprocess, join, grid

    def __call__(self, picture: AnyPicture, slot: Image) -> TiledFit:
        return self.fill(picture, slot, self._grid)

    def fill(self, picture: AnyPicture, slot: Image, grid: tuple[int, int] | None) -> TiledFit:
        """Fill the first inputs of ``slot``, as many as this ``grid`` needs."""
        height, width = size_of(picture)
        if grid is None:
            fit = self._preprocess(picture, slot[0])
            return TiledFit((Region(0, 0, width, height),), (fit,), self._join)
        shown = regions(width, height, *grid)
        inputs = zip(shown, slot[: len(shown)], strict=True)
        fits = [self._preprocess(cut_out(picture, region), row) for region, row in inputs]
        return TiledFit(shown, tuple(fits), self._join)


def each_given_tile(head: Callable[[Outputs], Candidates]) -> Callable[[Outputs], list[Candidates]]:
    """Like ``each_tile``, but the last of the outputs is the number of inputs to read."""

    def heads(outputs: Outputs) -> list[Candidates]:
        *given, counts = outputs
        return [head([each[0, at : at + 1] for each in given]) for at in range(int(counts[0]))]

    return heads


def each_tile(head: Callable[[Outputs], Candidates]) -> Callable[[Outputs], list[Candidates]]:
    """Return a head that turns a frame's outputs [1, T, ...] into T ``Candidates``."""

    def heads(outputs: Outputs) -> list[Candidates]:
        count = outputs[0].shape[1]
        return [head([each[0, at : at + 1] for each in outputs]) for at in range(count)]

    return heads


@dataclass(frozen=True, slots=True)
class TiledFit:
    """Where each input of a frame is: its region (``shown``) and its ``Letterbox`` (``fits``)."""

    shown: tuple[Region, ...]
    fits: tuple[Letterbox, ...]
    join: Callable[[Sequence[Detections], Sequence[Region]], Detections]

    def to_source(self, found: Sequence[Detections]) -> Detections:
        """Map each input's boxes from network pixels to the whole picture, and join them all."""
        if len(self.fits) == 1:
            return self.fits[0].to_source(found[0])
        placed = []
        for detections, fit, region in zip(found, self.fits, self.shown, strict=True):
            mapped = fit.to_source(detections)
            if len(mapped):
                mapped.boxes += np.array([region.x1, region.y1] * 2, np.float32)
            placed.append(mapped)
        return self.join(placed, self.shown)


def join_tiles(
    found: Sequence[Detections],
    shown: Sequence[Region],
    *,
    agnostic: bool = False,
    max_det: int,
    conf: float = 0.0,
) -> Detections:
    """Join the inputs' detections into those of one picture, best first, by the rules above.
    ``found``: detections of each input, in pixels of the whole picture; ``shown``: the inputs'
    regions. ``agnostic``, ``max_det`` and ``conf``: see ``nms``."""
    boxes = np.concatenate([each.boxes for each in found])
    scores = np.concatenate([each.scores for each in found])
    class_ids = np.concatenate([each.class_ids for each in found])
    groups = np.zeros_like(class_ids) if agnostic else class_ids
    tiles = np.repeat(np.arange(len(found)), [len(each) for each in found])
    at_seam = _at_seam(boxes, np.array(shown, np.float32)[tiles], shown[0])
    twins = _find_twins(boxes, groups, tiles, at_seam, shown)
    kept, boxes, scores = _merge_twins(boxes, scores, at_seam, twins)
    kept = kept[np.argsort(-scores[kept], kind="stable")]
    cut = sum(each.cut for each in found)
    cut += max(0, int(np.count_nonzero(scores[kept] >= conf)) - max_det)
    kept = kept[:max_det]
    return Detections(boxes[kept], scores[kept], class_ids[kept], found[0].names, cut)


def _at_seam(boxes: Boxes, tiles: Boxes, whole: Region) -> NDArray[np.bool_]:
    """Return [M]: whether a box ends at a seam. ``tiles``: the tile of each box, [M, 4]."""
    near = EDGE * np.tile(tiles[:, 2:] - tiles[:, :2], 2)
    inner = tiles != np.array(whole, np.float32)
    at_seam: NDArray[np.bool_] = (inner & (np.abs(boxes - tiles) <= near)).any(axis=1)
    return at_seam


def _find_twins(
    boxes: Boxes,
    groups: NDArray[np.int64],
    tiles: NDArray[np.intp],
    at_seam: NDArray[np.bool_],
    shown: Sequence[Region],
) -> list[tuple[int, int]]:
    """Return the pairs of boxes that are one object, found in two inputs."""
    i, j = _find_intersecting(boxes, groups, tiles)
    a, b, regions_of = boxes[i], boxes[j], np.array(shown, np.float32)[tiles]
    first = np.maximum(regions_of[i], regions_of[j])[:, [0, 1, 0, 1]]  # the part that both show
    last = np.minimum(regions_of[i], regions_of[j])[:, [2, 3, 2, 3]]
    clipped = _is_same(np.clip(a, first, last), np.clip(b, first, last))
    piece_a, piece_b = at_seam[i], at_seam[j]
    same = np.where(piece_a | piece_b, clipped, _is_same(a, b))
    shared = _intersections(a, b)
    same |= piece_a & ~piece_b & (shared > INSIDE * _areas(a))
    same |= piece_b & ~piece_a & (shared > INSIDE * _areas(b))
    return list(zip(i[same].tolist(), j[same].tolist(), strict=True))


def _find_intersecting(
    boxes: Boxes, groups: NDArray[np.int64], tiles: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find all pairs of boxes that intersect, are of the same group and come from different inputs.
    Return the indexes of the pairs' first boxes, [K], and of their second boxes, [K]."""
    x1, y1, x2, y2 = np.ascontiguousarray(boxes.T)
    rows, columns = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
    for start in range(0, len(boxes), BLOCK):
        own = slice(start, start + BLOCK)
        meet = (tiles[own, None] < tiles) & (groups[own, None] == groups)
        meet &= (x1[own, None] < x2) & (x1 < x2[own, None])
        meet &= (y1[own, None] < y2) & (y1 < y2[own, None])
        i, j = np.nonzero(meet)
        rows.append(i + start)
        columns.append(j)
    return np.concatenate(rows), np.concatenate(columns)


def _is_same(a: Boxes, b: Boxes) -> NDArray[np.bool_]:
    """Return [K]: whether the IoU of a pair is above ``SAME``; False for empty boxes."""
    together = _intersections(a, b)
    same: NDArray[np.bool_] = together > np.float32(SAME) * (_areas(a) + _areas(b) - together)
    return same


def _intersections(a: Boxes, b: Boxes) -> NDArray[np.float32]:
    width = np.minimum(a[:, 2], b[:, 2]) - np.maximum(a[:, 0], b[:, 0])
    height = np.minimum(a[:, 3], b[:, 3]) - np.maximum(a[:, 1], b[:, 1])
    shared: NDArray[np.float32] = np.maximum(width, 0) * np.maximum(height, 0)
    return shared


def _areas(boxes: Boxes) -> NDArray[np.float32]:
    areas: NDArray[np.float32] = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def _merge_twins(
    boxes: Boxes,
    scores: NDArray[np.float32],
    at_seam: NDArray[np.bool_],
    twins: Sequence[tuple[int, int]],
) -> tuple[NDArray[np.intp], Boxes, NDArray[np.float32]]:
    """Merge the boxes of each object. Return the indexes of those that stay, and updated copies of
    all boxes and scores."""
    boxes, scores = boxes.copy(), scores.copy()
    twins_of: dict[int, list[int]] = {}
    for i, j in twins:
        twins_of.setdefault(i, []).append(j)
        twins_of.setdefault(j, []).append(i)
    dropped = np.zeros(len(scores), bool)
    kept = np.zeros(len(scores), bool)
    for i in np.lexsort((-scores, at_seam)).tolist():  # boxes not at seams first, then by score
        if dropped[i]:
            continue
        kept[i] = True
        queue = list(twins_of.get(i, ()))
        while queue:
            j = queue.pop()
            if dropped[j] or kept[j]:
                continue
            dropped[j] = True
            scores[i] = max(scores[i], scores[j])
            if at_seam[i]:  # so is box ``j``: all boxes not at seams came earlier
                boxes[i, :2] = np.minimum(boxes[i, :2], boxes[j, :2])
                boxes[i, 2:] = np.maximum(boxes[i, 2:], boxes[j, 2:])
                queue += twins_of.get(j, ())
    return np.flatnonzero(~dropped), boxes, scores
