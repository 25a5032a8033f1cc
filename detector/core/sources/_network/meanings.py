"""Explain FFmpeg's errors in one line that says what to do."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import av

from detector.core.errors.secrets import redact

_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


@dataclass(frozen=True, slots=True)
class ErrorMeaning:
    text: str
    login: bool = False  # whether the user or password is wrong


def explain(error: BaseException, timed_out: bool = False) -> ErrorMeaning:
    """Explain an error. ``timed_out``: we aborted the attempt because the camera was too slow."""
    login = isinstance(error, av.error.HTTPUnauthorizedError | av.error.HTTPForbiddenError)
    return ErrorMeaning(redact(_explain(error, timed_out)), login and not timed_out)


def _explain(error: BaseException, timed_out: bool) -> str:
    number = getattr(error, "errno", None)
    if timed_out or isinstance(error, av.error.ExitError | av.error.TimeoutError):
        return "the camera did not answer in time; check the port, and that the camera is on"
    if isinstance(error, av.error.HTTPUnauthorizedError | av.error.HTTPForbiddenError):
        return "the camera rejects the user or password; check both in the address"
    if isinstance(error, av.error.HTTPNotFoundError):
        return "the camera has no such stream; check the path of the address"
    if isinstance(error, av.error.ConnectionRefusedError):
        return "nothing listens at this port; check the port, and that the camera is on"
    if isinstance(error, av.error.DecoderNotFoundError):
        return "its codec is not supported; set the camera to H.264, H.265 or MJPEG"
    if isinstance(error, av.error.ProtocolNotFoundError | av.error.DemuxerNotFoundError):
        return "the stream refers to a kind of address or file that may not be opened here"
    if number in _UNREACHABLE:
        return "there is no route to this host; check the network and the address"
    if isinstance(error, av.error.HTTPServerError):
        return "the camera failed (HTTP 5xx); restart it"
    if isinstance(error, av.error.ConnectionResetError | av.error.BrokenPipeError):
        return "the camera closed the connection; retrying"
    if isinstance(error, av.error.InvalidDataError):
        return "the answer is not a readable stream; check port and path"
    if number == errno.EIO:
        return "it cannot be opened; check host and path of the address"
    reason = getattr(error, "strerror", None) or type(error).__name__
    return f"it cannot be read ({reason}); check the address"


ENDED = ErrorMeaning("the stream has ended")
UNDECODED = ErrorMeaning("its pictures cannot be decoded; set the camera to H.264, H.265 or MJPEG")
LOG_UNAVAILABLE = ErrorMeaning(
    "FFmpeg's log cannot be watched now (this process also reads a file, or disabled logging), so "
    "the password might leak to another host unnoticed"
)
NO_VIDEO = ErrorMeaning("it has no video; check the path of the address")
