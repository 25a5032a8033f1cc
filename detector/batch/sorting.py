"""OUT/sorted: the sources in folders by class (--sort).

OUT/sorted/person/cam1/a.jpg    a hard link, or a copy on another file system
"""

from __future__ import annotations

import filecmp
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from detector.batch import dataset
from detector.batch.layout import FILES, ROWS, SORTED, output_errors
from detector.batch.manifest import Row
from detector.batch.places import Outputs
from detector.core.errors import OutputError, UsageError
from detector.core.errors.unknown_names import refuse_unknown
from detector.core.run.outputs import mark_settings
from detector.core.sources._addresses import is_address

EMPTY, OTHER = "empty", "other"


def parse_order(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(word.strip() for word in text.split(","))


def check_order(order: Sequence[str], names: Sequence[str], paths: Iterable[str]) -> None:
    """Raise UsageError for an unknown class, and for sources that are no files here."""
    if order:
        refuse_unknown("--sort", "class", order, [EMPTY, OTHER, *names])
        if (away := next(filter(is_address, paths), None)) is not None:
            raise UsageError(f"--sort: {away} is not on this machine; omit it")


def sort_sources(outputs: Outputs, done: Iterable[Row], order: Sequence[str]) -> str:
    """Link each source into the folder of the first class of ``order`` that was found in it.

    Returns a summary. Raises OutputError.
    """
    folder, counts, kept = Path(outputs.home, SORTED), Counter[str](), 0
    for one in done:
        if (record := outputs.read_marker(one.name)) is not None:
            # Markers of 0.2.0 name no classes.
            rows = Path(outputs.home, FILES, one.name, ROWS)
            found = record.classes or dataset.classes_in(rows) if record.detections else (EMPTY,)
            wanted = _choose(order, found)
            stands_in = sort_source(folder, one.name, one.path, wanted)
            counts[stands_in] += 1
            kept += stands_in != wanted
    text = f"{folder}: " + ", ".join(f"{count} {name}" for name, count in counts.most_common())
    if kept:
        text += f"; {kept} kept where they were sorted before (to sort anew, remove {folder})"
    return text


def _choose(order: Sequence[str], classes: Container[str]) -> str:
    """Return the name of a folder, which the name of a class need not be."""
    found = next((word for word in order if word in classes), OTHER)
    return found.replace("/", "_").strip(".") or OTHER


def sort_source(folder: Path, name: str, path: str, wanted: str) -> str:
    """Return the folder where the source stands now. Other files stay, and so does a source that
    is in one of the folders already."""
    target = folder / wanted / name
    for above in itertools.takewhile(lambda one: one != folder.parent, target.parents):
        if above.is_symlink():
            raise OutputError(f"{above}: is a link, but sorted files stay in OUT; remove it")
    with output_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        mark_settings(folder, SORTED)  # so that no later job takes the links for sources
        for other in sorted(folder.iterdir()):
            if _is_same(path, other / name):
                return other.name
        free = target
        for number in itertools.count(2):
            if _is_same(path, free) or _put(path, free):
                break
            free = target.with_stem(f"{target.stem}-{number}")
    return wanted


def _is_same(path: str, other: Path) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.path.samefile(path, other) or filecmp.cmp(path, other, shallow=False)
    return False


def _put(path: str, target: Path) -> bool:
    """Link or copy the source to ``target``. Return whether that name was free."""
    if os.path.lexists(target):
        return False
    try:
        os.link(os.path.realpath(path), target)
    except OSError:  # another file system, or one without links
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.copy2(path, temporary)
        os.rename(temporary, target)
    return True
