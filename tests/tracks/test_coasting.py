"""Coasting boxes, which --infer-every predicts for skipped frames, are not counted."""

from dataclasses import replace

import numpy as np
import pytest

from detector.core.sinks._best import BestPictures
from detector.core.types import Detections, Frame
from detector.tracks.book import Book
from detector.tracks.counting import Counter
from detector.tracks.zones_file import Shape, ZoneSet

LINE = Shape("door", ((10, 50), (90, 50)), True)  # "in" is downwards


def frame(index: int, *, coasting: bool = False, level: int = 128) -> Frame:
    image = np.full((100, 100, 3), level, np.uint8)
    return Frame(index, index, index / 10, image, coasting=coasting)


def person(y: float, *, coasting: bool = False) -> Detections:
    box = np.array([[45, y - 20, 55, y]], np.float32)
    detections = Detections(box, np.array([0.9], np.float32), np.array([0]), ("person",))
    return replace(
        detections, track_ids=np.array([1]), coasting=np.array([True]) if coasting else None
    )


def crossings(*steps: tuple[float, bool], shade: int = 0) -> list[tuple[float, str]]:
    """Return (time_s, event) of all events. A step is a frame: (lower edge of the box, whether the
    box is coasting). ``shade``: how much brighter each frame is than the previous frame."""
    book, events = Book("", Counter(ZoneSet((LINE,), None, "bottom", 60.0), ("person",))), []
    for i, (y, coasting) in enumerate(steps):
        shown = frame(i, coasting=coasting, level=40 + shade * i)
        scene = book.update(shown, person(y, coasting=coasting), i / 10)
        assert not (coasting and (scene.events or scene.counts))
        assert scene.outlines  # the line is drawn all the same
        events += [(event.time_s, event.event) for event in scene.events]
    return events


def test_coasting_box_does_not_cross_a_line() -> None:
    assert crossings((20, False), (22, False), (80, True), (25, False), (20, True)) == []


@pytest.mark.parametrize("shade", [0, 15])  # 15 is no cut, but 30 over two frames would be one
def test_object_seen_again_past_the_line_has_crossed_it(shade: int) -> None:
    walk = ((20, False), (25, True), (30, False), (50, True), (80, False))
    assert crossings(*walk, shade=shade) == [(pytest.approx(0.4), "crosses")]


def test_coasting_frame_is_never_the_best_picture_of_a_track() -> None:
    best = BestPictures()
    best.add(frame(0), 0.0, person(40))
    best.add(frame(1, coasting=True), 0.1, person(45, coasting=True))
    (track,) = best.end()
    assert (track.frames, track.last_frame) == (1, 0)
