"""Boxes and labels are readable and at the right places, and nothing else changes."""

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


def detections_of(*boxes: tuple[float, float, float, float], class_id: int = 0) -> Detections:
    n = len(boxes)
    scores = np.linspace(0.91, 0.5, n).astype(np.float32)
    return Detections(
        np.array(boxes, np.float32).reshape(n, 4), scores, np.full(n, class_id), NAMES
    )


def bounds_of_drawing(image: np.ndarray) -> tuple[int, int, int, int]:
    """Return x1, y1, x2, y2 around all pixels that are not grey 128."""
    ys, xs = np.nonzero((image != 128).any(axis=2))
    return int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1


def grey(height: int = 480, width: int = 640) -> np.ndarray:
    return np.full((height, width, 3), 128, np.uint8)


def test_nothing_is_drawn_without_detections() -> None:
    image = grey()
    annotate(image, Detections.empty())
    assert (image == 128).all()


def test_box_is_drawn_at_its_coordinates() -> None:
    image = grey()
    annotate(image, detections_of((100, 200, 300, 400)))
    x1, y1, x2, y2 = bounds_of_drawing(image)
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
def test_label_at_the_edge_is_not_cut(why: str, box: tuple[float, float, float, float]) -> None:
    """Compare the label's pixels with those of the same label in the middle of the picture."""
    free, edge = grey(), grey()
    annotate(free, detections_of((300, 200, 301, 201)))
    annotate(edge, detections_of(box))
    free_label, edge_label = [text_size(image) for image in (free, edge)]
    assert free_label == edge_label


def text_size(image: np.ndarray) -> tuple[int, int]:
    """Return the number of text pixels (white, or light anti-aliased) and of rows that have any."""
    text = (image.min(axis=2) > 150) & (image != 128).all(axis=2)
    return int(text.sum()), int(text.any(axis=1).sum())


