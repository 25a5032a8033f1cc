"""A page to watch a run in a browser, and the same figures for programs. Extra ``serve``.

server.py       the thread that serves, from its start to its end
binding.py      --serve, token and certificate: checked, and the port taken, before a model loads
connections.py  deadlines and bounds of connections, below HTTP
guard.py        what every request passes: Host, Origin, login, sizes, headers of the answer
access.py       the token, sessions, and how often somebody may try
app.py          the addresses, and what each answers
streams.py      answers that do not end: pictures and events
sampler.py      the figures once a second, with their past
recordings.py   which files may be downloaded
metrics.py      the figures for Prometheus
documents.py    the JSON documents, and healthy or not
openapi.py      the description of all that, for programs
site/           the page itself
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detector.core.config.cameras import PageConfig
    from detector.live.hub import Controls, Hub
    from detector.live.page.server import Server


def serve(
    hub: Hub,
    config: PageConfig,
    controls: Controls | None = None,
    recordings: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Server:
    """Serve the page of ``hub`` in a thread of its own, until ``Server.close``.

    ``controls``: starts and stops cameras, if any. ``recordings``: folder for downloads, if any.
    ``say``: takes a line if the page has a bug. Raises UsageError for a wrong address, token,
    certificate or absent libraries, OutputError for a taken port.
    """
    from detector.live.page.binding import require_libraries

    require_libraries(config.serve or "")  # before a module imports one of them at its head
    from detector.live.page.server import Server

    return Server(hub, config, controls, recordings, say)
