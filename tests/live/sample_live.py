"""A sample camera for the conformance tests. It sends pictures while it has a viewer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.samples import Sample
from tests.live.servers import http


@contextmanager
def sample(folder: Path) -> Iterator[Sample]:
    with http() as server:
        yield Sample(server.url("/mjpeg"))
