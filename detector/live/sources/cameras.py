"""Reads the cameras of a command: addresses on the command line, and ``cameras.yaml``."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote as percent
from urllib.parse import urlsplit

from detector.core.errors import DetectVideoError, SourceError, UsageError
from detector.core.errors.addresses import Address, host_of
from detector.core.errors.parsing import quote, refuse_unknown
from detector.core.errors.reading import read_text
from detector.core.errors.secrets import keep_secret
from detector.core.errors.text import split_list
from detector.core.errors.yaml_parsing import parse_yaml
from detector.core.run.tiling import Tiling
from detector.core.sources._forms import STANDARD_INPUT, is_web
from detector.core.sources._network.addresses import last_part_of, opening_of, scheme_of
from detector.core.sources._network.options import PERSONAL, SHARED
from detector.live.events.filters import read_filters
from detector.live.sources.base import FILE, NAME, NETWORK, WEBCAM, Camera

SUFFIXES = (".yaml", ".yml")
LONGEST_NAME = 40
MOST_CAMERAS = 256
MOST_OPTIONS = 64
MOST_POLYGONS, MOST_POINTS = 64, 256
SHORTEST_SECRET = 8  # characters; shorter header values, such as "close", are not secrets
LARGEST_SIDE = 16384  # pixels
FASTEST = 1000  # pictures per second
WITH_VARIABLES = ("url", "record_url", "password", "options")  # only these may have ${VARIABLES}
SECRET_FIELDS = ("options",)  # fields whose values may be secret, so messages omit them
_WEBCAM = re.compile(r"\d{1,3}|/dev/video\d+")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_camera_list(spec: str) -> bool:
    """Return whether ``spec`` is a YAML file with the key ``cameras``. Raises UsageError."""
    if not spec.lower().endswith(SUFFIXES) or not os.path.isfile(spec):
        return False
    content = parse_yaml(read_text(spec, "a list of cameras"), spec)
    return isinstance(content, dict) and "cameras" in content


def make_cameras(
    specs: Sequence[str], loop: bool = False, errors: list[DetectVideoError] | None = None
) -> tuple[Camera, ...]:
    """Return a command's cameras; ``loop`` allows files. Raises UsageError or SourceError, with
    further errors as notes. If ``errors`` is given, adds all errors there and raises none."""
    cameras: list[Camera] = []
    found: list[DetectVideoError] = [] if errors is None else errors
    hosts = Counter(host_of(Address(spec)) for spec in specs)
    shared = {unique_name(host, (), "cam").lower() for host, n in hosts.items() if host and n > 1}
    for spec in specs:
        with collect(found):
            if is_camera_list(spec):
                for camera in read_cameras(spec, found, loop):
                    _refuse_duplicate(spec, camera.name, cameras)
                    cameras.append(camera)
                continue
            kind = FILE if loop and _is_web_file(spec) else _find_kind(spec, loop)
            address = Address(spec)
            if kind is None:
                raise UsageError(f"{address}: {_why_no_camera(spec)}")
            check_address(kind, address)
            taken = shared | {camera.name.lower() for camera in cameras}
            cameras.append(Camera(_make_name(kind, address, taken), kind, address))
    if errors is None:
        raise_all(found)
    return tuple(cameras)


def _find_kind(spec: str, loop: bool) -> str | None:
    if _WEBCAM.fullmatch(spec):  # but ``./0`` is a file
        return WEBCAM
    if scheme_of(spec) is not None:
        return NETWORK
    return FILE if loop and spec != STANDARD_INPUT else None


def _is_web_file(spec: str) -> bool:
    if not is_web(spec):
        return False
    from detector.core.sources._answers import FILE as FINITE
    from detector.core.sources._answers import REFUSED, identify

    answer = identify(spec)
    if answer.kind == REFUSED:
        raise SourceError(answer.error)
    return answer.kind == FINITE


def _why_no_camera(spec: str) -> str:
    if spec == STANDARD_INPUT:
        return "standard input is not a camera; run it on its own, without --loop"
    return "is not a camera; add --loop to play a file as one"


def check_address(kind: str, address: Address) -> None:
    if kind == NETWORK:
        try:
            opening_of(address.whole)
        except SourceError as error:
            raise SourceError(f"{address}: {error}") from error


def _make_name(kind: str, address: Address, taken: set[str]) -> str:
    """Derive a name: cam0 for webcam 0, a file's stem, an address's host. If the host is taken,
    append the last part of the address's path."""
    if kind == WEBCAM:
        digits = re.search(r"\d+$", address.whole)
        base = f"cam{digits[0] if digits else ''}"
    elif is_web(address.whole) and kind == FILE:
        base = Path(urlsplit(address.whole).path).stem
    elif kind == NETWORK:
        base = host_of(address)
        if unique_name(base, (), "cam").lower() in taken:
            base = f"{base}-{last_part_of(address)}"
    else:
        base = Path(address.whole).stem
    return unique_name(base, taken, "cam")


