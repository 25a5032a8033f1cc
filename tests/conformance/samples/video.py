"""A video file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.samples import FRAMES, Sample, damage
from tests.sources.clips import write_video


@contextmanager
def sample(folder: Path) -> Iterator[Sample]:
    clip = write_video(folder / "clip.mp4", FRAMES)
    other = write_video(folder / "clip.mkv", FRAMES)
    yield Sample(str(clip), (*damage(clip), *damage(other)))
