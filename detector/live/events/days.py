"""One events file per camera and day: ``CAMERA/events-YYYY-MM-DD.jsonl``."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from detector.live.base import Event, day_text
from detector.live.camera_folder import append_whole, open_file
from detector.live.events.courier import Courier, RefusedError, TryAgainError
from detector.live.events.stream import NO_ROOM
from detector.live.events.wording import as_json

MADE = 1024  # files: enough for 256 cameras and several days


class EventDays(Courier):
    """Writes events to files, each opened for one line only, because events are rare."""

    name = "the files of events"

    def __init__(self, folder: Path, *, complain: Callable[[str], None] = lambda _: None) -> None:
        self._folder = folder
        # The latest files; ``take_back`` is for runs without a picture, which end within a day.
        self._made: deque[Path] = deque(maxlen=MADE)
        super().__init__(complain=complain)

    def deliver(self, event: Event) -> None:
        path = self._folder / event.camera / f"events-{day_text(event.time_s)}.jsonl"
        line = as_json(event).encode() + b"\n"
        try:
            descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
            try:
                if not os.fstat(descriptor).st_size:
                    self._made.append(path)
                append_whole(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise TryAgainError("no room") from error
            raise RefusedError(f"{path}: {error.strerror}") from error

    def take_back(self) -> None:
        """Remove the files that this run began, after ``close``: no picture came."""
        for path in self._made:
            path.unlink(missing_ok=True)
