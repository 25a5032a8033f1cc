"""Boxes and labels: where they lie, that they can be read, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detector.core.stages import labels
from detector.core.stages.annotate import (
    BLOCKS,
    PALETTE,
    DrawnLayout,
    PlacedLabel,
    Style,
    _find_ambiguous,
    annotate,
    lay_out,
    pixelate,
)
from detector.core.stages.labels import Label, LabelSpace, render
from detector.core.types import Detections, Outline, Planes
from detector.tracks.book import Scene
from tests.fonts import opencv_4
from tests.memory import bytes_of
from tests.planes import bgr_of, planes_of

NAMES = ("person", "bicycle", "车 Mädchen")


def found(*boxes: tuple[float, float, float, float], class_id: int = 0) -> Detections:
    n = len(boxes)
    scores = np.linspace(0.91, 0.5, n).astype(np.float32)
    return Detections(
        np.array(boxes, np.float32).reshape(n, 4), scores, np.full(n, class_id), NAMES
    )


def touched(image: np.ndarray) -> tuple[int, int, int, int]:
    """x1, y1, x2, y2 of all pixels that are not grey 128; the outer corners."""
    ys, xs = np.nonzero((image != 128).any(axis=2))
    return int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1


def grey(height: int = 480, width: int = 640) -> np.ndarray:
    return np.full((height, width, 3), 128, np.uint8)


def test_nothing_found_nothing_drawn() -> None:
    image = grey()
    annotate(image, Detections.empty())
    assert (image == 128).all()


def test_the_box_lies_where_it_was_found() -> None:
    image = grey()
    annotate(image, found((100, 200, 300, 400)))
    x1, y1, x2, y2 = touched(image)
    assert abs(x1 - 100) <= 2
    assert y1 < 200 - 8  # the label is above
    assert abs(x2 - 300) <= 2
    assert abs(y2 - 400) <= 2
    assert (image[300, 100] == PALETTE[0]).all()
    assert (image[300, 200] == 128).all()  # inside: untouched


@pytest.mark.parametrize(
    ("why", "box"),
    [
        ("top left: no room above", (0, 0, 60, 60)),
        ("right edge: no room beside", (620, 200, 640, 300)),
        ("top right", (630, 0, 640, 20)),
        ("bottom", (10, 470, 60, 480)),
        ("the whole picture", (0, 0, 640, 480)),
    ],
)
def test_the_label_stays_inside(why: str, box: tuple[float, float, float, float]) -> None:
    """The same label with room to spare has as many pixels: none was cut off."""
    free, edge = grey(), grey()
    annotate(free, found((300, 200, 301, 201)))
    annotate(edge, found(box))
    free_label, edge_label = [fill_height(image) for image in (free, edge)]
    assert free_label == edge_label


def fill_height(image: np.ndarray) -> tuple[int, int]:
    """Pixels of text, and rows that hold some: white or light anti-aliased ones on the first
    colour.
    """
    text = (image.min(axis=2) > 150) & (image != 128).all(axis=2)
    return int(text.sum()), int(text.any(axis=1).sum())


def cornered(boxes: list[tuple[int, int, int, int]], classes: list[int]) -> list[bool]:
    """Of each box x, y, width, height, whether its left side is thick below its label."""
    image, made = grey(), found(*[(x, y, x + wide, y + high) for x, y, wide, high in boxes])
    annotate(image, replace(made, class_ids=np.array(classes)))
    thick = [
        bool((image[y + 5, x + 1] == PALETTE[one]).all())
        for (x, y, *_), one in zip(boxes, classes, strict=True)
    ]
    for (x, y, wide, high), one in zip(boxes, classes, strict=True):
        assert (image[y + 5, x] == PALETTE[one]).all()
        assert (image[y + high // 2, x + 2] == 128).all()
        assert (image[y + 5, x + wide - 3] == 128).all()
    return thick


@pytest.mark.parametrize(
    ("why", "other", "doubtful"),
    [
        ("apart", (480, 350, 60, 40, 1), False),
        ("on the outline of a larger one", (480, 334, 60, 100, 1), True),
        ("on that of another colour", (480, 334, 60, 100, 0), False),
        ("whole inside a larger one", (480, 360, 60, 40, 1), False),
    ],
)
def test_in_a_crowd_a_label_shows_its_corner_where_it_could_be_anothers(
    why: str, other: tuple[int, int, int, int, int], doubtful: bool
) -> None:
    """Boxes of one class have one colour: thick arms tell whose the label is, and on which side."""
    apart = [(20 + 150 * (i % 4), 30 + 110 * (i // 4), 80, 60, 1) for i in range(11)]
    larger = (325, 330, 290, 120, 1) if why != "apart" else (325, 330, 50, 40, 1)
    rows = [*apart, larger, other]
    thick = cornered([row[:4] for row in rows], [row[4] for row in rows])
    assert thick == [False] * 12 + [doubtful]
    few = [larger, other]
    assert cornered([row[:4] for row in few], [row[4] for row in few]) == [False] * 2


def test_label_places_are_tried_above_below_beside_inside() -> None:
    box = np.array([(100, 100, 160, 160)], np.float32)
    places = LabelSpace(300, 300, box, 0)
    label = Label(np.zeros((10, 20), np.uint8), (0, 0, 255), (0, 0, 0))
    placed = [places.find([0], [label])[0] for _ in range(10)]
    above_and_below = [(100, 90), (140, 90), (100, 160), (140, 160)]
    beside_and_inside = [(160, 100), (80, 100), (100, 100), (140, 100), (100, 150)]
    wanted = [*above_and_below, *beside_and_inside]
    assert [at and at[:2] for at in placed] == [*wanted, None]


def test_label_touches_its_box_at_its_corner() -> None:
    numbers = np.random.default_rng(4)
    corners = numbers.uniform(0, (600, 440), (120, 2))
    boxes = np.hstack([corners, corners + numbers.uniform(3, 160, (120, 2))])
    crowd = found(*map(tuple, boxes.clip(0, (640, 480, 640, 480))))
    one = render("person", 0.4, PALETTE[0], (0, 0, 0), "0.91")
    placed = LabelSpace(640, 480, crowd.boxes, 2).find(range(120), [one] * 120)
    assert sum(at is not None for at in placed) > 5  # 8 with OpenCV 4, whose letters are wider
    for box, at in zip(crowd.boxes.tolist(), placed, strict=True):
        if at is None:
            continue
        x, y, place = at
        right, bottom = labels.CORNERS[place]
        corner = (box[2] if right else box[0], box[3] if bottom else box[1])
        assert x - 2 <= corner[0] <= x + one.width + 2
        assert y - 2 <= corner[1] <= y + one.height + 2


@pytest.mark.parametrize("size", [(1, 1), (16, 16), (2, 4000), (4000, 2), (48, 64)], ids=str)
def test_tiny_and_narrow_pictures(size: tuple[int, int]) -> None:
    image = grey(*size)
    annotate(image, found((0, 0, size[1], size[0]), (0.4, 0.4, 0.6, 0.6)))
    assert (image != 128).any()


@pytest.mark.slow
def test_text_and_lines_grow_with_the_picture() -> None:
    heights = []
    for size in (320, 1280, 5120):
        image = grey(size, size)
        annotate(image, found((size / 4, size / 2, size / 2, size * 0.75)))
        heights.append(size / 2 - touched(image)[1])
    assert heights[0] >= 10  # pixels: readable
    assert heights[1] > heights[0] * 1.3
    assert heights[2] == pytest.approx(heights[1] * 4, rel=0.25)


def test_best_score_is_drawn_last() -> None:
    image = grey()
    best = Detections(
        np.array([[100, 100, 300, 300]] * 2, np.float32),
        np.array([0.9, 0.3], np.float32),
        np.array([0, 1]),
        NAMES,
    )
    annotate(image, best)
    assert (image[200, 100] == PALETTE[0]).all()


def test_eighty_classes_have_eighty_colours() -> None:
    assert len(set(PALETTE)) == 80
    image = grey()
    annotate(
        image, found((100, 100, 200, 200), class_id=1234)
    )  # more classes than colours, and no name
    assert (image[150, 100] == PALETTE[1234 % 80]).all()


@pytest.mark.parametrize("class_id", range(80))
def test_every_label_can_be_read(class_id: int) -> None:
    """Contrast of text and background, as WCAG counts it, at least 3 : 1 (large text)."""
    image, background = grey(400, 400), PALETTE[class_id]
    annotate(image, found((50, 200, 350, 390), class_id=class_id))
    text = image[
        (image != 128).any(axis=2) & (image != background).any(axis=2)
    ]  # some of it a blend of both
    assert len(text) > 20
    ink = 1.0 if text.mean() > np.mean(background) else 0.0
    light, dark = sorted((ink, luminance(np.array(background))), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def luminance(bgr: np.ndarray) -> float:
    linear = np.where(bgr / 255 <= 0.04045, bgr / 255 / 12.92, ((bgr / 255 + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.0722, 0.7152, 0.2126])


def test_buffers_stay_small_in_a_crowd() -> None:
    """Together, for three hundred labels: a fifth of one picture, in pieces below 64 KB."""
    image = grey(720, 1280)
    many = found(*[(i * 4, i * 2, i * 4 + 80, i * 2 + 90) for i in range(300)])
    annotate(image, many)
    assert bytes_of(lambda: annotate(image, many))[1] < image.nbytes / 5


@pytest.mark.parametrize("shape", [(16, 16), (90, 160), (720, 1280)])
def test_remark_is_drawn_bottom_left_without_detections(shape):
    image = np.zeros((*shape, 3), np.uint8)
    annotate(image, Detections.empty(), Style(remark="random weights: boxes are meaningless"))
    assert image[-4:, :8].any()
    assert not image[: shape[0] // 3].any() or shape == (16, 16)


def crowd(n: int = 40, width: int = 640, height: int = 480, side: int = 60) -> Detections:
    rng = np.random.default_rng(n)
    at = rng.uniform(0, (width - side, height - side), (n, 2)).astype(np.float32)
    ends = at + rng.uniform(side / 2, side, (n, 2)).astype(np.float32)
    scores = np.sort(rng.uniform(0.2, 1, n))[::-1].astype(np.float32)
    return Detections(np.hstack([at, ends]), scores, np.zeros(n, np.int64), NAMES)


@pytest.mark.parametrize("n", [1, 8, 40, 150])
@pytest.mark.parametrize("side", [60, 450])
def test_labels_touch_neither_each_other_nor_the_frame(
    n: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place is the label's own and in the picture, in Python and by numpy the same."""
    found_here, given = crowd(n, side=side), []
    drawn = [render(f"person {s:.2f}", 0.4, PALETTE[0], (0, 0, 0)) for s in found_here.scores]
    taken = np.zeros((480, 640), np.int64)
    for many in (0, n):
        monkeypatch.setattr(labels, "MANY", many)
        places = LabelSpace(640, 480, found_here.boxes, 2, range(n))
        given.append(places.find(range(n), drawn))
    assert given[0] == given[1]
    for at, label in zip(given[0], drawn, strict=True):
        if at is not None:
            x, y, _ = at
            assert 0 <= x <= 640 - label.width
            assert 0 <= y <= 480 - label.height
            taken[y : y + label.height, x : x + label.width] += 1
    assert taken.max() == 1
    assert None in given[0] or n < 150  # some give way


