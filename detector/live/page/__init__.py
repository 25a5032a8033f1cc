"""A page to watch a run in a browser, and the same figures for programs. Extra ``serve``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detector.core.config.cameras import PageConfig
    from detector.live.hub import Hub
    from detector.live.page.server import Server


def serve(hub: Hub, config: PageConfig, say: Callable[[str], None] = lambda line: None) -> Server:
    """Serve the page of ``hub`` in a thread of its own, until ``Server.close``.

    ``say``: takes a line if the page has a bug. Raises UsageError for a wrong address, token,
    certificate or absent libraries, OutputError for a taken port.
    """
    from detector.live.page.binding import require_libraries

    require_libraries(config.serve or "")  # before a module imports one of them at its head
    from detector.live.page.server import Server

    return Server(hub, config, say)
