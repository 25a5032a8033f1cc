"""Resolve addresses in SOURCES: objects below a prefix, patterns, single objects and lists. S3's
keys are read in pages, so memory does not grow with the number of keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any, NamedTuple

from detector.core.errors import DetectVideoError, SourceError, UsageError
from detector.core.sources._addresses import MAGIC, STORES, Location, parse_address
from detector.core.sources._contents import VIDEOS
from detector.core.sources._left_out import suffix_of
from detector.core.sources._storage import ObjectInfo, open_store, store_errors, to_info
from detector.core.sources.stored import open_place, read_info

AT_ONCE = 32  # concurrent requests for the objects of a list
CHUNK = 1000
PAGE = 1000  # keys per page, the most that S3 gives


class BucketObject(NamedTuple):
    """An object. ``about``: its size and version, or the reason why it is refused."""

    place: Location
    about: ObjectInfo | DetectVideoError


class Named(NamedTuple):
    """An object of a SOURCE. ``base``: the start that all paths of the SOURCE share."""

    base: str
    found: BucketObject


def walk(place: Location, *, flat: bool = False) -> Iterator[tuple[str, ObjectInfo]]:
    """Yield (key, about) of the objects whose keys start with ``place.key``, sorted by key."""
    store = open_store(place)
    with store_errors(place):
        if place.scheme == "s3":
            yield from _walk_s3(store, place, {"Delimiter": "/"} if flat else {})
            return
        folder = f"{place.host}/{place.key.rpartition('/')[0]}".rstrip("/")
        before = len(place.host) + 1
        found = store.find(folder, detail=True, maxdepth=1 if flat else None)
        for path, info in sorted(found.items()):
            if (key := path[before:]).startswith(place.key):
                yield key, to_info(info)


def _walk_s3(store: Any, place: Location, more: dict[str, str]) -> Iterator[tuple[str, ObjectInfo]]:
    token: dict[str, str] = {}
    while True:
        page = store.call_s3(
            "list_objects_v2", Bucket=place.host, Prefix=place.key, MaxKeys=PAGE, **more, **token
        )
        for entry in page.get("Contents", ()):
            yield entry["Key"], to_info({"size": entry["Size"], "ETag": entry["ETag"]})
        if not page.get("IsTruncated"):
            return
        token = {"ContinuationToken": page["NextContinuationToken"]}


def find_objects(
    text: str, lists: Sequence[str], own: str, limit: int, left_out: Counter[str]
) -> Iterator[Named]:
    """Yield the videos of one SOURCE. ``lists``: suffixes of list files. ``limit``: their largest
    size in bytes. ``own``: the job's output, which is skipped. ``left_out`` counts other objects by
    suffix."""
    place = parse_address(text)
    if place.scheme in STORES and MAGIC.search(place.key):
        yield from _match(place, own, left_out)
        return
    if place.scheme in STORES and _is_folder(place):
        yield from _below(place, own, left_out)
        return
    about = _look_or_folder(place)
    if about is None:
        yield from _below(place._replace(key=f"{place.key}/"), own, left_out)
    elif place.key.lower().endswith(tuple(lists)):
        yield from _read_list(place, own, limit, left_out)
    else:
        yield Named(f"{place.path.rpartition('/')[0]}/", BucketObject(place, about))


def _look_or_folder(place: Location) -> ObjectInfo | None:
    try:
        return read_info(place)
    except SourceError as error:
        if place.scheme in STORES and "no such" in str(error):
            folder = place._replace(key=f"{place.key}/")
            if next(walk(folder), None) is not None:
                return None
        raise


def _below(place: Location, own: str, left_out: Counter[str]) -> Iterator[Named]:
    base = place.path
    for key, about in walk(place):
        if not _is_own(place, key, own) and _takes(key[len(place.key) :], left_out):
            yield Named(base, BucketObject(place._replace(key=key), about))


def _match(place: Location, own: str, left_out: Counter[str]) -> Iterator[Named]:
    """Yield the videos that match or whose folder matches. ``base`` ends before any wildcard."""
    from fsspec.utils import glob_translate

    found = MAGIC.search(place.key)
    assert found is not None
    prefix = place._replace(key=place.key[: found.start()])
    folder = prefix.key.rpartition("/")[0]
    base = place._replace(key=f"{folder}/" if folder else "")
    try:
        wanted = re.compile(glob_translate(place.key))
    except (ValueError, re.error) as error:
        raise UsageError(f"{place}: invalid pattern: {error}") from error
    for key, about in walk(prefix):
        if _is_own(place, key, own) or not any(map(wanted.match, (key, *_folders(key)))):
            continue
        if _takes(key[len(base.key) :], left_out):
            yield Named(base.path, BucketObject(place._replace(key=key), about))


def _folders(key: str) -> Iterator[str]:
    """Yield ``a/b``, ``a`` for ``a/b/c``."""
    while (at := key.rfind("/")) >= 0:
        key = key[:at]
        yield key


def _takes(relative: str, left_out: Counter[str]) -> bool:
    """Return whether a key names a video. Count the suffixes of other files that are not hidden."""
    hidden = any(part[:1] == "." and part not in (".", "..") for part in relative.split("/"))
    if hidden or not relative or relative.endswith("/"):
        return False
    taken = relative.lower().endswith(VIDEOS)
    left_out[suffix_of(relative)] += not taken
    return taken


def _is_own(place: Location, key: str, own: str) -> bool:
    return str(place._replace(key=key)).startswith(f"{own.rstrip('/')}/")


def _read_list(place: Location, own: str, limit: int, left_out: Counter[str]) -> Iterator[Named]:
    stored = open_place(place)
    try:
        if stored.size > limit:
            raise UsageError(f"{place}: the list has {stored.size} bytes; the limit is {limit}")
        data = stored.open().pread(stored.size, 0)
    finally:
        stored.close()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: the list of sources is not UTF-8 text") from error
    yield from find_listed(lines_of(text), own, left_out)


def lines_of(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def find_listed(lines: Sequence[str], own: str, left_out: Counter[str]) -> Iterator[Named]:
    """Yield the object at each address, or all videos below it if the address ends in a slash."""
    places = list(dict.fromkeys(map(parse_address, lines)))
    levels = zip(*(place.path.split("/")[:-1] for place in places), strict=False)
    common = takewhile(lambda names: len(set(names)) == 1, levels)
    base = "".join(f"{names[0]}/" for names in common)  # h/a/ for h/a/b and h/a/c/d
    single = [one for one in places if one.scheme not in STORES or not _is_folder(one)]
    for found in _look_at(single):
        yield Named(base, found)
    for place in places:
        if place.scheme in STORES and _is_folder(place):
            for _, found in _below(place, own, left_out):
                yield Named(base, found)


def _is_folder(place: Location) -> bool:
    return not place.key or place.key.endswith("/")


def _look_at(places: Sequence[Location]) -> Iterator[BucketObject]:
    """Raises SourceError if a store refuses our credentials for all objects of the first chunk."""
    is_first = True
    if not places:
        return
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for start in range(0, len(places), CHUNK):
            chunk = places[start : start + CHUNK]
            for one in {place.scheme: place for place in chunk if place.scheme in STORES}.values():
                open_store(one)  # open each store once here, not in each of the 32 threads
            results = list(threads.map(_ask, chunk))
            refused = [one.about for one in results if isinstance(one.about, DetectVideoError)]
            if is_first and len(refused) == len(chunk) and "credentials" in str(refused[0]):
                raise refused[0]
            is_first = False
            yield from results


def _ask(place: Location) -> BucketObject:
    try:
        return BucketObject(place, read_info(place))
    except DetectVideoError as error:
        return BucketObject(place, error)
