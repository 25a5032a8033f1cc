"""Where frames come from. One file here is one source; ``open`` asks each for its claim."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from detector.core import wings
from detector.core.errors import SourceError, UsageError
from detector.core.errors.text import counted
from detector.core.sources._addresses import is_web
from detector.core.sources._standard_input import SPEC as STANDARD_INPUT

if TYPE_CHECKING:
    from detector.core.sources.base import Choice, Source


def names() -> list[str]:
    here = set(wings.list_files(*__path__))
    return sorted(here.union(*(adds.sources for adds in wings.additions())))


def find(name: str) -> type[Source]:
    """The class of a source: ``VideoSource`` of ``video``."""
    added = (adds.sources[name] for adds in wings.additions() if name in adds.sources)
    source: type[Source] = wings.load(next(added, f"{__name__}.{name}:{name.capitalize()}Source"))
    return source


def find_claiming(spec: str) -> type[Source]:
    """The source that reads ``spec``. Raises SourceError, with the cure, where none does."""
    for source in sorted(map(find, names()), key=lambda source: source.order):
        if source.claims(spec):
            return source
    from detector.core.sources._unclaimed import refusal

    raise refusal(spec)


def find_arriving() -> type[Source]:
    """The source of cameras: what is given is one, whatever its name or its server says."""
    return next(source for source in map(find, names()) if source.arrives)


def check(spec: str) -> None:
    """Raises SourceError or UsageError where ``spec`` can never be read, by names and folders."""
    find_claiming(spec).check_spec(spec)


def refuse_pipe(spec: str, why: str) -> None:
    """Raises UsageError for standard input, for those that read a source more than once."""
    if spec == STANDARD_INPUT:
        raise UsageError(
            f"-: {why}, but standard input can be read only once; save it to a file first: ffmpeg "
            "-i IN -c copy clip.mkv"
        )


def decoders() -> list[str]:
    from detector.core.sources import video

    return video.decoders()


def open(
    spec: str,
    *,
    decoder: str = "auto",
    stride: int = 1,
    frames: int | None = None,
    pixels: str = "bgr",
    choice: Choice | None = None,
) -> Source:
    """A video file, a picture, a folder of pictures, a (quoted) pattern of pictures, "-", or an
    ``http://`` address of a video or a picture.

    Hands out every ``stride``-th frame, at most ``frames`` of them. ``pixels``: "yuv420p" asks for
    planes. ``choice``: which track of a video, how fast, and which grey is black and white. Raises
    SourceError, one line with the cure, and UsageError.
    """
    if decoder not in decoders():
        raise UsageError(f"unknown decoder {decoder!r}; choose one of {', '.join(decoders())}")
    if stride < 1:
        raise UsageError(f"stride is {stride}; it must be 1 (every frame) or more")
    if frames is not None and frames < 1:
        raise UsageError(f"frames is {frames}; it must be 1 or more")
    kind: Any = find_claiming(spec)
    wanted: dict[str, Any] = {}
    if pixels != "bgr" and pixels in kind.gives:
        wanted["pixels"] = pixels
    if choice is not None and kind.has_tracks:
        wanted["choice"] = choice
    elif choice is not None:
        choice.refuse_tracks(spec)
    source: Source = kind.open(spec, decoder=decoder, stride=stride, frames=frames, **wanted)
    return source


def gather(specs: Sequence[str], skip: Callable[[str], bool]) -> list[str]:
    """The sources that a command line names, each with outputs of its own. Pictures named one by
    one, or of one folder or pattern, are one source; videos that ``skip`` names are left out, and
    so are the outputs of one source that are named as another (``*.mp4`` typed again)."""
    from detector.core.sources._contents import PICTURE, kind_of
    from detector.core.sources._specs import Gathered, NamedPictures

    earlier: set[str] = set()
    if len(specs) > 1:
        from detector.core.sources._left_out import find_earlier

        earlier = find_earlier(specs, skip)
        specs = [spec for spec in specs if spec not in earlier]
    files = filter(os.path.isfile, specs)
    named = [spec for spec in files if kind_of(spec, closely=True) == PICTURE]
    together = [NamedPictures(named)] if len(named) > 1 else []
    gathered: list[str] = []
    for spec in specs:
        if len(named) < 2 or spec not in named:
            gathered += _with_videos(spec, skip)
        else:
            gathered += together
            together = []
    if earlier:
        count = counted(len(earlier), "earlier output")
        note = f"{count} skipped, such as {min(earlier)}; to use one, name it alone"
        if isinstance(first := gathered[0], NamedPictures):
            first.note = note
        else:
            gathered[0] = Gathered(first, "; ".join(filter(None, [note, note_of(first)])))
    return gathered


def _with_videos(spec: str, skip: Callable[[str], bool]) -> list[str]:
    from detector.core.sources._specs import Gathered, look_into

    try:
        contents = look_into(spec)
    except SourceError:  # whoever opens it says what is wrong
        return [spec]
    if contents is None:
        return [spec]
    from detector.core.sources._left_out import describe_left_out

    videos = [path for path in contents.videos if not skip(path)]
    found = [spec, *videos] if contents.pictures else videos
    if not found:
        return [spec]
    left_out = describe_left_out(spec, contents)
    return [Gathered(found[0], f"{spec}: {left_out}" if left_out else ""), *found[1:]]


def note_of(spec: str) -> str:
    """What ``gather`` left out of the folder or pattern that this is of; "" where nothing was."""
    from detector.core.sources._specs import Gathered, NamedPictures

    return spec.note if isinstance(spec, (Gathered, NamedPictures)) else ""


def files_of(spec: str) -> list[str]:
    """The files that are read for ``spec``: a video, or pictures. Raises SourceError."""
    if spec == STANDARD_INPUT:
        return ["/dev/stdin"]  # what a shell may have redirected: ``- < in.mkv``
    if is_web(spec):
        return []
    return [spec] if os.path.isfile(spec) else pictures_of(spec) or []


def pictures_of(spec: str) -> list[str] | None:
    """The pictures that ``spec`` names, in order; None when it is a video. Raises SourceError."""
    from detector.core.sources._specs import list_pictures
    from detector.core.sources.web import WebSource, picture_of

    source = find_claiming(spec)
    if source is WebSource:
        return None if (path := picture_of(spec)) is None else [path]
    return list_pictures(spec) if source.kind == "pictures" else None
