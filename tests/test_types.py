"""Letterboxes, frames, planes and detections."""

from dataclasses import replace

import numpy as np
import pytest

from detector.core.types import Arrival, Colours, Detections, Frame, Letterbox, Planes, ReadCounts


def detections_of(*boxes: list[float]) -> Detections:
    count = len(boxes)
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.linspace(0.9, 0.5, count, dtype=np.float32),
        np.arange(count),
        ("a", "b", "c"),
        7,
    )


FIT = Letterbox(scale_x=0.5, scale_y=0.25, pad_x=10, pad_y=20, width=100, height=200)


def test_boxes_are_moved_scaled_and_clipped_to_the_source() -> None:
    boxes = FIT.to_source(detections_of([10, 20, 60, 70], [15, 25, 35, 45])).boxes
    assert boxes.tolist() == [[0, 0, 100, 200], [10, 20, 50, 100]]
    clipped = FIT.to_source(detections_of([0, 0, 61, 71], [-50, 30, 100, 40])).boxes
    assert clipped.tolist() == [[0, 0, 100, 200], [0, 40, 100, 80]]


def test_mapping_boxes_to_the_source_changes_neither_other_fields_nor_its_input() -> None:
    given = detections_of([15, 25, 35, 45], [10, 20, 60, 70])
    back = FIT.to_source(given)
    assert (back.names, back.cut) == (("a", "b", "c"), 7)
    assert back.scores is given.scores
    assert back.class_ids is given.class_ids
    assert given.boxes[0].tolist() == [15, 25, 35, 45]
    assert back.boxes.dtype == np.float32
    none = detections_of()
    assert FIT.to_source(none) is none


def planes() -> Planes:
    made = iter((7, 8))
    return Planes(
        np.zeros((4, 6), np.uint8),
        np.zeros((2, 3), np.uint8),
        np.zeros((2, 3), np.uint8),
        Colours(1, 1, 1, False, (0.2126, 0.0722)),
        lambda one: np.full((*one.y.shape, 3), next(made), np.uint8),
    )


def test_planes_are_converted_once() -> None:
    frame = Frame(0, 0, 0.0, planes())
    assert (frame.size, frame.buffer) == ((4, 6), None)
    assert frame.image.max() == frame.image.max() == 7
    frame.picture = planes()
    assert frame.image is frame.image, "the new planes are converted once, too"
    frame.image = np.zeros((2, 3, 3), np.uint8)
    assert frame.size == (2, 3)
    assert frame.buffer is frame.image


def test_copied_planes_have_their_own_memory() -> None:
    given = planes()
    copied = given.copy()
    assert copied.nbytes == given.nbytes == 4 * 6 + 2 * (2 * 3)
    copied.y[:], copied.u[:], copied.v[:] = 1, 2, 3
    assert [int(one.max()) for one in (given.y, given.u, given.v)] == [0, 0, 0]
    assert copied.colours == given.colours


def test_reused_and_coasting_frames_are_not_inferred() -> None:
    frame = Frame(0, 0, 0.0, np.zeros((2, 2, 3), np.uint8))
    assert frame.inferred
    assert not replace(frame, reused=True).inferred
    assert not replace(frame, coasting=True).inferred


def test_source_with_lost_or_corrupt_frames_is_damaged() -> None:
    assert not ReadCounts(skipped=3).damaged
    for lost in ({"bad": 1}, {"corrupt": 1}, {"ended_early": True}):
        assert ReadCounts(**lost).damaged


@pytest.mark.parametrize(
    "wrong",
    [
        {"boxes": np.zeros((2, 5), np.float32)},
        {"boxes": np.zeros((3, 4), np.float32)},
        {"class_ids": np.zeros(1, np.int64)},
        {"track_ids": np.zeros(3, np.int64)},
        {"coasting": np.zeros(1, np.bool_)},
    ],
)
def test_arrays_of_different_lengths_are_refused(wrong: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(detections_of([0, 0, 1, 1], [0, 0, 2, 2]), **wrong)


def tracked() -> Detections:
    return replace(
        detections_of([0, 0, 4, 4], [2, 2, 9, 9], [20, 20, 30, 30]),
        track_ids=np.array([5, -1, 0]),
        coasting=np.array([False, True, False]),
        trails=tuple(np.full((1, 2), at, np.float32) for at in range(3)),
    )


@pytest.mark.parametrize(
    "other",
    [
        {"boxes": np.zeros((3, 4), np.float32)},
        {"scores": np.zeros(3, np.float32)},
        {"class_ids": np.zeros(3, np.int64)},
        {"track_ids": None},
        {"track_ids": np.array([5, -1, 1])},
        {"trails": ()},
        {"trails": (np.ones((1, 2), np.float32),) * 3},
        {"names": ("a",)},
        {"cut": 8},
    ],
)
def test_detections_that_differ_in_one_value_are_not_equal(other: dict[str, object]) -> None:
    assert tracked() == tracked()
    assert replace(tracked(), **other) != tracked()  # type: ignore[arg-type]
    assert (tracked() == 3) is False
    assert replace(detections_of(), cut=0) == Detections.empty(("a", "b", "c"))


def test_selected_boxes_keep_all_their_fields() -> None:
    selected = tracked().only([2, 0])
    assert selected.track_list() == [0, 5]
    assert [int(one[0, 0]) for one in selected.trails] == [2, 0]
    assert selected.coasting is not None
    assert selected.coasting.tolist() == [False, False]
    assert [selected.name(at) for at in range(2)] == ["c", "a"]
    assert detections_of([0, 0, 1, 1]).only([0]).coasting is None
    assert len(tracked().found()) == 2
    assert tracked().shown.track_list() == [5, None, 0]
    assert replace(tracked(), drawn=selected).shown is selected
    assert replace(selected, names=("a",)).name(0) == "2"


def test_boxes_are_clipped_to_the_picture_or_dropped() -> None:
    selected = tracked().inside(6, 5)
    assert selected.boxes.tolist() == [[0, 0, 4, 4], [2, 2, 5, 6]]
    assert selected.track_list() == [5, None]


def test_repr_omits_long_fields() -> None:
    frame = Frame(0, 0, 0.0, planes())
    assert frame.image.any()
    for long, names in (
        (replace(tracked(), drawn=tracked()), ("names", "trails", "scene", "coasting", "drawn")),
        (frame, ("_made", "convert")),
    ):
        assert not [name for name in names if f"{name}=" in repr(long)]


def test_times_of_steps_that_an_arrival_has_not_reached_are_0():
    arrival = Arrival("door", 1, 5, 1.0)
    moments = (arrival.decoded_ns, arrival.taken_ns, arrival.began_ns, arrival.inferred_ns)
    assert (*moments, arrival.result_ns) == (0, 0, 0, 0, 0)
