"""Events: who comes and goes, and who is told.

``EventHub`` tells all receivers of a run. No receiver can slow the loop: ``tell`` never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from detector.live.base import Event, EventTarget

CLOSE_S = 2.0  # the end of a run waits for no receiver longer


class EventHub:
    """Hands each event to every target, in order of ``targets``."""

    def __init__(self, targets: Sequence[EventTarget]) -> None:
        self._targets = list(targets)

    def tell(self, event: Event) -> None:
        for target in self._targets:
            target.tell(event)

    def lost(self) -> dict[str, int]:
        """Target -> events that it did not get; targets without losses are left out."""
        losses = {target.name: target.lost() for target in self._targets}
        return {name: count for name, count in losses.items() if count}

    def close(self) -> None:
        """Gives every target a moment to deliver what waits, all at the same time. Never raises."""

        def end(target: EventTarget) -> None:
            with suppress(Exception):
                target.close()

        threads = [threading.Thread(target=end, args=(one,), daemon=True) for one in self._targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(CLOSE_S)
