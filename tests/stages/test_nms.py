"""NMS compared with a plain loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.core.stages import nms as room
from detector.core.stages.nms import nms
from detector.core.types import Candidates
from tests.properties import STEADY

NAMES = ("a", "b", "c")


def make_candidates(*rows: tuple[float, ...]) -> Candidates:
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Candidates(table[:, :4], table[:, 4], table[:, 5].astype(np.int64))


def plain_iou(a: np.ndarray, b: np.ndarray) -> tuple[np.float32, np.float32]:
    width = max(np.float32(0), min(a[2], b[2]) - max(a[0], b[0]))
    height = max(np.float32(0), min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height, union


def plain_nms(
    candidates: Candidates, iou: float, max_det: int, agnostic: bool
) -> tuple[list[int], int]:
    remaining = sorted(range(len(candidates.scores)), key=lambda i: (-candidates.scores[i], i))
    kept = []
    while remaining:
        best, *remaining = remaining
        kept.append(best)

        def suppressed(i: int, best: int = best) -> bool:
            if not agnostic and candidates.class_ids[i] != candidates.class_ids[best]:
                return False
            intersection, union = plain_iou(candidates.boxes[i], candidates.boxes[best])
            return bool(intersection > np.float32(iou) * union)

        remaining = [i for i in remaining if not suppressed(i)]
    return kept[:max_det], max(0, len(kept) - max_det)


TABLE = [
    # rows, options, rows kept, reason
    ([], {}, [], "nothing in, nothing out"),
    ([(0, 0, 10, 10, 0.9, 0)], {}, [0], "a single box"),
    ([(0, 0, 10, 10, 0.8, 0), (0, 0, 10, 10, 0.9, 0)], {}, [1], "the better of two equal boxes"),
    ([(0, 0, 10, 10, 0.9, 0), (0, 0, 10, 10, 0.9, 0)], {}, [0], "a tie goes to the lower index"),
    ([(0, 0, 10, 10, 0.9, 0), (0, 0, 10, 10, 0.8, 1)], {}, [0, 1], "other classes do not suppress"),
    ([(0, 0, 10, 10, 0.9, 0), (0, 0, 10, 10, 0.8, 1)], {"agnostic": True}, [0], "agnostic NMS"),
    (
        [(0, 0, 10, 10, 0.9, 0), (0, 0, 10, 5, 0.8, 0)],
        {"iou": 0.5},
        [0, 1],
        "a box whose IoU equals the threshold is kept",
    ),
    ([(0, 0, 10, 10, 0.9, 0), (0, 0, 10, 5, 0.8, 0)], {"iou": 0.49}, [0], "IoU above threshold"),
    # The boxes A, B and C: A suppresses B, so B cannot suppress C.
    (
        [(0, 0, 10, 10, 0.9, 0), (4, 0, 14, 10, 0.8, 0), (8, 0, 18, 10, 0.7, 0)],
        {"iou": 0.3},
        [0, 2],
        "a suppressed box suppresses nothing",
    ),
    ([(5, 5, 5, 5, 0.9, 0), (5, 5, 5, 5, 0.8, 0)], {}, [0, 1], "empty boxes overlap nothing"),
    (
        [(0, 0, 10, 10, 0.9, 0), (20, 0, 30, 10, 0.8, 1)],
        {"classes": [1]},
        [1],
        "only the requested classes are kept",
    ),
    # The better box is dropped before NMS, as its class is unwanted, so it suppresses nothing.
    (
        [(0, 0, 9, 9, 0.9, 0), (0, 0, 9, 9, 0.8, 1)],
        {"classes": [1], "agnostic": True},
        [1],
        "classes are filtered before NMS",
    ),
]


@pytest.mark.parametrize(
    ("rows", "options", "kept", "reason"), TABLE, ids=[row[3] for row in TABLE]
)
def test_nms_gives_the_known_answers(rows, options, kept, reason):
    candidates = make_candidates(*rows)
    detections = nms(candidates, **{"iou": 0.45, "max_det": 300, **options}, names=NAMES)
    assert detections.boxes.tolist() == candidates.boxes[kept].tolist()
    assert detections.class_ids.tolist() == candidates.class_ids[kept].tolist()


def test_max_det_cuts_the_worst_and_counts_them():
    candidates = make_candidates(
        *[(20 * i, 0, 20 * i + 10, 10, 0.5 + i / 100, 0) for i in range(10)]
    )
    detections = nms(candidates, iou=0.45, max_det=3)
    assert detections.scores.tolist() == pytest.approx([0.59, 0.58, 0.57])
    assert detections.cut == 7


boxes = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 40),
        st.integers(0, 25),
        st.integers(0, 25),
        st.integers(1, 8),
        st.integers(0, 2),
    ),
    max_size=60,
)


@pytest.mark.slow
@STEADY
@given(
    boxes,
    st.sampled_from([0.0, 0.3, 0.45, 0.5, 1.0]),
    st.integers(1, 20),
    st.booleans(),
    st.sampled_from([4, 256]),
)
def test_nms_equals_the_plain_loop(rows, iou, max_det, agnostic, block):
    """Use blocks of 4, too, so that few boxes span several blocks."""
    candidates = make_candidates(
        *[(x, y, x + w, y + h, score / 8, c) for x, y, w, h, score, c in rows]
    )
    kept, cut = plain_nms(candidates, iou, max_det, agnostic)
    before, room.BLOCK = room.BLOCK, block
    try:
        detections = nms(candidates, iou=iou, max_det=max_det, agnostic=agnostic)
    finally:
        room.BLOCK = before
    assert detections.boxes.tolist() == candidates.boxes[kept].tolist()
    assert detections.scores.tolist() == candidates.scores[kept].tolist()
    assert detections.cut == cut


def test_many_candidates_need_no_square_array(monkeypatch):
    largest = 0

    def watched(first, second, *rest, real=room._suppresses):
        nonlocal largest
        largest = max(largest, len(first) * len(second))
        return real(first, second, *rest)

    monkeypatch.setattr(room, "_suppresses", watched)
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 600, (20_000, 2)).astype(np.float32)
    candidates = Candidates(
        np.concatenate([corner, corner + 40], axis=1),
        rng.random(20_000).astype(np.float32),
        np.zeros(20_000, np.int64),
    )
    detections = nms(candidates, iou=0.45, max_det=300)
    assert len(detections) == 300
    assert detections.cut > 0
    assert largest < 20_000**2 / 50
