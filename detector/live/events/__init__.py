"""Events of cameras and objects, and their receivers.

No receiver slows the loop: ``send`` only queues the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from detector.live.base import Event, EventTarget, run_concurrently

CLOSE_S = 2.0  # longest wait for a receiver at the end of a run


class EventHub:
    """Sends each event to all receivers of a run."""

    def __init__(self, targets: Sequence[EventTarget]) -> None:
        self._targets = list(targets)

    def send(self, event: Event) -> None:
        for target in self._targets:
            target.send(event)

    def lost(self) -> dict[str, int]:
        """Return the number of lost events of each target that lost some."""
        losses = {target.name: target.lost() for target in self._targets}
        return {name: count for name, count in losses.items() if count}

    def close(self) -> None:
        """Close all targets concurrently, within ``CLOSE_S``. Never raises."""

        def close(target: EventTarget) -> None:
            with suppress(Exception):
                target.close()

        run_concurrently((partial(close, target) for target in self._targets), CLOSE_S)
