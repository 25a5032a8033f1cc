"""Copy the description of tracks and files, such as titles and time codes, to an output."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from typing import Any

from detector.core.types import SourceInfo

DETECTIONS = "Detections"  # title of an overlay's subtitle track

_TIMECODE = re.compile(r"(\d+):(\d+):(\d+)([:;.])(\d+)")


def copy_description(source: Any, target: Any) -> None:
    """Copy language, title, name and flags (default, forced...) between PyAV streams."""
    target.disposition = source.disposition
    for key in ("language", "title", "handler_name"):
        if key in source.metadata:
            target.metadata[key] = source.metadata[key]
    if "title" not in target.metadata and (name := read_title(source)):
        target.metadata["title"] = name


def is_timecode(text: str | None, fps: Fraction) -> bool:
    """Return whether QuickTime supports a time code: drop-frame only at multiples of 29.97 Hz."""
    match = _TIMECODE.fullmatch(text or "")
    return match is not None and (match[4] == ":" or round(fps) % 30 == 0)


def shift_tags(info: SourceInfo, pts: int) -> dict[str, str]:
    """Return the source's tags for an output that begins with the frame at ``pts``, with the time
    code of that frame."""
    tags = dict(info.tags)
    if match := _TIMECODE.fullmatch(tags.get("timecode", "")):
        rate, dropped = max(1, round(info.fps)), 0
        hours, minutes, seconds, frame = map(int, match.group(1, 2, 3, 5))
        minutes += hours * 60
        if match[4] != ":":  # at 29.97 Hz each minute except every tenth skips two numbers
            dropped = rate // 15
        frame += (minutes * 60 + seconds) * rate - dropped * (minutes - minutes // 10)
        frame += round((pts - info.start_pts) * info.time_base * info.fps)
        if dropped:
            tens, rest = divmod(frame, 600 * rate - 9 * dropped)
            frame += dropped * (9 * tens + max(0, rest - dropped) // (60 * rate - dropped))
        second, frame = divmod(frame % (24 * 3600 * rate), rate)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        tags["timecode"] = f"{clock}{match[4]}{frame:02}"
    return tags


def describe_data(stream: Any) -> str:
    names = (stream.name, stream.metadata.get("handler_name"))
    return " ".join(filter(None, names)) or "unknown"


def is_data(stream: Any) -> bool:
    """Return whether a stream is a data track other than a time code."""
    return stream.type == "data" and "timecode" not in stream.metadata


def is_overlay_track(stream: Any) -> bool:
    """Return whether a track contains an earlier run's boxes, which no other output may copy."""
    return stream.type == "subtitle" and read_title(stream) == DETECTIONS


def copy_fonts(source: Any, target: Any) -> None:
    """Copy attachments (mostly fonts) between PyAV containers, except an earlier overlay's JSON."""
    import av

    for stream in source.streams:
        kind = stream.metadata.get("mimetype", "")
        if stream.type == "attachment" and stream.data and kind != "application/json":
            name = stream.metadata.get("filename", "attachment")
            # Skip attachments that the muxer refuses.
            with suppress(av.FFmpegError, OSError, ValueError):
                target.add_attachment(name, kind, stream.data)


def read_title(stream: Any) -> str:
    """Return the stream's title, which MP4 calls its name."""
    return str(stream.metadata.get("title") or stream.metadata.get("name") or "")
