"""The trackers of ``--track``. A file ``NAME.py`` here has the class ``NameTracker``."""

from __future__ import annotations

from collections.abc import Sequence

from detector.core import wings
from detector.tracks.tracker import Tracker


def names() -> Sequence[str]:
    return wings.list_files(*__path__)


def find(name: str) -> type[Tracker]:
    kind: type[Tracker] = wings.load(f"{__name__}.{name}:{name.capitalize()}Tracker")
    return kind
