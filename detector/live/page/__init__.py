"""The web page that shows a run, and serves its figures (extra ``serve``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detector.live.config import PageConfig
    from detector.live.hub import Hub
    from detector.live.page.server import Server


def serve(hub: Hub, config: PageConfig, say: Callable[[str], None] = lambda line: None) -> Server:
    """Serve the page of ``hub`` in a thread until ``Server.close``. ``say`` prints errors. Raises
    UsageError (address, token, certificate, libraries) and OutputError (occupied port)."""
    from detector.live.page.binding import require_libraries

    require_libraries(config.serve or "")  # before the next import, which needs them
    from detector.live.page.server import Server

    return Server(hub, config, say)
