"""Copy the description of tracks, such as titles, to an output."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

DETECTIONS = "Detections"  # title of an overlay's subtitle track


def copy_description(source: Any, target: Any) -> None:
    """Copy language, title, name and flags (default, forced...) between PyAV streams."""
    target.disposition = source.disposition
    for key in ("language", "title", "handler_name"):
        if key in source.metadata:
            target.metadata[key] = source.metadata[key]
    if "title" not in target.metadata and (name := read_title(source)):
        target.metadata["title"] = name


def describe_data(stream: Any) -> str:
    names = (stream.name, stream.metadata.get("handler_name"))
    return " ".join(filter(None, names)) or "unknown"


def is_data(stream: Any) -> bool:
    """Return whether a stream is a data track other than a time code."""
    return stream.type == "data" and "timecode" not in stream.metadata


def is_overlay_track(stream: Any) -> bool:
    """Return whether a track contains an earlier run's boxes, which a new output must not copy."""
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
