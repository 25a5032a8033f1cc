"""Copy what describes a track, such as its title, from the source's stream to an output's."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from typing import Any

from detector.core.types import SourceInfo

DETECTIONS = "Detections"  # title of the subtitle track that draws an overlay's boxes

_TIMECODE = re.compile(r"(\d+):(\d+):(\d+)([:;.])(\d+)")


def copy_about(of: Any, to: Any) -> None:
    """Copy language, title, name and flags (default, forced...) between PyAV streams."""
    to.disposition = of.disposition
    for key in ("language", "title", "handler_name"):
        if key in of.metadata:
            to.metadata[key] = of.metadata[key]
    if "title" not in to.metadata and (name := title_of(of)):
        to.metadata["title"] = name


def is_timecode(text: str | None, fps: Fraction) -> bool:
    """Return whether QuickTime can continue it: numbers drop only at multiples of 29.97 Hz."""
    found = _TIMECODE.fullmatch(text or "")
    return found is not None and (found[4] == ":" or round(fps) % 30 == 0)


def tags_from(info: SourceInfo, pts: int) -> dict[str, str]:
    """Return the source's tags for an output that begins with the frame at ``pts``."""
    tags = dict(info.tags)
    if found := _TIMECODE.fullmatch(tags.get("timecode", "")):
        rate, lost = max(1, round(info.fps)), 0
        hours, minutes, seconds, frame = map(int, found.group(1, 2, 3, 5))
        minutes += hours * 60
        if found[4] != ":":  # at 29.97 Hz each minute skips two numbers, except every tenth
            lost = rate // 15
        frame += (minutes * 60 + seconds) * rate - lost * (minutes - minutes // 10)
        frame += round((pts - info.start_pts) * info.time_base * info.fps)
        if lost:
            tens, rest = divmod(frame, 600 * rate - 9 * lost)
            frame += lost * (9 * tens + max(0, rest - lost) // (60 * rate - lost))
        second, frame = divmod(frame % (24 * 3600 * rate), rate)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        tags["timecode"] = f"{clock}{found[4]}{frame:02}"
    return tags


def describe_data(stream: Any) -> str:
    known = (stream.name, stream.metadata.get("handler_name"))
    return " ".join(filter(None, known)) or "unknown"


def is_data(stream: Any) -> bool:
    """Return whether it is a data track; the time code, which is a tag, does not count."""
    return stream.type == "data" and "timecode" not in stream.metadata


def is_of_an_overlay(stream: Any) -> bool:
    """Return whether a track holds the boxes of an earlier run, which belong to no other output."""
    return stream.type == "subtitle" and title_of(stream) == DETECTIONS


def copy_fonts(of: Any, to: Any) -> None:
    """Copy attachments (PyAV), mostly fonts, except those of an earlier overlay."""
    import av

    for stream in of.streams:
        kind = stream.metadata.get("mimetype", "")
        if stream.type == "attachment" and stream.data and kind != "application/json":
            name = stream.metadata.get("filename", "attachment")
            # Skip attachments that the muxer refuses.
            with suppress(av.FFmpegError, OSError, ValueError):
                to.add_attachment(name, kind, stream.data)


def title_of(stream: Any) -> str:
    """Return the stream's title, which MP4 calls its name."""
    return str(stream.metadata.get("title") or stream.metadata.get("name") or "")
