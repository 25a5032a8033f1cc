"""Choose the video track to read, and describe it. As in ffmpeg, it is the default track, else the
track with the largest picture, and never a cover picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from av.stream import Disposition

from detector.core.errors import SourceError, UsageError
from detector.core.errors.text import counted

# These tags describe the content. Other tags describe the file (major_brand, encoder...).
TAGS = (
    "album",
    "artist",
    "comment",
    "copyright",
    "creation_time",
    "date",
    "description",
    "genre",
    "location",
    "make",
    "model",
    "synopsis",
    "timecode",
    "title",
)
APPLE = "com.apple.quicktime."  # prefix of tags written by phones
OUR_NAMES = {"location.iso6709": "location", "creationdate": "date"}
LOCATION_PREFIX = "location-"  # a language follows, as in "location-eng"


def choose_track(path: str, container: Any, requested: int | None) -> tuple[Any, str]:
    """Return the video stream to read, and a note if there were several. ``requested``: the number
    of a video track, from 1. Raises SourceError, UsageError."""
    cover = Disposition.attached_pic
    tracks = [track for track in container.streams.video if not track.disposition & cover]
    if not tracks:
        raise _explain_no_video(path, container)
    if requested is not None and requested > len(tracks):
        raise UsageError(
            f"{path}: --video-track {requested}: it has "
            f"{counted(len(tracks), 'video track')}{_list_tracks(tracks)}; give "
            f"1{'' if len(tracks) == 1 else f' to {len(tracks)}'}"
        )
    chosen = max(tracks, key=_rank) if requested is None else tracks[requested - 1]
    if len(tracks) == 1:
        return chosen, ""
    number = tracks.index(chosen) + 1
    others = "; ".join(
        f"track {at} is {_describe(one)}" for at, one in enumerate(tracks, 1) if one is not chosen
    )
    how = "" if requested is None else " as --video-track requests"
    hint = "; use --video-track N for another" if requested is None else ""
    return chosen, (
        f"video track {number} of {len(tracks)} is used ({_describe(chosen)}){how}; {others}{hint}"
    )


def select_tags(metadata: Mapping[str, str]) -> dict[str, str]:
    selected: dict[str, str] = {}
    for key, value in metadata.items():
        name = key.lower()
        if name.startswith(APPLE):
            name = name.removeprefix(APPLE)
            name = OUR_NAMES.get(name, name)
        if (name in TAGS or name.startswith(LOCATION_PREFIX)) and value.strip():
            selected.setdefault(name, value)
    return selected


def read_timecode(stream: Any, container: Any) -> dict[str, str]:
    """Return a tag with the first frame's time code, which QuickTime stores in a separate track."""
    tracks = (stream, *container.streams.data)
    codes = [track.metadata["timecode"] for track in tracks if "timecode" in track.metadata]
    return {"timecode": codes[0]} if codes else {}


def list_data_tracks(container: Any) -> list[Any]:
    """Return the data tracks, such as those of sensors, except time codes."""
    return [track for track in container.streams.data if "timecode" not in track.metadata]


def _rank(stream: Any) -> tuple[bool, bool, int]:
    codec = stream.codec_context
    area = 0 if codec is None else codec.width * codec.height
    return codec is not None, bool(stream.disposition & Disposition.default), area


def _describe(stream: Any) -> str:
    codec = stream.codec_context
    words = ["unknown"] if codec is None else [codec.name, f"{codec.width}x{codec.height}"]
    tags = (stream.metadata.get(key, "und") for key in ("language", "title"))
    words += [tag for tag in tags if tag != "und"]
    if stream.disposition & Disposition.default:
        words.append("default")
    return " ".join(words)


def _list_tracks(tracks: list[Any]) -> str:
    if len(tracks) == 1:
        return ""
    return f" ({'; '.join(f'{at}: {_describe(track)}' for at, track in enumerate(tracks, 1))})"


def _explain_no_video(path: str, container: Any) -> SourceError:
    types = [stream.type for stream in container.streams]
    kinds = {"a cover picture" if kind == "video" else kind for kind in types}
    listed = ", ".join(sorted(kinds)) or "nothing"
    return SourceError(f"{path}: no video stream in it (found: {listed}); give a file with video")
