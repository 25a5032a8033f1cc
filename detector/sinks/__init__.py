"""What is written: annotated video, annotated pictures, rows. One file a sink, found by its name."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from detector.errors import UsageError
from detector.sinks.base import Sink


def names() -> list[str]:
    """The sinks there are: this folder's files."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if name != "base" and not name.startswith("_"))


def find(name: str) -> type[Sink]:
    """The class of a sink, e.g. for its ``suffix``: ``VideoSink`` in ``video.py``. Imports that one file."""
    if name not in names():
        raise UsageError(f"no output is called {name!r}; choose from {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    kind: type[Sink] = getattr(module, f"{name.capitalize()}Sink")
    return kind


def open(name: str, path: Path, **options: Any) -> Sink:
    """A sink that will write ``path``. Nothing is on disk until its own ``open(info)``."""
    return find(name)(path, **options)
