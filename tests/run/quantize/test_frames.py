"""Calibration frames are spread over the source. Every second one is held out."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from detector.core.models.base import InputRules
from detector.core.run.quantize import frames
from tests.sources.clips import write_video

RULES = InputRules(4, 4, "stretch", 1)


def sample_numbers(total: int, count: int) -> list[int]:
    images = (np.full((4, 4, 3), at, np.uint8) for at in range(total))
    return [int(slot[0, 0, 0]) for slot in frames.sample_evenly(images, count, RULES)]


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [
        (0, 4, []),
        (1, 4, [0]),
        (4, 4, [0, 1, 2, 3]),
        (7, 4, [0, 2, 4, 6]),
        (8, 4, [0, 2, 4, 6]),
        (9, 4, [0, 2, 6, 8]),
        (250, 1, [0]),
        (100, 2, [0, 64]),  # every 64th frame
    ],
)
def test_samples_are_spread_over_a_source_of_unknown_length(
    total: int, count: int, expected: list[int]
) -> None:
    assert sample_numbers(total, count) == expected


@pytest.mark.parametrize("total", [10, 63, 64, 65, 250])
@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_gaps_between_samples_are_at_most_three_times_the_mean(total: int, count: int) -> None:
    samples = sample_numbers(total, count)
    assert len(samples) == min(count, total)
    assert samples == sorted(set(samples))
    gaps = np.diff([*samples, total])
    assert gaps.max() <= 3 * max(1, total / count)


def test_every_second_frame_is_held_out() -> None:
    slots = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1)
    samples = frames.hold_out(slots)
    assert samples.apart
    assert (samples.seen.ravel().tolist(), samples.held_out.ravel().tolist()) == ([0, 2, 4], [1, 3])


def test_single_frame_is_used_and_held_out() -> None:
    samples = frames.hold_out(np.zeros((1, 2, 2, 3), np.uint8))
    assert not samples.apart
    assert np.array_equal(samples.seen, samples.held_out)


def test_copy_of_a_video_has_the_same_digests(tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.mp4", 10)
    copy = Path(shutil.copy(video, tmp_path / "b.mp4"))
    first, second = (frames.read_frames(str(path), RULES, 4) for path in (video, copy))
    assert first.digest == second.digest
    assert frames.source_sha256(str(video)) == frames.source_sha256(str(copy))
    assert first.seen.shape == (2, 4, 4, 3)
    assert frames.read_frames(str(video), RULES, 6).digest != first.digest


def test_digest_of_a_folder_changes_with_its_pictures(tmp_path: Path) -> None:
    import cv2

    for at in range(3):
        cv2.imwrite(str(tmp_path / f"{at}.png"), np.full((8, 8, 3), 50 * at, np.uint8))
    samples = frames.read_frames(str(tmp_path), RULES, 8)
    assert samples.seen[:, 0, 0, 0].tolist() == [0, 100]
    before = frames.source_sha256(str(tmp_path))
    assert frames.source_sha256(str(tmp_path / "*.png")) == before
    cv2.imwrite(str(tmp_path / "2.png"), np.zeros((8, 8, 3), np.uint8))
    assert frames.source_sha256(str(tmp_path)) != before
