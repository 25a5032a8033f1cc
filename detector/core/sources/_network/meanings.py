"""What an error of FFmpeg means, in a line that says what to do."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import av

from detector.core.errors.secrets import redact

REFUSED, LOGIN, NOT_FOUND, CODEC, SILENCE, NAME, UNREACHABLE, GONE, OTHER = (
    "refused",
    "login",
    "not found",
    "codec",
    "silence",
    "name",
    "unreachable",
    "gone",
    "other",
)
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


@dataclass(frozen=True, slots=True)
class Meaning:
    kind: str
    text: str


def explain(error: BaseException, timed_out: bool = False) -> Meaning:
    """``timed_out``: we ended the attempt, because the camera took too long."""
    kind, text = _meaning(error, timed_out)
    return Meaning(kind, redact(text))


def _meaning(error: BaseException, timed_out: bool) -> tuple[str, str]:
    number = getattr(error, "errno", None)
    if timed_out or isinstance(error, av.error.ExitError | av.error.TimeoutError):
        return SILENCE, "the camera did not answer in time; check that it is on, and the port"
    if isinstance(error, av.error.HTTPUnauthorizedError | av.error.HTTPForbiddenError):
        return LOGIN, "the camera rejects the user or password; check both in the address"
    if isinstance(error, av.error.HTTPNotFoundError):
        return NOT_FOUND, "the camera has no such stream; check the path of the address"
    if isinstance(error, av.error.ConnectionRefusedError):
        return REFUSED, "nothing listens at this port; check that the camera is on, and the port"
    if isinstance(error, av.error.DecoderNotFoundError):
        return CODEC, "its codec is not supported; set the camera to H.264, H.265 or MJPEG"
    if isinstance(error, av.error.ProtocolNotFoundError | av.error.DemuxerNotFoundError):
        return OTHER, "the stream refers to a kind of address or file that may not be opened here"
    if number in _UNREACHABLE:
        return UNREACHABLE, "there is no route to this host; check the network and the address"
    if isinstance(error, av.error.HTTPServerError):
        return OTHER, "the camera failed (HTTP 5xx); restart it"
    if isinstance(error, av.error.ConnectionResetError | av.error.BrokenPipeError):
        return GONE, "the camera closed the connection; retrying"
    if isinstance(error, av.error.InvalidDataError):
        return OTHER, "the answer is not a readable stream; check port and path"
    if number == errno.EIO:
        return OTHER, "it cannot be opened; check host and path of the address"
    said = getattr(error, "strerror", None) or type(error).__name__
    return OTHER, f"it cannot be read ({said}); check the address"


ENDED = Meaning(GONE, "the stream has ended")
UNDECODED = Meaning(
    CODEC, "its pictures cannot be decoded; set the camera to H.264, H.265 or MJPEG"
)
NOT_NOW = Meaning(
    OTHER,
    "FFmpeg's log cannot be watched now (this process also reads a file, or disabled logging), so "
    "the password might leak to another host unnoticed",
)
NO_VIDEO = Meaning(CODEC, "it has no video; check the path of the address")
