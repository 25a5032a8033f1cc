"""A video on a web server, opened as in a batch job."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detector.core.sources._addresses import StoredVideo
from tests.conformance.samples import Sample, web


@contextmanager
def sample(folder: Path) -> Iterator[Sample]:
    with web.sample(folder) as same:
        yield Sample(StoredVideo(same.spec), tuple(map(StoredVideo, same.damaged)))
