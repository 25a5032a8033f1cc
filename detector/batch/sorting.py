"""OUT/sorted: the sources in folders by class (--sort).

OUT/sorted/person/cam1/a.jpg    a hard link to the source, or a copy where no hard link is possible
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from detector.batch import dataset
from detector.batch.layout import FILES, ROWS, SORTED
from detector.batch.manifest import ManifestRow
from detector.batch.places import Outputs
from detector.core.errors import OutputError, UsageError
from detector.core.errors.parsing import refuse_unknown
from detector.core.sinks._partial import output_errors
from detector.core.sources._addresses import is_address

EMPTY, OTHER = "empty", "other"


def check_order(order: Sequence[str], names: Sequence[str], paths: Iterable[str]) -> None:
    """Raise UsageError for an unknown class, and for a source that is not a local file."""
    refuse_unknown("--sort", "class", order, [EMPTY, OTHER, *names])
    if order and (away := next(filter(is_address, paths), None)) is not None:
        raise UsageError(f"--sort: {away} is not a local file; download it, or omit --sort")


def sort_sources(outputs: Outputs, done: Iterable[ManifestRow], order: Sequence[str]) -> str:
    """Put each source into the folder of the first class of ``order`` that it contains.

    Returns a summary. Raises OutputError.
    """
    folder, counts, kept = Path(outputs.home, SORTED), Counter[str](), 0
    for one in done:
        if (record := outputs.read_marker(one.name)) is not None:
            # Markers of version 0.2.0 have no classes, so we read the classes from the rows.
            rows = Path(outputs.home, FILES, one.name, ROWS)
            found = record.classes or dataset.classes_in(rows) if record.detections else (EMPTY,)
            wanted = next((word for word in order if word in found), OTHER)
            wanted = wanted.replace("/", "_").strip(".") or OTHER
            placed = sort_source(folder, one.name, one.path, wanted)
            counts[placed] += 1
            kept += placed != wanted
    text = f"{folder}: " + ", ".join(f"{count} {name}" for name, count in counts.most_common())
    again = f"; {kept} kept in the folder of an earlier run (to sort again, remove {folder})"
    return text + again if kept else text


def sort_source(folder: Path, name: str, path: str, wanted: str) -> str:
    """Link or copy the source to ``wanted``, unless it was sorted before. Return its folder."""
    from detector.core.run.outputs import mark_settings

    target = folder / wanted / name
    with output_errors(target):
        folder.mkdir(exist_ok=True)
        mark_settings(folder, SORTED)  # so that no later job reads the links as sources
        for other in folder.iterdir():
            if os.path.lexists(other / name):
                return other.name
        if not os.path.realpath(target).startswith(f"{os.path.realpath(folder)}{os.sep}"):
            raise OutputError(f"{folder / wanted}: leads out of OUT by a link; remove the link")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(os.path.realpath(path), target)
        except OSError:  # another file system, or one without hard links
            temporary = target.with_name(f".{target.name}.tmp")
            shutil.copy2(path, temporary)
            os.rename(temporary, target)
    return wanted
