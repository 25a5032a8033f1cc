"""What a track says of itself, copied from the source's stream to that of an output."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

DETECTIONS = "Detections"  # title of the subtitles that an overlay draws boxes with


def copy_about(of: Any, to: Any) -> None:
    """Language, title, name and flags (default, forced, commentary...), of PyAV's streams."""
    to.disposition = of.disposition
    for key in ("language", "title", "handler_name"):
        if key in of.metadata:
            to.metadata[key] = of.metadata[key]
    if "title" not in to.metadata and (name := title_of(of)):
        to.metadata["title"] = name


def is_of_an_overlay(stream: Any) -> bool:
    """Whether a track holds the boxes of an earlier run, which belong to no other output."""
    return stream.type == "subtitle" and title_of(stream) == DETECTIONS


def copy_fonts(of: Any, to: Any) -> None:
    """The attachments of a container, of PyAV: fonts of its subtitles, mostly. Not what an earlier
    overlay says of itself."""
    import av

    for stream in of.streams:
        kind = stream.metadata.get("mimetype", "")
        if stream.type == "attachment" and stream.data and kind != "application/json":
            name = stream.metadata.get("filename", "attachment")
            # One that the muxer does not take is left out.
            with suppress(av.FFmpegError, OSError, ValueError):
                to.add_attachment(name, kind, stream.data)


def title_of(stream: Any) -> str:
    """MP4 calls it the name."""
    return str(stream.metadata.get("title") or stream.metadata.get("name") or "")
