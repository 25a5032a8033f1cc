"""Snapshots of events. A thread takes them from a short queue, then encodes and writes them."""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from detector.core.errors.writing import write_whole
from detector.core.types import Image
from detector.live.base import Event, to_utc
from detector.live.camera_folder import find_free_name, open_folder

ROOM = 4  # queued pictures, which take 25 MB at 1080p
QUALITY = 85  # JPEG quality, 0 to 100


class Snapshots:
    """Writes FOLDER/CAMERA/snapshots/TIME-EVENT-CLASS.jpg."""

    name = "snapshots"

    def __init__(self, folder: Path, notice: Callable[[str], None] = lambda _: None) -> None:
        self._folder = folder
        self._notice = notice
        self.show: Callable[[str, bytes], object] = lambda camera, jpeg: None  # gets each snapshot
        self.failing = False
        self._lost = 0
        # Key (camera, time) and file of the last snapshot.
        self._last: tuple[tuple[str, str], Path] | None = None
        self._pending: queue.Queue[tuple[Path, Image] | None] = queue.Queue(ROOM)
        self._thread = threading.Thread(
            target=self._run, name="detect-video snapshots", daemon=True
        )
        self._thread.start()

    def add_to(self, event: Event, image: Image) -> Event:
        """Queue the picture; return the event with the picture's path, or unchanged if that fails.
        Simultaneous events share a picture, named after the first event."""
        moment = to_utc(event.time_s)
        time = moment.strftime("%Y%m%dT%H%M%S") + f".{moment.microsecond // 1000:03d}Z"
        key = event.camera, time
        if self._last is not None and self._last[0] == key:
            return replace(event, snapshot=str(self._last[1]))
        name = re.sub(r"[^A-Za-z0-9_-]", "_", event.class_name or "camera")[:40]
        folder = Path(event.camera, "snapshots")
        try:
            if self._pending.full():
                raise queue.Full
            # The name may exist if the clock was set back.
            relative = folder / find_free_name(
                self._folder / folder, f"{time}-{event.event}-{name}", ".jpg"
            )
            self._pending.put_nowait((self._folder / relative, image.copy()))
        except (queue.Full, OSError):
            self._lost += 1
            return event
        self._last = key, relative
        return replace(event, snapshot=str(relative))

    def lost(self) -> int:
        return self._lost

    def close(self) -> None:
        """Write queued pictures for up to 2 s."""
        try:
            self._pending.put(None, timeout=1)
        except queue.Full:
            return
        self._thread.join(1)

    def _run(self) -> None:
        import cv2

        while (item := self._pending.get()) is not None:
            path, image = item
            try:
                done, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
                if not done:
                    raise OSError("the picture cannot be encoded")
                os.close(open_folder(path.parent, 2))  # CAMERA/snapshots
                write_whole(path, data.tobytes(), "free some space there", ours=True)
                self.failing = False
                self.show(path.parent.parent.name, data.tobytes())
            except Exception as error:  # a full disk stops pictures, not detection
                self._lost += 1
                if not self.failing:
                    self.failing = True
                    self._notice(f"snapshots: {path.name} was not written: {error}")