def unique_name(text: str, taken: Container[str], default: str) -> str:
    """Turn ``text`` into a camera's name, numbered if taken (ignoring case)."""
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:LONGEST_NAME] or default
    name, number = base, 1
    while name.lower() in taken:
        number += 1
        ending = f"-{number}"
        name = base[: LONGEST_NAME - len(ending)] + ending
    return name


def read_cameras(
    path: str | Path, errors: list[DetectVideoError], loop: bool = False
) -> list[Camera]:
    """Read a ``cameras.yaml`` without its invalid parts. Adds each error to ``errors``, with the
    path of the key. Raises UsageError or SourceError if there is no list."""
    events: Mapping[str, Any] = {}
    content = parse_yaml(read_text(path, "a list of cameras"), path)
    if not isinstance(content, dict) or "cameras" not in content:
        raise UsageError(f'{path}: a list of cameras needs the top-level key "cameras"')
    with collect(errors):
        refuse_unknown(path, "key", content, ("cameras", "events"))
    with collect(errors):
        events = read_filters(f"{path}: events", content.get("events", {}))
    entries = list(_list_entries(f"{path}: cameras", content["cameras"]))
    if not entries:
        raise UsageError(f"{path}: cameras: is empty; add a camera with a name and a url")
    if len(entries) > MOST_CAMERAS:
        raise UsageError(f"{path}: {len(entries)} cameras, more than {MOST_CAMERAS}; remove some")
    cameras: list[Camera] = []

    def add(where: str, fields: Mapping[str, Any]) -> None:
        camera = _Reader(where, fields, loop).camera(cameras)
        camera = replace(camera, events={**events, **camera.events})
        _refuse_duplicate(where, camera.name, cameras)
        cameras.append(camera)

    for where, entry in entries:
        before = len(errors)
        with collect(errors):
            add(where, entry)
        if len(errors) == before:
            continue
        login = {key: entry[key] for key in ("user", "password") if key in entry}
        valid = {"url": "rtsp://camera", **login}
        for key in entry:  # read each field alone, to find all errors
            with collect(errors):
                _Reader(where, {**valid, key: entry[key]}, loop).camera(())
                valid[key] = entry[key]
        with collect(errors):
            add(where, valid)
    return cameras


@contextmanager
def collect(errors: list[DetectVideoError]) -> Iterator[None]:
    try:
        yield
    except DetectVideoError as error:
        errors.append(error)


def raise_all(errors: Sequence[DetectVideoError]) -> None:
    """Raise the first error, if any. The others become its notes, printed one per line."""
    for text in [*dict.fromkeys(map(str, errors))][1:]:
        errors[0].add_note(text)
    if errors:
        raise errors[0]


