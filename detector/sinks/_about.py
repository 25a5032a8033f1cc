"""What a track says of itself, copied from the source's stream to that of an output."""

from __future__ import annotations

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


def title_of(stream: Any) -> str:
    """MP4 calls it the name."""
    return str(stream.metadata.get("title") or stream.metadata.get("name") or "")
