"""Explain why a file cannot be opened, or why none of its frames can be decoded."""

from __future__ import annotations

from detector.core.errors.holding import open_object
from detector.core.errors.text import counted
from detector.core.sources._forms import STANDARD_INPUT
from detector.core.sources._standard_input import standard_input
from detector.core.types import SourceInfo

HEAD_BYTES = 512  # bytes that we read to describe a file's format in a message


def explain_open_error(path: str, error: Exception) -> str:
    """Return why PyAV cannot open a file, judging by the error and the file's first bytes."""
    if isinstance(error, UnicodeError):
        return "its name is not valid UTF-8; rename the file"
    try:
        head = _read_head(path)
    except OSError as problem:
        return f"cannot be read ({problem.strerror})"
    if not head and path == STANDARD_INPUT:
        if standard_input().stopped():
            return "nothing arrived on standard input before the run was stopped; run it again"
        return "standard input is empty (0 bytes); check the program that writes to it"
    if not head:
        return "the file is empty (0 bytes); copy or record it again"
    if head[4:8] == b"ftyp":
        return (
            "no moov atom: the recording was cut off before it was finalised; record it again, "
            "or rebuild it from an intact file of the same camera (untrunc)"
        )
    if head.startswith(b"#EXTM3U") and path == STANDARD_INPUT:
        return "a playlist cannot be read from a pipe; give it as a file"
    if head.startswith(b"#EXTM3U"):
        return (
            "nothing in this playlist can be opened (a playlist in a file may not open the "
            "network); give the address of the stream itself (http://HOST/NAME.m3u8)"
        )
    if head.isascii() and not any(byte < 32 and byte not in b"\t\r\n\f" for byte in head):
        return "it is text, not video; give a video, a picture, a folder, or cameras as NAME.yaml"
    reason = getattr(error, "strerror", None) or str(error)
    if path == STANDARD_INPUT:
        return (
            f"FFmpeg cannot read it ({reason}); raw video (-f rawvideo) has no header with its "
            "size; send it with -f matroska"
        )
    return (
        f"FFmpeg cannot read it ({reason}); check it with ffprobe, or convert it with ffmpeg first"
    )


def _read_head(path: str) -> bytes:
    if path == STANDARD_INPUT:
        return standard_input().read_beginning(HEAD_BYTES)
    if (stored := open_object(path)) is not None:
        return stored.pread(HEAD_BYTES, 0)
    with open(path, "rb") as file:
        return file.read(HEAD_BYTES)


def explain_no_frame(info: SourceInfo, decodable: bool, refused: int) -> str:
    """Return why no frame of an open file can be decoded. ``refused``: count of refused packets."""
    if not decodable:
        return (
            "there is no decoder for its codec; convert it with a full FFmpeg: ffmpeg -i IN OUT.mp4"
        )
    if info.codec == "rawvideo" and not info.width:
        return (
            "its pixels are raw, but the picture's size is not stated; tell ffmpeg the size: "
            "ffmpeg -f rawvideo -pixel_format gray16le -video_size 640x480 -i IN -c:v ffv1 OUT.mkv"
        )
    what = f"{info.codec} {info.width}x{info.height}"
    return (
        f"opens ({what}), but no frame can be decoded ({counted(refused, 'packet')} "
        "refused); the file is damaged: copy or record it again"
    )