def _list_entries(where: str, content: Any) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield the path and fields of each camera in ``content``, a list or a mapping."""
    if isinstance(content, dict):
        for name, fields in content.items():
            fields = {"url": fields} if isinstance(fields, str | int) else fields
            here = f"{where}.{Address(str(name)).shown[:80]}"  # the name may be an address
            if not isinstance(fields, dict):
                raise UsageError(f"{here}: needs a url")
            if "name" in fields:
                raise UsageError(f"{here}.name: remove this; the camera's key is already its name")
            yield here, {"name": name, **fields}
    elif isinstance(content, list):
        for place, fields in enumerate(content):
            fields = {"url": fields} if isinstance(fields, str | int) else fields
            if not isinstance(fields, dict):
                raise UsageError(f"{where}[{place}]: needs a name and a url")
            yield f"{where}[{place}]", fields
    elif content is not None:
        raise UsageError(f'{where}: is not a list; write "- name: ..." and "url: ..." below it')


def _refuse_duplicate(where: str, name: str, cameras: Iterable[Camera]) -> None:
    if any(camera.name.lower() == name.lower() for camera in cameras):
        raise UsageError(
            f"{where}: the name {name} is used twice (case is ignored, because names become "
            "folders); choose another one"
        )


class _Reader:
    def __init__(self, where: str, fields: Mapping[str, Any], loop: bool) -> None:
        self._where, self._fields, self._loop = where, fields, loop

    def camera(self, before: Sequence[Camera]) -> Camera:
        refuse_unknown(self._where, "key", self._fields, sorted(FIELDS))
        for key, value in self._fields.items():
            if key not in WITH_VARIABLES and "${" in str(value):
                self._refuse(key, f"variables are expanded only in {', '.join(WITH_VARIABLES)}")
        url = self._address("url")
        if url is None:
            self._refuse("url", "is missing: give the address of the camera")
        kind = _find_kind(url.whole, self._loop)
        if kind is None:
            self._refuse("url", f"{url} {_why_no_camera(url.whole)}")
        self._check("url", kind, url)
        record = self._address("record_url")
        if record is not None and _find_kind(record.whole, False) != NETWORK:
            self._refuse("record_url", f"{record} is not the address of a stream (rtsp://...)")
        if record is not None:
            self._check("record_url", NETWORK, record)
        read = {key: self._read(key, reader) for key, reader in _READERS.items()}
        read["events"] = read_filters(f"{self._where}.events", self._fields.get("events", {}))
        if read["options"]:
            read["options"] = self._expand_options(read["options"])
        name = self._name() or _make_name(kind, url, {camera.name.lower() for camera in before})
        return Camera(name, kind, url, record, **{k: v for k, v in read.items() if v is not None})

    def _refuse(self, key: str, why: str) -> NoReturn:
        raise UsageError(f"{self._where}.{key}: {why}")

    def _check(self, key: str, kind: str, address: Address) -> None:
        try:
            check_address(kind, address)
        except SourceError as error:
            raise SourceError(f"{self._where}.{key}: {error}") from error

    def _read(self, key: str, reader: Callable[[Any], Any]) -> Any:
        value = self._fields.get(key)
        try:
            return None if value is None else reader(value)
        except (TypeError, ValueError, ArithmeticError) as error:
            self._refuse(key, str(error) if key in SECRET_FIELDS else f"{quote(value)} {error}")

    def _name(self) -> str | None:
        name = self._fields.get("name")
        if name is None:
            return None
        if isinstance(name, bool) or not re.fullmatch(NAME, str(name)):
            self._refuse(
                "name", f"{quote(name)} is not a name of 1 to 40 characters: A-Z, a-z, 0-9, _ or -"
            )
        return str(name)

    def _address(self, key: str) -> Address | None:
        value = self._fields.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value):
            self._refuse(key, "is not an address")
        address = self._expand(key, str(value))
        user, password = self._fields.get("user"), self._fields.get("password")
        if user is not None or password is not None:
            address = self._with_login(key, address, str(user or ""), str(password or ""))
        return Address(address)

    def _expand_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Expand variables, and register personal values as secrets."""
        expanded = {name: self._expand("options", text) for name, text in options.items()}
        for text in expanded.values():
            Address(text)  # registers a proxy's login as a secret
        for name in PERSONAL & expanded.keys():
            for secret in re.split(r"[\r\n;]+", expanded[name]):
                _, _, value = secret.partition(":" if name == "headers" else "=")
                if len(value := value.strip()) >= SHORTEST_SECRET:
                    keep_secret(value)
        return expanded

    def _with_login(self, key: str, address: str, user: str, password: str) -> str:
        password = self._expand("password", password)
        if password:
            keep_secret(password)
        scheme, mark, rest = address.partition("://")
        if not mark:
            self._refuse("user", "a webcam or file has no login")
        if "@" in re.split(r"[/?#]", rest)[0]:
            self._refuse(key, "already contains a login; remove it, or the keys user and password")
        return f"{scheme}://{percent(user, safe='')}:{percent(password, safe='')}@{rest}"

    def _expand(self, key: str, text: str) -> str:
        """Replace ${VARIABLES} by their values, which are not expanded further."""
        in_login = re.match(r"[a-z][a-z0-9+.-]*://[^/?#]*@", text, re.IGNORECASE)
        end_of_login = in_login.end() if in_login and key != "password" else 0

        def read_variable(match: re.Match[str]) -> str:
            name = match[1]
            if not _VARIABLE_NAME.fullmatch(name):
                self._refuse(key, f"{quote(match[0])} is not a variable; write ${{NAME}}")
            if not (value := os.environ.get(name)):
                self._refuse(key, f"the environment variable {name} is not set; set it")
            keep_secret(value)
            return percent(value, safe="") if match.start() < end_of_login else value

        return _VARIABLE.sub(read_variable, text)


