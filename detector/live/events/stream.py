"""Writes events as lines of JSON: --events FILE, or --events - for standard output."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from detector.core.errors import OutputError
from detector.live.base import Event
from detector.live.events.queued_target import QueuedTarget, RefusedError, TryAgainError
from detector.live.events.wording import as_json

FULL = "the disk or pipe is full; events are lost until there is room"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EAGAIN)


class EventStream(QueuedTarget):
    """Appends a line for each event, with one system call if possible."""

    def __init__(
        self, name: str, descriptor: int, *, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self.name = name
        self._descriptor = descriptor
        self._rest = b""  # the part of a line that is not written yet
        super().__init__(notice=notice)

    @classmethod
    def open(cls, spec: str, notice: Callable[[str], None] = lambda _: None) -> EventStream:
        """Open ``-`` (standard output), or a file to append to. Raises OutputError."""
        if spec == "-":
            return cls("standard output", os.dup(1), notice=notice)
        path = Path(spec)
        # With O_NONBLOCK, opening a pipe that has no reader fails instead of waiting.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
            os.set_blocking(descriptor, True)
        except OSError as error:
            why = "nothing reads this pipe" if error.errno == errno.ENXIO else error.strerror
            raise OutputError(
                f"--events {spec}: cannot be written: {why}; give another file, or - for standard "
                "output"
            ) from error
        return cls(str(path), descriptor, notice=notice)

    def deliver(self, event: Event) -> None:
        if self._rest and (rest := self._write(self._rest)):
            self._rest = rest
            raise TryAgainError(FULL)
        self._rest = b""
        line = as_json(event).encode() + b"\n"
        rest = self._write(line)
        if rest and len(rest) < len(line):
            self._rest = rest  # completed before the next event
        elif rest:
            raise TryAgainError(FULL)

    def _write(self, data: bytes) -> bytes:
        """Write until the disk or pipe is full; return the unwritten rest."""
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                if error.errno in NO_ROOM:
                    break
                raise RefusedError(str(error.strerror)) from error
        return data

    def close(self) -> None:
        super().close()
        if not self._thread.is_alive():
            os.close(self._descriptor)
