"""Makes the feed for a camera's kind, and imports only the library that the feed needs."""

from __future__ import annotations

from collections.abc import Callable

from detector.core.timeline.timeline import Timeline
from detector.live.sources.base import NETWORK, WEBCAM, Camera, Feed, Terms
from detector.live.sources.cameras import check_address


def make_feed(
    camera: Camera,
    terms: Terms | None = None,
    timeline: Timeline | None = None,
    wake: Callable[[], None] = lambda: None,
) -> Feed:
    """Make a feed without starting it. ``wake`` must not block. Raises SourceError."""
    if camera.kind == NETWORK:
        from detector.live.sources.network import NetworkFeed

        check_address(camera.kind, camera.address)
        return NetworkFeed(camera, terms, timeline, wake)
    if camera.kind == WEBCAM:
        from detector.live.sources.webcam import WebcamFeed

        return WebcamFeed(camera, terms, timeline, wake)
    from detector.live.sources.looped import LoopedFeed, check_file

    check_file(camera.address.whole)
    return LoopedFeed(camera, terms, timeline, wake)