@pytest.mark.parametrize(
    ("left", "doubtful"), [(32, True), (33, False), (-23, True), (-24, False), (5, False)]
)
def test_a_label_is_in_doubt_up_to_the_outline_of_another_box(left: int, doubtful: bool) -> None:
    label = Label(np.zeros((10, 20), np.uint8), (0, 0, 255), (0, 0, 0))
    placed = PlacedLabel(0, "", "", 0, 1.0, label, 10, 20)
    other = [left, 0, left + 31, 100] if left != 5 else [5, 0, 40, 100]  # the label lies inside
    assert _find_ambiguous(DrawnLayout(2, [[10, 30, 20, 60], other], [0, 0], [placed], [], [])) == [
        doubtful
    ]


def test_a_label_does_not_hide_the_object_behind() -> None:
    """A small object is where the label would go, so the label moves."""
    image = grey()
    annotate(image, found((200, 200, 400, 400), (200, 178, 240, 198)), Style(scores=False))
    small = image[182:194, 206:234]  # inside the small box, its line left out
    assert (small == 128).all()


def test_a_crowded_object_keeps_its_box_and_loses_its_label() -> None:
    """Boxes of 12 pixels side by side, everywhere: no label may lie on them."""
    grid = [(x, y, x + 12, y + 12) for y in range(0, 120, 12) for x in range(0, 120, 12)]
    image = grey(120, 120)
    annotate(image, found(*grid))
    plain = grey(120, 120)
    annotate(plain, found(*grid), Style(labels=False))
    assert (image == plain).mean() > 0.9


