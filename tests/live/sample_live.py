"""A camera that sends pictures as long as it has a viewer. None of its damage ends a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.samples import Sample
from tests.live.servers import http


@contextmanager
def sample(folder: Path) -> Iterator[Sample]:
    with http() as server:
        yield Sample(server.url("/mjpeg"))
