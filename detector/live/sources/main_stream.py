"""A camera's second stream, which is recorded but not decoded."""

from __future__ import annotations

from detector.live.sources.network import NetworkFeed
from detector.live.sources.packets import Received
from detector.live.sources.threaded import TICK_S


class MainStreamFeed(NetworkFeed):
    """Passes packets to its listeners; ``take`` never has a picture."""

    def _decode(self) -> None:
        while not self.stopping.is_set():
            self._watch()
            item = self.packets.get(TICK_S)
            if isinstance(item, Received):
                codec = item.codec
                self.status.show(
                    self.clock(), item.stamp.epoch, codec.width, codec.height, codec.name
                )
