"""One events file per camera and day: ``CAMERA/events-YYYY-MM-DD.jsonl``."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from detector.live.base import Event, format_day
from detector.live.camera_folder import append_whole, open_file
from detector.live.events.queued_target import QueuedTarget, RefusedError, TryAgainError
from detector.live.events.stream import FULL, NO_ROOM
from detector.live.events.wording import as_json

MOST_CREATED = 1024  # created files to remember: enough for 256 cameras and several days


class EventDays(QueuedTarget):
    """Appends events to files. Opens the file for each line, because events are rare."""

    name = "event files"

    def __init__(self, folder: Path, *, notice: Callable[[str], None] = lambda _: None) -> None:
        self._folder = folder
        # Only short runs call ``remove_created``, so the oldest files may be forgotten.
        self._created: deque[Path] = deque(maxlen=MOST_CREATED)
        super().__init__(notice=notice)

    def deliver(self, event: Event) -> None:
        path = self._folder / event.camera / f"events-{format_day(event.time_s)}.jsonl"
        line = as_json(event).encode() + b"\n"
        try:
            descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
            try:
                if not os.fstat(descriptor).st_size:
                    self._created.append(path)
                append_whole(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise TryAgainError(FULL) from error
            raise RefusedError(f"{path}: {error.strerror}") from error

    def remove_created(self) -> None:
        """Remove the files that this run created. Call after ``close``."""
        for path in self._created:
            path.unlink(missing_ok=True)
