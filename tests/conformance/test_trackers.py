"""Every tracker of ``--track``, including any added later, on scenes whose objects we define."""

import numpy as np
import pytest

from detector.core.config.schema import choices_of
from detector.tracks.config import TrackingConfig
from detector.tracks.tracker import NONE
from detector.tracks.trackers import find, names
from tests.conftest import CHECKOUT
from tests.tracks.scenes import hidden, ids_of, straight, turning

CONF = 0.25
ALL = pytest.mark.parametrize("name", names())


def test_option_and_documentation_list_every_tracker() -> None:
    assert list(names()) == list(choices_of(TrackingConfig.__dataclass_fields__["track"]))
    pages = [(CHECKOUT / page).read_text() for page in ("cfg/default.yaml", "docs/usage.md")]
    assert all(name in page for name in names() for page in pages)
    assert all(find(name).hits_needed >= 1 and find(name).lowest_conf > 0 for name in names())


CROWD = [
    straight((100, 200), (60, 0)),
    straight((700, 230), (-80, 0)),  # passes the first object, 30 pixels lower
    straight((300, 420), (40, 10)),
    hidden(straight((150, 600), (70, 0)), 1.5, 2.0),
]


@ALL
@pytest.mark.parametrize("fps", [6, 10, 15, 24, 30, 60])
def test_ids_stay_the_same_at_any_frame_rate(name: str, fps: int) -> None:
    ids = ids_of(find(name)(CONF), CROWD, np.arange(0, 4, 1 / fps).tolist())
    assert [len(track) for track in ids] == [1, 1, 1, 1]
    assert len({track[0] for track in ids}) == 4


@ALL
def test_ids_stay_the_same_at_an_uneven_frame_rate(name: str) -> None:
    steps = np.random.default_rng(5).uniform(1 / 60, 1 / 8, 60)
    ids = ids_of(find(name)(CONF), CROWD, np.cumsum(steps).tolist())
    assert [len(track) for track in ids] == [1, 1, 1, 1]


@ALL
def test_jitter_makes_no_new_tracks(name: str) -> None:
    random = np.random.default_rng(11)
    ids = ids_of(
        find(name)(CONF),
        CROWD[:3],
        np.arange(0, 4, 1 / 30).tolist(),
        jitter=lambda: random.normal(0, 2, 4),
    )
    assert [len(track) for track in ids] == [1, 1, 1]


@ALL
def test_u_turn_keeps_the_id(name: str) -> None:
    paths = [turning((200, 200), 90, 2.0), straight((200, 420), (50, 0))]
    ids = ids_of(find(name)(CONF), paths, np.arange(0, 4, 1 / 30).tolist())
    assert [len(track) for track in ids] == [1, 1]


@ALL
@pytest.mark.parametrize(("gap_s", "count"), [(0.5, 1), (0.9, 1), (1.2, 2), (30.0, 2)])
def test_ids_survive_a_gap_of_up_to_a_second(name: str, gap_s: float, count: int) -> None:
    """No frames arrive during the gap. After a gap of more than a second, old ids never return."""
    before = np.arange(0, 2, 1 / 30).tolist()
    times = before + [before[-1] + gap_s + i / 30 for i in range(30)]
    ids = ids_of(find(name)(CONF), [straight((100, 200), (40, 0))], times)
    assert [len(track) for track in ids] == [count]


@ALL
def test_long_hidden_object_gets_a_new_id(name: str) -> None:
    """An object that was hidden for over a second gets a new id, which no other object has."""
    paths = [hidden(straight((100, 200), (40, 0)), 1, 2.5), straight((100, 420), (40, 0))]
    ids = ids_of(find(name)(CONF), paths, np.arange(0, 4, 1 / 30).tolist())
    assert [len(track) for track in ids] == [2, 1]
    assert len({*ids[0], *ids[1]}) == 3


@ALL
def test_low_score_begins_no_track(name: str) -> None:
    tracker = find(name)(CONF)
    for i in range(10):
        ids = tracker.update(
            np.array([[0, 0, 40, 100]], np.float32), np.array([0.2]), np.zeros(1, np.int64), i / 30
        )
        assert ids.tolist() == [NONE]
    assert (len(tracker), tracker.begun) == (0, 0)


@ALL
def test_classes_are_tracked_separately(name: str) -> None:
    """A person and a bicycle have the same box."""
    tracker = find(name)(CONF)
    for i in range(30):
        box = np.array([[3 * i, 0, 40 + 3 * i, 100]] * 2, np.float32)
        order = np.array([0, 1]) if i % 2 else np.array([1, 0])
        ids = tracker.update(box, np.full(2, 0.9), order, i / 30)
    assert tracker.begun == 2
    assert sorted(ids.tolist()) == [1, 2]


@ALL
@pytest.mark.parametrize(("start_s", "again_s"), [(0, 1), (50, 0)])
def test_ids_are_new_after_the_end_of_a_scene_or_if_the_clock_is_set_back(
    name: str, start_s: int, again_s: int
) -> None:
    tracker, paths = find(name)(CONF), [straight((100, 200), (8, 0))]
    first = ids_of(tracker, paths, np.arange(start_s, start_s + 1, 1 / 30).tolist())
    if again_s > start_s:
        tracker.end()
    second = ids_of(tracker, paths, np.arange(again_s, again_s + 1, 1 / 30).tolist())
    assert (first, second) == ([[1]], [[2]])


@ALL
def test_repeated_or_slightly_earlier_time_keeps_the_id(name: str) -> None:
    ids = ids_of(find(name)(CONF), [straight((100, 200), (5, 0))], [0, 0.1, 0.1, 0.05, 0.2, 0.3])
    assert ids == [[1]]


@pytest.mark.slow
@ALL
def test_memory_stays_flat(name: str) -> None:
    tracker, random = find(name)(CONF), np.random.default_rng(1)
    most, n = 0, 10
    corners = np.zeros((n, 2))
    for i in range(600):
        corners = random.uniform(0, 1000, (n, 2)) if i % 5 == 0 else corners + 1
        boxes = np.concatenate([corners, corners + 50], axis=1)
        tracker.update(boxes, np.full(n, 0.9), np.zeros(n, np.int64), i / 30)
        most = max(most, len(tracker))
    assert tracker.begun > 500
    assert most <= 10 * 12  # the last two seconds had 12 sets of 10 boxes
