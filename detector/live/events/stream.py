"""Events as lines of JSON: ``--events FILE``, and ``--events -`` for standard output."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from detector.core.errors import OutputError
from detector.live.base import Event
from detector.live.events.courier import Courier, RefusedError, TryAgainError
from detector.live.events.wording import as_json

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EAGAIN)


class EventStream(Courier):
    """Appends a line for each event, written in one call."""

    def __init__(
        self, name: str, descriptor: int, *, complain: Callable[[str], None] = lambda _: None
    ) -> None:
        self.name = name
        self._descriptor = descriptor
        self._rest = b""  # unwritten rest of a line
        super().__init__(complain=complain)

    @classmethod
    def open(cls, spec: str, complain: Callable[[str], None] = lambda _: None) -> EventStream:
        """Open ``-`` (standard output), or a file to append to. Raises OutputError."""
        if spec == "-":
            return cls("standard output", os.dup(1), complain=complain)
        path = Path(spec)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK  # else a pipe may block
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
            os.set_blocking(descriptor, True)
        except OSError as error:
            why = "nothing reads this pipe" if error.errno == errno.ENXIO else error.strerror
            raise OutputError(
                f"--events {spec}: cannot be written: {why}; give another file, or - for standard "
                "output"
            ) from error
        return cls(str(path), descriptor, complain=complain)

    def deliver(self, event: Event) -> None:
        if self._rest and (rest := self._write(self._rest)):
            self._rest = rest
            raise TryAgainError("no room")
        self._rest = b""
        line = as_json(event).encode() + b"\n"
        rest = self._write(line)
        if rest and len(rest) < len(line):
            self._rest = rest  # the next event completes this line first
        elif rest:
            raise TryAgainError("no room")

    def _write(self, data: bytes) -> bytes:
        """Write as much as there is room for; return the rest."""
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
