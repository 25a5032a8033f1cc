"""Events of cameras and objects, and their receivers.

``EventHub`` hands each event to all receivers of a run. No receiver slows the loop: ``tell`` never
waits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from detector.live.base import Event, EventTarget

CLOSE_S = 2.0  # longest wait for a receiver at the end of a run


class EventHub:
    """Hands each event to every target, in the order of ``targets``."""

    def __init__(self, targets: Sequence[EventTarget]) -> None:
        self._targets = list(targets)

    def tell(self, event: Event) -> None:
        for target in self._targets:
            target.tell(event)

    def lost(self) -> dict[str, int]:
        """Return target -> number of lost events, without targets that lost none."""
        losses = {target.name: target.lost() for target in self._targets}
        return {name: count for name, count in losses.items() if count}

    def close(self) -> None:
        """Close all targets at the same time, each with a moment to deliver. Never raises."""

        def end(target: EventTarget) -> None:
            with suppress(Exception):
                target.close()

        threads = [threading.Thread(target=end, args=(one,), daemon=True) for one in self._targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(CLOSE_S)
