"""Catch what FFmpeg logs while it reads: the only sign of a picture that it patched up.

A damaged decoder input often makes FFmpeg guess the rest of the picture and return it as if nothing
had happened. It only logs an error, which ``ffmpeg`` prints on stderr. PyAV can catch the log of
its own FFmpeg. cv2 contains another copy of FFmpeg without such a function, so we make that copy
log into PyAV's: its log callback becomes ``av_vlog`` of PyAV's library, which has the same
signature. Messages below errors are dropped there in C, without the interpreter's lock, so
listening costs a whole file nothing.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import logging
import os
import threading
from typing import Any

import av
import av._core

from detector.core.sources._cv2 import cv2, is_quiet

ERROR: int = av.logging.ERROR


class Complaints:
    """The errors that FFmpeg logs from now on until ``close``, of decoders ``names`` or all."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)
        self._heard: list[tuple[str, str]] = []
        self.is_closed = False
        _log.join(self)

    def heard(self) -> bool:
        """Return whether anything was logged since ``take``. Cheap: called for every frame."""
        if _log.records:
            _log.hand_out()
        return bool(self._heard)

    def take(self) -> list[tuple[str, str]]:
        """Return (name of decoder or demuxer, message) of everything logged since the last call."""
        if not self.heard():
            return []
        heard, self._heard = self._heard, []
        return heard

    def listen_to_cv2(self) -> bool:
        """Redirect cv2's log. Call it after each opening of a cv2.VideoCapture. Returns False if
        that is impossible: its FFmpeg is hidden or another version, or the user wants its log."""
        return _log.redirect_cv2()

    def note(self, record: tuple[int, str, str]) -> None:
        """Keep a record of the log if it is ours."""
        _, name, message = record
        if not self._names or name in self._names:
            self._heard.append((name, message.strip()))

    def close(self) -> None:
        """Stop listening. May be called twice, and by the garbage collector."""
        self.is_closed = True
        _log.sweep()

    def __enter__(self) -> Complaints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Log:
    """PyAV's log: caught while there are listeners, then restored. The garbage collector may close
    a listener at any moment, so ``sweep`` never waits for the lock."""

    def __init__(self) -> None:
        self.records: list[tuple[int, str, str]] = []  # (level, name, message), not yet delivered
        self._listeners: list[Complaints] = []
        self._lock = threading.Lock()
        self._level: int | None = None  # the user's own; None: nothing is logged
        self._skips_repeated = True
        self._capture: Any = None
        self._redirected: Any = None  # cv2's FFmpeg while it logs into PyAV's

    def join(self, listener: Complaints) -> None:
        with self._lock:
            if not self._listeners:
                self._open()
            self._listen()  # other code may have set PyAV's level since the first
            self._hand_out()  # earlier messages are for earlier listeners
            self._listeners.append(listener)
        self.sweep()

    def sweep(self) -> None:
        """Remove closed listeners, and restore the log after the last one."""
        while any(listener.is_closed for listener in list(self._listeners)):
            if not self._lock.acquire(blocking=False):
                return
            try:
                # Another thread or the garbage collector may have swept and restored the log.
                before = self._listeners
                self._listeners = [one for one in before if not one.is_closed]
                if before and not self._listeners:
                    self._close()
            finally:
                self._lock.release()

    def _open(self) -> None:
        self._level = av.logging.get_level()
        self._skips_repeated = av.logging.get_skip_repeated()
        self._capture = av.logging.Capture(local=False)
        self.records = self._capture.__enter__()

    def _listen(self) -> None:
        level = av.logging.get_level()
        av.logging.set_level(ERROR if level is None else max(level, ERROR))
        av.logging.set_skip_repeated(False)  # two damaged packets may cause the same message

    def _close(self) -> None:
        if self._redirected is not None:
            self._redirected.av_log_set_callback(_address(self._redirected.av_log_default_callback))
            self._redirected = None
        self._capture.__exit__(None, None, None)
        self.records = []
        av.logging.set_skip_repeated(self._skips_repeated)
        av.logging.set_level(self._level)

    def hand_out(self) -> None:
        with self._lock:
            self._hand_out()
        self.sweep()

    def _hand_out(self) -> None:
        records = self.records[:]
        del self.records[: len(records)]
        for record in records:
            if record[0] <= ERROR:
                for listener in self._listeners:
                    listener.note(record)
            if self._level is not None and record[0] <= self._level:
                _pass_on(*record)

    def redirect_cv2(self) -> bool:
        libraries = _find_libraries() if is_quiet() else None
        if libraries is None:
            return False
        of_cv2, of_av = libraries
        if _address(of_cv2.av_vlog).value == _address(of_av.av_vlog).value:
            av.logging.set_level(av.logging.get_level())  # one FFmpeg for both: PyAV's callback
        else:
            of_cv2.av_log_set_callback(_address(of_av.av_vlog))
            self._redirected = of_cv2
        return True


_log = _Log()


def _pass_on(level: int, name: str, message: str) -> None:
    """Print a record as PyAV would if we did not catch it, for a user who requested its log."""
    logger = logging.getLogger(f"libav.{name or 'generic'}")
    logger.log(av.logging.adapt_level(level), message.strip())


@functools.cache
def _find_libraries() -> tuple[Any, Any] | None:
    """Return the FFmpeg inside cv2 and PyAV's own; None if one cannot log into the other."""
    found = glob.glob(os.path.join(os.path.dirname(cv2.__file__), "cv2*.so"))
    try:
        of_cv2, of_av = ctypes.CDLL(found[0]), ctypes.CDLL(av._core.__file__)
        # A message refers to a C struct that only changes with the major version.
        same_version = of_cv2.avutil_version() >> 16 == of_av.avutil_version() >> 16
    except (IndexError, OSError, AttributeError):
        return None
    return (of_cv2, of_av) if same_version else None


def _address(function: Any) -> ctypes.c_void_p:
    return ctypes.cast(function, ctypes.c_void_p)