def marked_corners(boxes: list[tuple[int, int, int, int]], classes: list[int]) -> list[bool]:
    """Return for each box (x, y, width, height) whether its left side is thick below its label."""
    image = grey()
    detections = detections_of(*[(x, y, x + wide, y + high) for x, y, wide, high in boxes])
    annotate(image, replace(detections, class_ids=np.array(classes)))
    thick = [
        bool((image[y + 5, x + 1] == PALETTE[class_id]).all())
        for (x, y, *_), class_id in zip(boxes, classes, strict=True)
    ]
    for (x, y, wide, high), class_id in zip(boxes, classes, strict=True):
        assert (image[y + 5, x] == PALETTE[class_id]).all()
        assert (image[y + high // 2, x + 2] == 128).all()
        assert (image[y + 5, x + wide - 3] == 128).all()
    return thick


@pytest.mark.parametrize(
    ("why", "other", "ambiguous"),
    [
        ("apart", (480, 350, 60, 40, 1), False),
        ("on the outline of a larger box", (480, 334, 60, 100, 1), True),
        ("on the outline of a box of another colour", (480, 334, 60, 100, 0), False),
        ("inside a larger box", (480, 360, 60, 40, 1), False),
    ],
)
def test_box_with_an_ambiguous_label_in_a_crowd_has_a_thick_corner(
    why: str, other: tuple[int, int, int, int, int], ambiguous: bool
) -> None:
    """Boxes of a class have the same colour, so thick lines show to which box the label belongs."""
    separate = [(20 + 150 * (i % 4), 30 + 110 * (i // 4), 80, 60, 1) for i in range(11)]
    larger = (325, 330, 290, 120, 1) if why != "apart" else (325, 330, 50, 40, 1)
    rows = [*separate, larger, other]
    thick = marked_corners([row[:4] for row in rows], [row[4] for row in rows])
    assert thick == [False] * 12 + [ambiguous]
    few = [larger, other]
    assert marked_corners([row[:4] for row in few], [row[4] for row in few]) == [False] * 2


def test_places_for_a_label_are_tried_in_order() -> None:
    box = np.array([(100, 100, 160, 160)], np.float32)
    places = LabelSpace(300, 300, box, 0)
    label = Label(np.zeros((10, 20), np.uint8), (0, 0, 255), (0, 0, 0))
    placed = [places.find([0], [label])[0] for _ in range(10)]
    above_and_below = [(100, 90), (140, 90), (100, 160), (140, 160)]
    beside_and_inside = [(160, 100), (80, 100), (100, 100), (140, 100), (100, 150)]
    expected = [*above_and_below, *beside_and_inside, None]
    assert [at and at[:2] for at in placed] == expected


def test_label_touches_a_corner_of_its_box() -> None:
    numbers = np.random.default_rng(4)
    corners = numbers.uniform(0, (600, 440), (120, 2))
    boxes = np.hstack([corners, corners + numbers.uniform(3, 160, (120, 2))])
    crowd = detections_of(*map(tuple, boxes.clip(0, (640, 480, 640, 480))))
    label = render("person", 0.4, PALETTE[0], (0, 0, 0), "0.91")
    placed = LabelSpace(640, 480, crowd.boxes, 2).find(range(120), [label] * 120)
    assert sum(at is not None for at in placed) > 5  # 8 with OpenCV 4, whose letters are wider
    for box, at in zip(crowd.boxes.tolist(), placed, strict=True):
        if at is None:
            continue
        x, y, place = at
        right, bottom = labels.CORNERS[place]
        corner = (box[2] if right else box[0], box[3] if bottom else box[1])
        assert x - 2 <= corner[0] <= x + label.width + 2
        assert y - 2 <= corner[1] <= y + label.height + 2


@pytest.mark.parametrize("size", [(1, 1), (16, 16), (2, 4000), (4000, 2), (48, 64)], ids=str)
def test_boxes_are_drawn_on_tiny_and_narrow_pictures(size: tuple[int, int]) -> None:
    image = grey(*size)
    annotate(image, detections_of((0, 0, size[1], size[0]), (0.4, 0.4, 0.6, 0.6)))
    assert (image != 128).any()


@pytest.mark.slow
def test_text_grows_with_the_picture() -> None:
    heights = []
    for size in (320, 1280, 5120):
        image = grey(size, size)
        annotate(image, detections_of((size / 4, size / 2, size / 2, size * 0.75)))
        heights.append(size / 2 - bounds_of_drawing(image)[1])
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
        image, detections_of((100, 100, 200, 200), class_id=1234)
    )  # more classes than colours, and no name
    assert (image[150, 100] == PALETTE[1234 % 80]).all()


@pytest.mark.parametrize("class_id", range(80))
def test_label_text_has_enough_contrast(class_id: int) -> None:
    """WCAG demands a contrast of at least 3:1 for large text."""
    image, background = grey(400, 400), PALETTE[class_id]
    annotate(image, detections_of((50, 200, 350, 390), class_id=class_id))
    text = image[
        (image != 128).any(axis=2) & (image != background).any(axis=2)
    ]  # anti-aliased pixels are a blend of text and background
    assert len(text) > 20
    ink = 1.0 if text.mean() > np.mean(background) else 0.0
    light, dark = sorted((ink, luminance(np.array(background))), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def luminance(bgr: np.ndarray) -> float:
    linear = np.where(bgr / 255 <= 0.04045, bgr / 255 / 12.92, ((bgr / 255 + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.0722, 0.7152, 0.2126])


def test_three_hundred_labels_need_little_memory() -> None:
    image = grey(720, 1280)
    many = detections_of(*[(i * 4, i * 2, i * 4 + 80, i * 2 + 90) for i in range(300)])
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
def test_labels_do_not_overlap_or_leave_the_picture(
    n: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few labels are placed in Python, many with numpy. Both ways must give the same positions."""
    crowded, layouts = crowd(n, side=side), []
    drawn = [render(f"person {s:.2f}", 0.4, PALETTE[0], (0, 0, 0)) for s in crowded.scores]
    taken = np.zeros((480, 640), np.int64)
    for many in (0, n):
        monkeypatch.setattr(labels, "MANY", many)
        places = LabelSpace(640, 480, crowded.boxes, 2, range(n))
        layouts.append(places.find(range(n), drawn))
    assert layouts[0] == layouts[1]
    for at, label in zip(layouts[0], drawn, strict=True):
        if at is not None:
            x, y, _ = at
            assert 0 <= x <= 640 - label.width
            assert 0 <= y <= 480 - label.height
            taken[y : y + label.height, x : x + label.width] += 1
    assert taken.max() == 1
    assert None in layouts[0] or n < 150  # some labels find no free place


@pytest.mark.parametrize(
    ("left", "ambiguous"), [(32, True), (33, False), (-23, True), (-24, False), (5, False)]
)
def test_label_near_the_outline_of_another_box_is_ambiguous(left: int, ambiguous: bool) -> None:
    label = Label(np.zeros((10, 20), np.uint8), (0, 0, 255), (0, 0, 0))
    placed = PlacedLabel(0, "", "", 0, 1.0, label, 10, 20)
    other = [left, 0, left + 31, 100] if left != 5 else [5, 0, 40, 100]  # the label is inside
    assert _find_ambiguous(DrawnLayout(2, [[10, 30, 20, 60], other], [0, 0], [placed], [], [])) == [
        ambiguous
    ]


def test_label_avoids_a_small_object() -> None:
    image = grey()
    annotate(image, detections_of((200, 200, 400, 400), (200, 178, 240, 198)), Style(scores=False))
    small = image[182:194, 206:234]  # inside the outline of the small box
    assert (small == 128).all()


def test_label_without_free_space_is_omitted() -> None:
    grid = [(x, y, x + 12, y + 12) for y in range(0, 120, 12) for x in range(0, 120, 12)]
    image = grey(120, 120)
    annotate(image, detections_of(*grid))
    plain = grey(120, 120)
    annotate(plain, detections_of(*grid), Style(labels=False))
    assert (image == plain).mean() > 0.9


def test_style_options_change_the_drawing() -> None:
    box = detections_of((100, 200, 300, 400))
    plain, bare, thick, large = grey(), grey(), grey(), grey()
    annotate(plain, box)
    annotate(bare, box, Style(labels=False))
    annotate(thick, box, Style(line_width=9))
    annotate(large, box, Style(font_scale=2.0))
    assert bounds_of_drawing(bare)[1] >= 198
    assert (thick[300, 100:104] == PALETTE[0]).all()
    assert (plain[300, 103:110] == 128).all()
    assert 200 - bounds_of_drawing(large)[1] > 1.6 * (200 - bounds_of_drawing(plain)[1])
    short = grey()
    annotate(short, box, Style(scores=False))
    assert text_size(short)[0] < text_size(plain)[0]


@pytest.mark.parametrize("box", [(100.4, 50.7, 300.2, 400.9), (0, 0, 640, 480), (5, 5, 9, 8)])
def test_pixelated_boxes_hold_few_colours(box: tuple[float, float, float, float]) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (480, 640, 3), dtype=np.uint8)
    before = image.copy()
    pixelate(image, detections_of(box), frozenset({0}))
    x1, y1 = int(box[0]), int(box[1])
    x2, y2 = int(np.ceil(box[2])), int(np.ceil(box[3]))
    inside = image[y1:y2, x1:x2].reshape(-1, 3)
    sides = (x2 - x1, y2 - y1)
    most = (BLOCKS * max(sides) / min(sides) + 1) * (BLOCKS + 1)
    assert len(np.unique(inside, axis=0)) <= most
    image[y1:y2, x1:x2] = before[y1:y2, x1:x2]
    assert (image == before).all(), "pixels outside the box changed"


@pytest.mark.parametrize("planes", [False, True])
def test_blur_is_applied_before_the_box_is_drawn(planes: bool) -> None:
    image = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    picture = planes_of(image) if planes else image
    annotate(picture, detections_of((100, 100, 300, 300)), Style(blurred=frozenset({0})))
    inside = (picture.y if isinstance(picture, Planes) else picture[..., 1])[120:280, 120:280]
    row_by_row = [len(np.unique(row)) for row in inside]
    assert max(row_by_row) <= BLOCKS


@pytest.mark.parametrize("planes", [False, True])
def test_lines_and_trails_are_drawn_at_their_coordinates(planes: bool) -> None:
    stroke = np.array([[100, 200], [500, 200]], np.float32)
    trail = np.array([[50, 400], [250, 400]], np.float32)
    scene = Scene((Outline((stroke,), "gate 3", 300, 120),), (), (), None)
    detections = replace(detections_of((260, 380, 300, 420)), trails=(trail,), scene=scene)
    picture = planes_of(grey()) if planes else grey()
    annotate(picture, detections, Style())
    image = bgr_of(picture) if isinstance(picture, Planes) else picture
    changed = (np.abs(image.astype(int) - 128) > 8).any(axis=2)
    assert changed[200, 105:495].all()
    assert changed[400, 55:245].all()
    ys, xs = np.nonzero(changed[60:190, 280:500])
    assert (xs.min() + 280, ys.max() + 61) == (300, 120), "the text begins at its point"
    changed[190:211, 90:511] = changed[390:411, 40:261] = False
    changed[60:130, 290:500] = changed[340:430, 250:420] = False
    assert not changed.any()


@pytest.mark.parametrize("planes", [False, True])
def test_every_side_of_a_zone_is_drawn(planes: bool) -> None:
    corners = np.array([[50, 50], [400, 50], [400, 300], [50, 300], [50, 50]], np.float32)
    detections = Detections.empty()
    detections.scene = Scene((Outline((corners,), "yard", 300, 400),), (), (), None)
    picture = planes_of(grey()) if planes else grey()
    annotate(picture, detections, Style())
    image = bgr_of(picture) if isinstance(picture, Planes) else picture
    changed = (np.abs(image.astype(int) - 128) > 8).any(axis=2)
    for side in (
        changed[50, 50:400],
        changed[300, 50:400],
        changed[50:300, 50],
        changed[50:300, 400],
    ):
        assert side.all()


@pytest.mark.parametrize("planes", [False, True])
def test_other_classes_are_not_pixelated(planes: bool) -> None:
    image = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    picture, before = (planes_of(image) if planes else image), image.copy()
    pixelate(picture, detections_of((100, 100, 200, 200), class_id=1), frozenset({0}))
    if isinstance(picture, Planes):
        picture, before = picture.y, planes_of(image).y
    assert (picture == before).all()


def test_name_that_opencv_4_cannot_draw_becomes_its_class_number() -> None:
    with opencv_4():
        assert labels.drawable("车", 2) == "#2"
        assert labels.drawable("person", 0) == "person"


@pytest.mark.parametrize(("name", "covered"), [("person", False), ("horse", True)])
def test_label_of_a_person_does_not_hide_a_face(name: str, covered: bool) -> None:
    """The first place tried for the smaller box's label would cover the head in the larger box."""
    boxes = np.array([[100, 100, 400, 460], [225, 150, 285, 260]], np.float32)
    detections = Detections(boxes, np.array([0.9, 0.8], np.float32), np.zeros(2, int), (name,))
    layout = lay_out(640, 480, detections, Style())
    [label] = [label for label in layout.labels if label.number == 1]
    assert (label.y < 100 + 126) == covered
    assert label.text == name