def _read_options(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MOST_OPTIONS:
        raise ValueError("is not a mapping of FFmpeg options (rtsp_transport: udp)")
    options = {}
    for place, (name, setting) in enumerate(value.items(), 1):
        if not isinstance(setting, str | int | float):
            shown = name if name in PERSONAL | SHARED else f"entry {place}"
            cure = ' (headers: "NAME: VALUE\\r\\n")' if name == "headers" else ""
            raise ValueError(f"{shown} is neither text nor a number; write a single text{cure}")
        options[str(name)] = str(int(setting)) if isinstance(setting, bool) else str(setting)
    return options


def _read_classes(value: Any) -> tuple[str, ...]:
    items = split_list(value) if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise ValueError("is not a list of classes")
    if not all(isinstance(item, str | int) for item in items):
        raise ValueError("contains an invalid class name")
    return tuple(str(item).strip() for item in items)


def _read_size(value: Any) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", str(value))
    size = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(0 < side <= LARGEST_SIDE for side in size):
        raise ValueError("is not a size in pixels (1280x720)")
    return size


def _read_rate(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("is not a number of frames per second")
    if not re.fullmatch(r"\d{1,9}(\.\d{1,17}|/\d{1,9})?", text := str(value)):
        raise ValueError("is not a number of frames per second (5, 12.5, 30000/1001)")
    rate = Fraction(text)
    if not 0 < rate <= FASTEST:
        raise ValueError(f"must be above 0 and at most {FASTEST}")
    return rate


def _read_tiles(value: Any) -> str:
    try:
        return Tiling.parse(str(value)).text
    except UsageError:
        raise ValueError("is not a number of tiles (none, 2x2, 3x2)") from None


def _read_masks(value: Any) -> tuple[tuple[tuple[float, float], ...], ...]:
    if not isinstance(value, list) or len(value) > MOST_POLYGONS:
        raise ValueError(f"is not a list of at most {MOST_POLYGONS} polygons")
    return tuple(_read_polygon(polygon) for polygon in value)


def _read_polygon(value: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or not 3 <= len(value) <= MOST_POINTS:
        raise ValueError(f"has a polygon that is not a list of 3 to {MOST_POINTS} points")
    for point in value:
        if not isinstance(point, list) or len(point) != 2:
            raise ValueError("has a point that is not [x, y]")
        if not all(type(part) in (int, float) and 0 <= part <= 1 for part in point):
            raise ValueError("has a point outside 0 to 1; give fractions of width and height")
    return tuple((float(x), float(y)) for x, y in value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "options": _read_options,
    "classes": _read_classes,
    "size": _read_size,
    "rate": _read_rate,
    "masks": _read_masks,
    "tiles": _read_tiles,
}
FIELDS = {"name", "url", "record_url", "user", "password", "events", *_READERS}


@dataclass(frozen=True, slots=True)
class Changes:
    added: tuple[Camera, ...]
    removed: tuple[Camera, ...]
    changed: tuple[tuple[Camera, Camera], ...]  # (before, after) with the same name

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def compare_cameras(before: Iterable[Camera], after: Iterable[Camera]) -> Changes:
    """Compare by name, ignoring case and order."""
    old = {camera.name.lower(): camera for camera in before}
    new = {camera.name.lower(): camera for camera in after}
    return Changes(
        added=tuple(camera for name, camera in new.items() if name not in old),
        removed=tuple(camera for name, camera in old.items() if name not in new),
        changed=tuple(
            (old[name], camera)
            for name, camera in new.items()
            if name in old and old[name] != camera
        ),
    )
