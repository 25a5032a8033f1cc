"""List the items of SOURCES: folders (recursive), quoted globs, list files, files and addresses.
Item names are unique, and no name leads out of the output folder."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from detector.batch.documents import Failure
from detector.core.errors import EXIT_SOURCE, EXIT_USAGE, DetectVideoError, SourceError, UsageError
from detector.core.errors.reading import read_text
from detector.core.errors.text import printable
from detector.core.errors.writing import is_output
from detector.core.run.inputs import refuse_cameras
from detector.core.sources._addresses import is_address, local_path, parse_address
from detector.core.sources._contents import kind_of_name
from detector.core.sources._left_out import name_suffixes, suffix_of
from detector.core.sources._storage import ObjectInfo

if TYPE_CHECKING:
    from detector.batch.stores import BucketObject as Stored

LISTS = (".txt", ".lst", ".list")  # suffixes of a file that lists sources, one per line
LIST_BYTES = 256 << 20  # more than two million lines of a hundred characters
LONGEST_PART = 240  # bytes between slashes: file systems allow 255, and outputs add a suffix


class Item(NamedTuple):
    """A source. ``version`` changes with the source: size and modification time, or an ETag."""

    name: str
    path: str
    size: int
    version: str


@dataclass(slots=True)
class Listing:
    """The items of a job. ``refused``: paths that cannot be items, with the reason. ``silent``:
    arguments that matched nothing. ``left_out``: number of files of other kinds, by suffix."""

    items: list[Item] = field(default_factory=list)
    refused: list[Failure] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def takes(self, path: str) -> bool:
        """Return whether a found file is an item. Count other files, except outputs of runs."""
        is_known = kind_of_name(path) is not None
        if not is_output(path):
            self.left_out[suffix_of(path)] += not is_known
            return is_known
        return False

    def notes(self) -> list[str]:
        left_out = name_suffixes(+self.left_out)
        return [f"{left_out} (to include a file, give it by name)"] if left_out else []

    def refuse(self, source: str, error: str, exit_code: int) -> None:
        self.refused.append(Failure(source=source, error=error, tries=0, exit_code=exit_code))


class Found(NamedTuple):
    """A file of a SOURCE. ``relative``: path below the SOURCE. ``about``: None if not yet known."""

    relative: str
    path: str
    about: ObjectInfo | DetectVideoError | None = None


def version_of(about: os.stat_result) -> str:
    return f"{about.st_size}-{about.st_mtime_ns}"


def look_at(path: str) -> ObjectInfo:
    if is_address(path):
        from detector.core.sources.stored import read_info

        return read_info(parse_address(path))
    try:
        about = os.stat(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}; check the path") from error
    return ObjectInfo(about.st_size, version_of(about))


def list_sources(specs: Sequence[str], output: str, known: dict[str, str] | None = None) -> Listing:
    """List the items of ``specs``. ``output``: the job's folder, whose videos are not sources.
    ``known``: path -> name in an earlier run; items keep these names. Raises UsageError,
    SourceError."""
    listing = Listing()
    names = _Names(known or {})
    seen: set[str] = set()
    own = os.path.realpath(output)
    for number, given in enumerate(specs, 1):
        spec = local_path(given)
        if not is_address(spec):
            refuse_cameras([spec])
        count = len(listing.items) + len(listing.refused)
        for found in _find(spec, own, output, listing):
            if found.path not in seen:
                seen.add(found.path)
                _take(found, number, names, listing)
        if len(listing.items) + len(listing.refused) == count:
            listing.silent.append(spec)
    if not listing.items and not listing.refused:
        left_out = f" ({left_out})" if (left_out := name_suffixes(+listing.left_out)) else ""
        raise SourceError(
            f"{', '.join(specs)}: no video or picture{left_out}; check the path, or give files by "
            "name"
        )
    return listing


def _take(found: Found, number: int, names: _Names, listing: Listing) -> None:
    if wrong := _why_refused(found.relative):
        listing.refuse(found.path, wrong, EXIT_USAGE)
        return
    about = found.about
    if about is None:
        try:
            stat = os.stat(found.path)
        except OSError as error:
            listing.refuse(found.path, f"cannot be read: {error.strerror}", EXIT_SOURCE)
            return
        about = ObjectInfo(stat.st_size, version_of(stat))
    elif isinstance(about, DetectVideoError):
        listing.refuse(found.path, str(about), about.exit_code)
        return
    listing.items.append(Item(names.choose(found, number), found.path, *about))


class _Names:
    """Choose names. If two names clash (``a`` with ``a`` or ``a/b``), the later one gets the
    SOURCE's number and a slash in front."""

    def __init__(self, known: dict[str, str]) -> None:
        self._known = known
        self._taken: set[str] = set(known.values())
        self._folders: set[str] = set()
        for name in self._taken:
            self._folders.update(names_above(name))

    def choose(self, found: Found, number: int) -> str:
        if (name := self._known.get(found.path)) is not None:
            return name
        name, root = found.relative, max(2, number)
        while self._clashes(name):
            name = f"{root}/{found.relative}"
            root += 1
        self._taken.add(name)
        self._folders.update(names_above(name))
        return name

    def _clashes(self, name: str) -> bool:
        return (
            name in self._taken
            or name in self._folders
            or any(above in self._taken for above in names_above(name))
        )


def names_above(name: str) -> Iterator[str]:
    """Yield ``a``, ``a/b`` for ``a/b/c``."""
    at = name.find("/")
    while at >= 0:
        yield name[:at]
        at = name.find("/", at + 1)