def test_options_of_drawing() -> None:
    box = found((100, 200, 300, 400))
    plain, bare, thick, large = grey(), grey(), grey(), grey()
    annotate(plain, box)
    annotate(bare, box, Style(labels=False))
    annotate(thick, box, Style(line_width=9))
    annotate(large, box, Style(font_scale=2.0))
    assert touched(bare)[1] >= 198
    assert (thick[300, 100:104] == PALETTE[0]).all()
    assert (plain[300, 103:110] == 128).all()
    assert 200 - touched(large)[1] > 1.6 * (200 - touched(plain)[1])
    short = grey()
    annotate(short, box, Style(scores=False))
    assert fill_height(short)[0] < fill_height(plain)[0]


@pytest.mark.parametrize("box", [(100.4, 50.7, 300.2, 400.9), (0, 0, 640, 480), (5, 5, 9, 8)])
def test_pixelated_boxes_hold_few_colours(box: tuple[float, float, float, float]) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (480, 640, 3), dtype=np.uint8)
    before = image.copy()
    pixelate(image, found(box), frozenset({0}))
    x1, y1 = int(box[0]), int(box[1])
    x2, y2 = int(np.ceil(box[2])), int(np.ceil(box[3]))
    inside = image[y1:y2, x1:x2].reshape(-1, 3)
    sides = (x2 - x1, y2 - y1)
    most = (BLOCKS * max(sides) / min(sides) + 1) * (BLOCKS + 1)
    assert len(np.unique(inside, axis=0)) <= most
    image[y1:y2, x1:x2] = before[y1:y2, x1:x2]
    assert (image == before).all()  # nothing outside changed


