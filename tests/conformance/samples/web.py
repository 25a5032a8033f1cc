"""A video on a web server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.samples import FRAMES, Sample, damage
from tests.sources.clips import write_video
from tests.sources.web_server import web_server


@contextmanager
def sample(folder: Path) -> Iterator[Sample]:
    clip = write_video(folder / "clip.mp4", FRAMES)
    with web_server() as web:
        damaged = [
            web.put(f"/{Path(path).name}", Path(path).read_bytes(), kind="video/mp4")
            for path in damage(clip)
        ]
        whole = web.put("/clip.mp4", clip.read_bytes(), kind="video/mp4")
        yield Sample(whole, tuple(damaged))
