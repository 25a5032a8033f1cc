"""Sinks write results, such as video or rows. Each module in a ``sinks`` folder is one sink."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core import wings
from detector.core.errors import UsageError

if TYPE_CHECKING:
    from detector.core.sinks.base import Sink
    from detector.core.types import SourceInfo


# What a run saves if --save is not given, by the kind of source.
DEFAULTS = {"video": ("jsonl", "video"), "pictures": ("jsonl", "pictures")}


def names() -> list[str]:
    return sorted(_places(*__path__))


@cache
def _places(*folders: str) -> Mapping[str, str]:
    """Map each sink's name to its module, without importing it."""
    ours = {name: f"{__name__}.{name}" for name in wings.list_files(*folders)}
    return {**ours, **wings.find_files("sinks")}


def find(name: str) -> type[Sink]:
    """Return a sink's class (``VideoSink`` for ``video``). Raises UsageError for unknown names."""
    module = _places(*__path__).get(name)
    if module is None:
        raise UsageError(f"unknown output {name!r}; choose from {', '.join(names())}")
    sink: type[Sink] = wings.load(f"{module}:{name.capitalize()}Sink")
    return sink


def find_all() -> list[type[Sink]]:
    """Return all sink classes, in opening order."""
    return in_order(names())


def in_order(names: Iterable[str]) -> list[type[Sink]]:
    """Return sink classes in opening order. Raises UsageError for an unknown name."""
    return sorted(map(find, names), key=lambda sink: (sink.order, sink.name))


def defaults(kind: str) -> list[type[Sink]]:
    return in_order(DEFAULTS[kind])


def find_by_suffix(suffix: str, preferred: Collection[str] = ()) -> type[Sink] | None:
    """Return the sink for files with a suffix (".json"): the ``preferred`` sink with the fewest
    suffixes, else the first in opening order."""
    fitting = [sink for sink in find_all() if suffix.lower() in sink.suffixes]
    named = [sink for sink in fitting if sink.name in preferred]
    return min(named, key=lambda sink: len(sink.suffixes)) if named else next(iter(fitting), None)


def open(name: str, path: Path, **options: Any) -> Sink:
    """Create a sink that will write ``path``. Its ``open(info)`` creates the first file."""
    return find(name)(path, **options)


def open_all(paths: Mapping[str, Path], info: SourceInfo, options: Mapping[str, Any]) -> list[Sink]:
    """Open a sink for each (name, path) in order. If one fails, abort the others."""
    from detector.core.sinks.base import only_detections

    kinds = {name: find(name) for name in paths}
    if any("names" in kind.options for kind in kinds.values()):
        from detector.core.sinks._naming import FrameNames

        options = {**options, "names": FrameNames()}
    opened: list[Sink] = []
    try:
        for name, path in paths.items():
            kind = kinds[name]
            given = {key: options[key] for key in kind.options if key in options}
            if options.get("only_detections") and "only_detections" not in kind.options:
                kind = only_detections(kind)
            sink = kind(path, **given)
            sink.open(info)
            opened.append(sink)
    except BaseException:
        for sink in opened:
            sink.abort()
        raise
    return opened