@pytest.mark.parametrize("planes", [False, True])
def test_pixels_are_taken_away_before_the_box_is_drawn(planes: bool) -> None:
    image = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    picture = planes_of(image) if planes else image
    annotate(picture, found((100, 100, 300, 300)), Style(blurred=frozenset({0})))
    inside = (picture.y if isinstance(picture, Planes) else picture[..., 1])[120:280, 120:280]
    row_by_row = [len(np.unique(row)) for row in inside]
    assert max(row_by_row) <= BLOCKS


@pytest.mark.parametrize("planes", [False, True])
def test_lines_zones_and_trails_lie_where_they_are(planes: bool) -> None:
    stroke = np.array([[100, 200], [500, 200]], np.float32)
    trail = np.array([[50, 400], [250, 400]], np.float32)
    scene = Scene((Outline((stroke,), "gate 3", 300, 120),), (), (), None)
    seen = replace(found((260, 380, 300, 420)), trails=(trail,), scene=scene)
    picture = planes_of(grey()) if planes else grey()
    annotate(picture, seen, Style())
    image = bgr_of(picture) if isinstance(picture, Planes) else picture
    changed = (np.abs(image.astype(int) - 128) > 8).any(axis=2)
    assert changed[200, 105:495].all()
    assert changed[400, 55:245].all()
    ys, xs = np.nonzero(changed[60:190, 280:500])
    assert (xs.min() + 280, ys.max() + 61) == (300, 120), "the text begins at its point"
    changed[190:211, 90:511] = changed[390:411, 40:261] = False
    changed[60:130, 290:500] = changed[340:430, 250:420] = False
    assert not changed.any()


def test_only_the_named_classes_are_pixelated() -> None:
    image = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    before = image.copy()
    pixelate(image, found((100, 100, 200, 200), class_id=1), frozenset({0}))
    assert (image == before).all()


def test_a_name_beyond_the_font_becomes_its_number() -> None:
    with opencv_4():
        assert labels.drawable("车", 2) == "#2"
        assert labels.drawable("person", 0) == "person"


@pytest.mark.parametrize(("name", "covered"), [("person", False), ("horse", True)])
def test_a_label_goes_where_it_hides_no_face(name: str, covered: bool) -> None:
    """The preferred place of the smaller box's label covers the larger one's head."""
    boxes = np.array([[100, 100, 400, 460], [225, 150, 285, 260]], np.float32)
    detections = Detections(boxes, np.array([0.9, 0.8], np.float32), np.zeros(2, int), (name,))
    layout = lay_out(640, 480, detections, Style())
    [label] = [one for one in layout.labels if one.number == 1]
    assert (label.y < 100 + 126) == covered
    assert label.text == name
