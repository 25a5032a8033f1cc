"""Tiles of a picture, and the merging of their detections."""

import numpy as np
import pytest

from detector.core.stages.preprocess import GEOMETRIES, letterbox
from detector.core.stages.tiles import FrameTiles, Region, TiledFit, cut_out, join_tiles, regions
from detector.core.types import Detections, Letterbox, size_of
from tests.planes import planes_of
from tests.stages.test_planes import smooth

SIZES = [(1280, 720), (427, 241), (64, 48), (7, 5), (1, 1)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("grid", [(2, 2), (3, 2), (1, 4), (8, 8)])
def test_tiles_cover_the_picture_and_begin_at_even_pixels(size, grid):
    whole, *tiles = regions(*size, *grid)
    assert whole == (0, 0, *size)
    assert len(tiles) == grid[0] * grid[1]
    covered = np.zeros(size[::-1], bool)
    for x1, y1, x2, y2 in tiles:
        assert x1 % 2 == y1 % 2 == 0
        assert 0 <= x1 < x2 <= size[0]
        assert 0 <= y1 < y2 <= size[1]
        covered[y1:y2, x1:x2] = True
    assert covered.all()


def test_last_tile_of_a_tiny_picture_begins_at_an_even_pixel():
    assert [(x1, x2) for x1, _, x2, _ in regions(3, 1, 4, 1)] == [(0, 3), *[(0, 2)] * 3, (2, 3)]


def test_tiles_overlap_by_a_fifth():
    _, first, second, *_ = regions(1280, 720, 2, 2)
    assert (first.x2 - second.x1) / (first.x2 - first.x1) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("make", [lambda image: image, planes_of], ids=["bgr", "planes"])
def test_tile_is_letterboxed_like_the_cropped_picture(geometry, make):
    picture, slot = make(smooth(90, 160)), np.zeros((5, 64, 96, 3), np.uint8)

    def scale(part, row):
        return letterbox(part, row, geometry=geometry)

    fit = FrameTiles(scale, join_tiles, (2, 2))(picture, slot)
    for region, row, tile_fit in zip(fit.shown, slot, fit.fits, strict=True):
        crop, expected = cut_out(picture, region).copy(), np.zeros((64, 96, 3), np.uint8)
        assert tile_fit == scale(crop, expected)
        assert (row == expected).all()


def test_cut_out_returns_a_view():
    image = smooth(90, 160)
    assert np.shares_memory(cut_out(image, Region(10, 20, 60, 70)), image)
    planes = planes_of(image)
    tile = cut_out(planes, Region(10, 20, 60, 70))
    assert size_of(tile) == (50, 50)
    assert tile.u.shape == tile.v.shape == (25, 25)
    assert np.shares_memory(tile.y, planes.y)
    assert np.shares_memory(tile.u, planes.u)


REGIONS = (Region(0, 0, 180, 100), Region(0, 0, 100, 100), Region(80, 0, 180, 100))
WHOLE, LEFT, RIGHT = range(3)
JOINED = [
    ("one object in two tiles", [(LEFT, 0.5, 85, 10, 95, 30), (RIGHT, 0.8, 85, 10, 96, 30)],
     [(0.8, 85, 10, 96, 30)]),
    ("two objects of one tile", [(LEFT, 0.5, 10, 10, 30, 30), (LEFT, 0.8, 12, 10, 32, 30)],
     [(0.8, 12, 10, 32, 30), (0.5, 10, 10, 30, 30)]),
    ("two objects side by side", [(LEFT, 0.5, 84, 10, 90, 30), (RIGHT, 0.8, 90, 10, 96, 30)],
     [(0.8, 90, 10, 96, 30), (0.5, 84, 10, 90, 30)]),
    ("two complete objects, one of which reaches further left",
     [(LEFT, 0.5, 60, 10, 95, 30), (RIGHT, 0.8, 84, 10, 96, 30)],
     [(0.8, 84, 10, 96, 30), (0.5, 60, 10, 95, 30)]),
    ("a piece and the whole object with a lower score",
     [(LEFT, 0.9, 90, 10, 100, 50), (RIGHT, 0.6, 90, 10, 130, 50)], [(0.9, 90, 10, 130, 50)]),
    ("a sliver at the seam", [(LEFT, 0.9, 97, 10, 100, 50), (RIGHT, 0.6, 96, 10, 130, 50)],
     [(0.9, 96, 10, 130, 50)]),
    ("pieces of an object larger than the overlap",
     [(LEFT, 0.9, 40, 10, 100, 50), (RIGHT, 0.6, 80, 11, 150, 51)], [(0.9, 40, 10, 150, 51)]),
    ("pieces, and the object in the whole picture",
     [(WHOLE, 0.4, 41, 10, 149, 50), (LEFT, 0.9, 40, 10, 100, 50), (RIGHT, 0.6, 80, 11, 150, 51)],
     [(0.9, 41, 10, 149, 50)]),
    ("a piece inside a far larger box that was found in the whole picture",
     [(WHOLE, 0.4, 20, 0, 160, 90), (LEFT, 0.9, 60, 40, 100, 80)], [(0.9, 20, 0, 160, 90)]),
    ("a piece inside a far larger box that was found in the next tile",
     [(LEFT, 0.9, 86, 40, 100, 80), (RIGHT, 0.4, 84, 0, 170, 90)], [(0.9, 84, 0, 170, 90)]),
    ("an object in front of a large one",
     [(WHOLE, 0.4, 20, 0, 160, 90), (LEFT, 0.9, 40, 40, 60, 80)],
     [(0.9, 40, 40, 60, 80), (0.4, 20, 0, 160, 90)]),
    ("an object at the picture's border is complete",
     [(LEFT, 0.9, 0, 10, 30, 50), (WHOLE, 0.6, 1, 10, 31, 50)], [(0.9, 0, 10, 30, 50)]),
    ("no boxes", [], []),
]  # fmt: skip


def detections_per_tile(rows, classes=None):
    detections = []
    for tile in range(len(REGIONS)):
        table = np.array([row[1:] for row in rows if row[0] == tile], np.float32).reshape(-1, 5)
        ids = np.zeros(len(table), np.int64) if classes is None else classes[tile]
        detections.append(Detections(table[:, 1:], table[:, 0], ids, ("a",)))
    return detections


@pytest.mark.parametrize(("why", "rows", "expected"), JOINED, ids=[row[0] for row in JOINED])
def test_only_boxes_of_the_same_object_are_joined(why, rows, expected):
    joined = join_tiles(detections_per_tile(rows), REGIONS, max_det=300)
    rows = np.column_stack([joined.scores, joined.boxes])
    assert rows.round(3).tolist() == np.array(expected, np.float32).reshape(-1, 5).round(3).tolist()
    assert joined.names == ("a",)


def test_pieces_in_three_tiles_become_one_box():
    picture, *tiles = Region(0, 0, 260, 100), *(Region(x, 0, x + 100, 100) for x in (0, 80, 160))
    boxes = [(40, 10, 100, 50), (80, 10, 180, 50), (160, 10, 230, 50)]
    none = Detections.empty(("a",))
    for scores in ((0.5, 0.9, 0.7), (0.95, 0.9, 0.7)):
        pieces = [
            Detections(np.float32([box]), np.float32([score]), np.zeros(1, np.int64), ("a",))
            for score, box in zip(scores, boxes, strict=True)
        ]
        for step in (1, -1):
            joined = join_tiles([none, *pieces[::step]], (picture, *tiles[::step]), max_det=9)
            assert joined.boxes.tolist() == [[40, 10, 230, 50]]


def test_boxes_of_two_classes_are_joined_only_if_agnostic():
    rows, ids = [(LEFT, 0.5, 85, 10, 95, 30), (RIGHT, 0.8, 85, 10, 96, 30)], [[], [0], [1]]
    classes = [np.array(tile, np.int64) for tile in ids]
    assert len(join_tiles(detections_per_tile(rows, classes), REGIONS, max_det=9)) == 2
    joined = join_tiles(detections_per_tile(rows, classes), REGIONS, max_det=9, agnostic=True)
    assert joined.class_ids.tolist() == [1]


def test_max_det_keeps_the_best_and_counts_the_rest():
    rows = [(WHOLE, 0.1 * n, 10 * n, 10, 10 * n + 8, 30) for n in range(1, 9)]
    joined = join_tiles(detections_per_tile(rows), REGIONS, max_det=3, conf=0.35)
    assert (len(joined), joined.cut) == (3, 2)


def test_boxes_of_tiles_are_scaled_to_the_picture():
    fits = tuple(Letterbox(0.5, 0.5, 0, 7, region.x2 - region.x1, 100) for region in REGIONS)
    fit = TiledFit(REGIONS, fits, lambda detections, regions: detections[RIGHT])
    in_right_tile = detections_per_tile([(RIGHT, 0.5, 10, 12, 20, 17)])
    assert fit.to_source(in_right_tile).boxes.tolist() == [[100, 10, 120, 20]]
