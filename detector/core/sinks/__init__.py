"""Sinks write results: annotated video and pictures, rows. Each file here is one sink."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core import wings
from detector.core.errors import UsageError

if TYPE_CHECKING:
    from detector.core.sinks.base import Sink
    from detector.core.types import SourceInfo


# Outputs saved without --save, by the kind of source.
DEFAULTS = {"video": ("jsonl", "video"), "pictures": ("jsonl", "pictures")}


def names() -> list[str]:
    return list(wings.list_files(*__path__))


def find(name: str) -> type[Sink]:
    """Return a sink's class: ``VideoSink`` for ``video``. Raises UsageError for an unknown name."""
    if name not in names():
        raise UsageError(f"unknown output {name!r}; choose from {', '.join(names())}")
    sink: type[Sink] = wings.load(f"{__name__}.{name}:{name.capitalize()}Sink")
    return sink


def find_all() -> list[type[Sink]]:
    """Return all sink classes, in opening order."""
    return in_order(names())


def in_order(wanted: Iterable[str]) -> list[type[Sink]]:
    """Return the classes of some sinks, in opening order. Raises UsageError for an unknown name."""
    return sorted(map(find, wanted), key=lambda sink: (sink.order, sink.name))


def defaults(kind: str) -> list[type[Sink]]:
    return in_order(DEFAULTS[kind])


def find_by_suffix(suffix: str, wanted: Collection[str] = ()) -> type[Sink] | None:
    """Return the sink for a suffix (".json"): one of ``wanted``, else that with fewest suffixes."""
    fitting = [sink for sink in find_all() if suffix.lower() in sink.suffixes]
    asked = [sink for sink in fitting if sink.name in wanted]
    return min(asked, key=lambda sink: len(sink.suffixes)) if asked else next(iter(fitting), None)


def open(name: str, path: Path, **options: Any) -> Sink:
    """Create a sink that will write ``path``. Nothing is on disk until its own ``open(info)``."""
    return find(name)(path, **options)


def open_all(paths: Mapping[str, Path], info: SourceInfo, options: Mapping[str, Any]) -> list[Sink]:
    """Open the sinks of ``paths`` (name -> path) in order. If one fails, the others are aborted."""
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
