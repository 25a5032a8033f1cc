"""Choose the video track to read, and describe it. As in ffmpeg it is the default one, else the one
with the largest picture, and never a cover picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from av.stream import Disposition

from detector.core.errors import SourceError, UsageError
from detector.core.errors.text import counted

# Tags of a container about its content. Others describe the file (major_brand, encoder...).
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
APPLE = "com.apple.quicktime."  # prefix of tags on phones
AS_OURS = {"location.iso6709": "location", "creationdate": "date"}
# Further names of the same tag, such as "location-eng".
WITH_LANGUAGE = "location-"


def choose_track(path: str, container: Any, wanted: int | None) -> tuple[Any, str]:
    """Return the video stream, and a sentence on a choice. Raises SourceError, UsageError."""
    covers = Disposition.attached_pic
    tracks = [one for one in container.streams.video if not one.disposition & covers]
    if not tracks:
        raise _no_video(path, container)
    if wanted is not None and wanted > len(tracks):
        raise UsageError(
            f"{path}: --video-track {wanted}: it has "
            f"{counted(len(tracks), 'video track')}{_listing(tracks)}; give "
            f"1{'' if len(tracks) == 1 else f' to {len(tracks)}'}"
        )
    chosen = max(tracks, key=_rank) if wanted is None else tracks[wanted - 1]
    if len(tracks) == 1:
        return chosen, ""
    number = tracks.index(chosen) + 1
    others = "; ".join(
        f"{at} is {_describe(one)}" for at, one in enumerate(tracks, 1) if one is not chosen
    )
    how = "chosen by --video-track" if wanted is not None else "use --video-track N for another"
    return chosen, (
        f"video track {number} of {len(tracks)} is used ({_describe(chosen)}); {others}; {how}"
    )


def kept_tags(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a container's tags that describe its content."""
    kept: dict[str, str] = {}
    for key, value in metadata.items():
        name = key.lower()
        if name.startswith(APPLE):
            own = name.removeprefix(APPLE)
            name = AS_OURS.get(own, own)
        if (name in TAGS or name.startswith(WITH_LANGUAGE)) and value.strip():
            kept.setdefault(name, value)
    return kept


def read_timecode(stream: Any, container: Any) -> dict[str, str]:
    """Return the time code of the first frame, which QuickTime keeps in a separate track."""
    tracks = (stream, *container.streams.data)
    found = [one.metadata["timecode"] for one in tracks if "timecode" in one.metadata]
    return {"timecode": found[0]} if found else {}


def data_tracks(container: Any) -> list[Any]:
    """Return tracks of measurements and the like. A time code is a tag."""
    return [one for one in container.streams.data if "timecode" not in one.metadata]


def _rank(stream: Any) -> tuple[bool, bool, int]:
    codec = stream.codec_context
    area = 0 if codec is None else codec.width * codec.height
    return codec is not None, bool(stream.disposition & Disposition.default), area


def _describe(stream: Any) -> str:
    codec = stream.codec_context
    said = ["unknown"] if codec is None else [codec.name, f"{codec.width}x{codec.height}"]
    said += [stream.metadata[key] for key in ("language", "title") if _tells(stream, key)]
    if stream.disposition & Disposition.default:
        said.append("default")
    return " ".join(said)


def _tells(stream: Any, key: str) -> bool:
    return str(stream.metadata.get(key, "und")) != "und"


def _listing(tracks: list[Any]) -> str:
    if len(tracks) == 1:
        return ""
    return f" ({'; '.join(f'{at}: {_describe(one)}' for at, one in enumerate(tracks, 1))})"


def _no_video(path: str, container: Any) -> SourceError:
    kinds = {"a cover picture" if one.type == "video" else one.type for one in container.streams}
    found = ", ".join(sorted(kinds)) or "nothing"
    return SourceError(f"{path}: no video stream in it (found: {found}); give a file with video")