def leads_out(name: str) -> bool:
    """Return whether a relative path may lead out of its base folder."""
    return any(sign in f"/{name}/" for sign in ("//", "/./", "/../"))


def _why_refused(name: str) -> str | None:
    if not (name.isascii() and name.isprintable()):
        try:
            name.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8; rename it"
        if printable(name) != name:
            return "its name contains control characters, or what looks like a password; rename it"
    if leads_out(name):
        return "its name would lead outside the output folder; give its parent folder instead"
    if len(name) * 4 > LONGEST_PART and any(
        len(part.encode()) > LONGEST_PART for part in name.split("/")
    ):
        return f"a part of its name is longer than {LONGEST_PART} bytes; rename it"
    return None


def _find(spec: str, own: str, output: str, listing: Listing) -> Iterator[Found]:
    if is_address(spec):
        from detector.batch.stores import find_objects

        for base, found in find_objects(spec, LISTS, output, LIST_BYTES, listing.left_out):
            yield _as_found(base, found)
    elif os.path.isdir(spec):
        yield from _walk(os.path.abspath(spec), own, listing)
    elif os.path.isfile(spec):
        if spec.lower().endswith(LISTS):
            yield from _read_list(spec, own, output, listing)
        else:
            yield Found(os.path.basename(spec), os.path.abspath(spec))
    elif glob.has_magic(spec) and not os.path.lexists(spec):
        yield from _match(spec, own, listing)
    else:
        raise SourceError(f"{spec}: no such file or folder; check the path")


def _as_found(base: str, stored: Stored) -> Found:
    """Workers get the address as text. Refuse an address whose text cannot be parsed again."""
    place, about = stored
    relative = place.path[len(base) :]
    try:
        parse_address(str(place))
    except UsageError as error:
        about = error
    return Found(relative, str(place), about)


def _walk(folder: str, own: str, listing: Listing) -> Iterator[Found]:
    """Yield sorted files, except hidden files and outputs. Enter no folder twice, despite links."""
    entered: set[tuple[int, int]] = set()
    before = len(os.path.join(folder, ""))
    left = [folder]
    found: list[Found] = []
    while left:
        place = left.pop()
        try:
            about = os.stat(place)
            if (about.st_dev, about.st_ino) in entered or os.path.realpath(place) == own:
                continue
            if place != folder and is_output(place):
                continue
            entered.add((about.st_dev, about.st_ino))
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if _is_folder(entry):
                        left.append(entry.path)
                    elif listing.takes(entry.path):
                        found.append(Found(entry.path[before:], entry.path))
        except OSError as error:
            text = f"cannot be listed: {error.strerror}; check its permissions: ls -ld {place}"
            listing.refuse(place, text, EXIT_SOURCE)
    yield from sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _match(pattern: str, own: str, listing: Listing) -> Iterator[Found]:
    """Yield the files that match a glob, and the files in matching folders. Names are relative to
    the folder before the first wildcard."""
    parts = pattern.split(os.sep)
    plain = next(at for at, part in enumerate(parts) if glob.has_magic(part))
    base = os.path.abspath(os.sep.join([*parts[:plain], ""]))
    for path in sorted(glob.iglob(pattern, recursive=True)):
        path = os.path.abspath(path)
        if os.path.realpath(path) == own or os.path.realpath(path).startswith(own + os.sep):
            continue
        if os.path.isdir(path) or listing.takes(path):
            yield from _expand(path, base, own, listing)


def _expand(path: str, base: str, own: str, listing: Listing) -> Iterator[Found]:
    paths = [one.path for one in _walk(path, own, listing)] if os.path.isdir(path) else [path]
    yield from (Found(os.path.relpath(one, base), one) for one in paths)


def _read_list(file: str, own: str, output: str, listing: Listing) -> Iterator[Found]:
    """Yield the sources in a list file: one path or address per line, relative to the list; lines
    that begin with # are comments. Item names are relative to the common folder of all lines."""
    from detector.batch.stores import find_listed, lines_of

    text = read_text(file, "a list of sources", limit=LIST_BYTES)
    place = os.path.dirname(os.path.abspath(file))
    lines = [local_path(line) for line in lines_of(text)]
    addresses = [line for line in lines if is_address(line)]
    for base_of_all, stored in find_listed(addresses, output, listing.left_out):
        yield _as_found(base_of_all, stored)
    paths = [os.path.normpath(os.path.join(place, line)) for line in lines if not is_address(line)]
    if not paths:
        return
    base = os.path.commonpath([os.path.dirname(path) for path in dict.fromkeys(paths)])
    for path in paths:
        yield from _expand(path, base, own, listing)


class Shard(NamedTuple):
    number: int
    of: int

    def has(self, path: str) -> bool:
        """Return whether the shard has the item. This depends on the path alone."""
        digest = hashlib.sha256(path.encode(errors="surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number - 1

    def part_of(self, listing: Listing) -> Listing:
        if self == WHOLE:
            return listing
        return Listing(
            [item for item in listing.items if self.has(item.path)],
            [failure for failure in listing.refused if self.has(failure.source)],
            listing.silent,
            listing.left_out,
        )

    def __str__(self) -> str:
        return f"{self.number}-of-{self.of}"


WHOLE = Shard(1, 1)


def parse_shard(text: str | None) -> Shard:
    """Parse ``2/4``; None means everything. Raises UsageError."""
    if text is None:
        return WHOLE
    parts = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if parts is None or int(parts[1]) > int(parts[2]):
        raise UsageError(f"--shard {text}: write I/N, from 1/N to N/N; example: --shard 2/4")
    return Shard(int(parts[1]), int(parts[2]))
