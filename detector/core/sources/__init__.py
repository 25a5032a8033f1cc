"""Sources of frames, one per module. ``open`` uses the first source whose ``claims`` is true."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from detector.core import wings
from detector.core.errors import SourceError, UsageError
from detector.core.errors.text import counted
from detector.core.sources._forms import STANDARD_INPUT, Gathered, NamedPictures, is_web

if TYPE_CHECKING:
    from detector.core.sources.base import Choice, Source


def _locate_sources(*folders: str) -> Mapping[str, str]:
    """Map the name of each source to "MODULE:CLASS" without importing it."""
    files = wings.list_files(*folders)
    places = {name: f"{__name__}.{name}:{name.capitalize()}Source" for name in files}
    for adds in wings.additions():
        places |= adds.sources
    return places


@cache
def _list_by_order(*folders: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return each source's name and ``form``, sorted by ``order``, without importing a source."""
    entries = []
    for name, place in sorted(_locate_sources(*folders).items()):
        order, form = (wings.read_literal(place.split(":")[0], key) for key in ("order", "form"))
        pattern = re.compile(".*" if form is None else form, re.IGNORECASE | re.DOTALL)
        entries.append((order or 0, name, pattern))
    return tuple(
        (name, pattern) for _, name, pattern in sorted(entries, key=lambda entry: entry[0])
    )


def names() -> list[str]:
    return sorted(_locate_sources(*__path__))


def find(name: str) -> type[Source]:
    """Return a source's class: ``VideoSource`` for ``video``."""
    source: type[Source] = wings.load(_locate_sources(*__path__)[name])
    return source


def find_claiming(spec: str) -> type[Source]:
    """Return the source that reads ``spec``. Raises SourceError with a remedy if none does."""
    for name, form in _list_by_order(*__path__):
        if form.fullmatch(spec) and (source := find(name)).claims(spec):
            return source
    from detector.core.sources._specs import explain_unclaimed

    raise explain_unclaimed(spec)


def find_arriving() -> type[Source]:
    """Return the source that reads cameras, for specs that the user declares to be cameras."""
    return next(source for source in map(find, names()) if source.arrives)


def check(spec: str) -> None:
    """Raise SourceError or UsageError if ``spec`` cannot be read. Reads no frame."""
    if spec.endswith((".pt", ".onnx")):
        raise UsageError(f"{spec}: a model, not a video or picture; add --model {spec}")
    find_claiming(spec).check_spec(spec)


def refuse_pipe(spec: str, why: str) -> None:
    """Raise UsageError for standard input, in commands that read a source more than once."""
    if spec == STANDARD_INPUT:
        raise UsageError(
            f"-: {why}, but standard input can be read only once; save it to a file first: ffmpeg "
            "-i IN -c copy clip.mkv"
        )


@contextmanager
def keep_open(specs: Sequence[str]) -> Iterator[None]:
    """During the block, keep the bytes that an address sent: a run opens each source twice."""
    if not any(map(is_web, specs)):
        yield
        return
    from detector.core.sources import _web

    with _web.keep_open():
        yield


def decoders() -> list[str]:
    """Return the names of the decoders of videos, which are the modules of the folder ``video``."""
    return list(wings.list_files(f"{__path__[0]}/video"))


def open(
    spec: str,
    *,
    decoder: str = "auto",
    stride: int = 1,
    frames: int | None = None,
    pixels: str = "bgr",
    choice: Choice | None = None,
) -> Source:
    """Open a video file, a picture, a folder of pictures, a (quoted) pattern of pictures, "-", or
    an ``http://`` address of a video or a picture.

    The source yields every ``stride``-th frame, and at most ``frames`` frames. ``pixels``:
    "yuv420p" requests YUV planes. ``choice``: options such as a video's track and rate. Raises
    UsageError, and SourceError with a remedy in one line.
    """
    if decoder not in decoders():
        raise UsageError(f"unknown decoder {decoder!r}; choose one of {', '.join(decoders())}")
    if stride < 1:
        raise UsageError(f"stride is {stride}; it must be 1 (every frame) or more")
    if frames is not None and frames < 1:
        raise UsageError(f"frames is {frames}; it must be 1 or more")
    kind: Any = find_claiming(spec)
    supported: dict[str, Any] = {}
    if pixels != "bgr" and pixels in kind.gives:
        supported["pixels"] = pixels
    if choice is not None and kind.has_tracks:
        supported["choice"] = choice
    elif choice is not None:
        choice.refuse_tracks(spec)
    source: Source = kind.open(spec, decoder=decoder, stride=stride, frames=frames, **supported)
    return source


def gather(specs: Sequence[str], skip: Callable[[str], bool]) -> list[str]:
    """Return the sources of a command line. Pictures named one by one form one source, and so do
    the pictures of a folder or pattern. ``skip`` returns whether a file is an earlier output.
    In a folder, earlier outputs are omitted; in ``specs``, only if their source is there, too."""
    from detector.core.sources._contents import PICTURE, kind_of

    earlier: set[str] = set()
    if len(specs) > 1:
        from detector.core.sources._left_out import find_earlier

        earlier = find_earlier(specs, skip)
        specs = [spec for spec in specs if spec not in earlier]
    files = filter(os.path.isfile, specs)
    named = [spec for spec in files if kind_of(spec, closely=True) == PICTURE]
    joined = [NamedPictures(named)] if len(named) > 1 else []
    gathered: list[str] = []
    for spec in specs:
        if len(named) < 2 or spec not in named:
            gathered += _expand_folder(spec, skip)
        else:
            gathered += joined
            joined = []
    if earlier:
        count = counted(len(earlier), "earlier output")
        note = f"{count} skipped, such as {min(earlier)}; to use one, name it alone"
        if isinstance(first := gathered[0], NamedPictures):
            first.note = note
        else:
            gathered[0] = Gathered(first, "; ".join(filter(None, [note, note_of(first)])))
    return gathered


def _expand_folder(spec: str, skip: Callable[[str], bool]) -> list[str]:
    if os.path.isfile(spec):
        return [spec]
    from detector.core.sources._specs import list_contents

    try:
        contents = list_contents(spec)
    except SourceError:  # opening it reports the error
        return [spec]
    if contents is None:
        return [spec]
    from detector.core.sources._left_out import describe_left_out

    videos = [path for path in contents.videos if not skip(path)]
    sources = [spec, *videos] if contents.pictures else videos
    if not sources:
        return [spec]
    left_out = describe_left_out(spec, contents)
    return [Gathered(sources[0], f"{spec}: {left_out}" if left_out else ""), *sources[1:]]


def note_of(spec: str) -> str:
    """Describe what ``gather`` omitted from this spec's folder or pattern; "" if nothing."""
    return spec.note if isinstance(spec, (Gathered, NamedPictures)) else ""


def files_of(spec: str) -> list[str]:
    """Return the files that are read for ``spec``: a video, or pictures. Raises SourceError."""
    if spec == STANDARD_INPUT:
        return ["/dev/stdin"]  # a shell may have redirected it: ``- < in.mkv``
    if is_web(spec):
        return []
    return [spec] if os.path.isfile(spec) else pictures_of(spec) or []


def pictures_of(spec: str) -> list[str] | None:
    """Return the pictures of ``spec``, in order; None if it is a video. Raises SourceError."""
    source = find_claiming(spec)
    if is_web(spec) and not source.arrives:
        from detector.core.sources.web import picture_of

        return None if (path := picture_of(spec)) is None else [path]
    if source.kind != "pictures":
        return None
    from detector.core.sources._specs import list_pictures

    return list_pictures(spec)
