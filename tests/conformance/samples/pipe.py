"""A video that is sent to standard input each time the source is opened."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detector.core.sources import _standard_input
from detector.core.sources._standard_input import StandardInput
from tests.conformance.samples import FRAMES, Sample
from tests.sources.clips import write_video
from tests.sources.test_pipe import fed


@contextmanager
def sample(folder: Path) -> Iterator[Sample]:
    data = write_video(folder / "clip.mkv", FRAMES).read_bytes()

    @contextmanager
    def sent() -> Iterator[None]:
        with fed(data) as descriptor, pytest.MonkeyPatch.context() as patch:
            patch.setattr(_standard_input, "_current", StandardInput(descriptor))
            yield

    yield Sample("-", (), sent)
