"""The input size of the network that fits most cameras."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError
from detector.core.run.canvas import Size, declared_canvases, find_canvas
from detector.live.sources.base import FILE, Camera


def picture_of_cameras(cameras: Sequence[Camera], config: Config) -> tuple[Size | None, str | None]:
    """Return the size (width, height; None: the model's) that most cameras want, and a line for the
    user if others differ."""
    declared = declared_canvases(config)
    if config.runtime.size is not None or not declared:
        return None, None
    pictures = [reported_size(camera) for camera in cameras]
    wanted = [find_canvas(config, picture) for picture in pictures]
    votes = Counter(wanted)
    most = max(votes.values(), default=0)
    chosen = None if votes[None] == most else next(one for one in wanted if votes[one] == most)
    picture = None if chosen is None else pictures[wanted.index(chosen)]
    if len(votes) < 2:
        return picture, None
    height, width = chosen or declared[0]
    line = (
        f"the network input for all cameras is {width}x{height}, which fits {votes[chosen]} of "
        f"{len(cameras)}; frames of another shape get grey borders"
    )
    if unknown := pictures.count(None):
        line += f"; {unknown} reported no size before the start, so the model's own was assumed"
    return picture, line


def reported_size(camera: Camera) -> Size | None:
    if camera.kind != FILE:
        return camera.size
    from detector.core import sources

    # The feed reports what is wrong with a file.
    with suppress(DetectVideoError), sources.open(camera.address.whole, frames=1) as source:
        return source.info.width, source.info.height
    return None
