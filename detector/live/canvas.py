"""Chooses the network input size that fits most cameras."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError
from detector.core.run.canvas import Size, declared_canvases, find_canvas, follows_source
from detector.live.sources.base import FILE, Camera


def choose_size(cameras: Sequence[Camera], config: Config) -> tuple[Size | None, str | None]:
    """Return the picture size (width, height) that fits most cameras, or None for the model's own
    size. Also return a line for the user, or None if the size fits all cameras."""
    if not follows_source(config):
        return None, None
    pictures = [read_size(camera) for camera in cameras]
    canvases = [find_canvas(config, picture) for picture in pictures]
    votes = Counter(canvases)
    most = max(votes.values(), default=0)
    chosen = None if votes[None] == most else next(one for one in canvases if votes[one] == most)
    picture = None if chosen is None else pictures[canvases.index(chosen)]
    if len(votes) < 2:
        return picture, None
    height, width = chosen or declared_canvases(config)[0]
    line = (
        f"the network input for all cameras is {width}x{height}, which fits {votes[chosen]} of "
        f"{len(cameras)} cameras; frames of another shape get grey borders"
    )
    if unknown := pictures.count(None):
        line += f"; {unknown} of the cameras reported no size, so the model's size was assumed"
    return picture, line


def read_size(camera: Camera) -> Size | None:
    if camera.kind != FILE:
        return camera.size
    from detector.core import sources

    # If the file cannot be read, the feed reports it.
    with suppress(DetectVideoError), sources.open(camera.address.whole, frames=1) as source:
        return source.info.width, source.info.height
    return None
