"""The trackers by their names in ``--track``."""

from __future__ import annotations

from collections.abc import Mapping

from detector.tracks.bytetrack import BytetrackTracker
from detector.tracks.ocsort import OcsortTracker
from detector.tracks.sort import SortTracker
from detector.tracks.tracker import Tracker

KINDS: Mapping[str, type[Tracker]] = {
    "bytetrack": BytetrackTracker,
    "ocsort": OcsortTracker,
    "sort": SortTracker,
}
