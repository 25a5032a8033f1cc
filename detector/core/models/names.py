"""Find class names for a model file without names: in --names, a file next to it, or our lists."""

from __future__ import annotations

import os
from pathlib import Path

from detector.core.errors import ModelError
from detector.core.errors.reading import read_bytes
from detector.core.errors.text import counted
from detector.core.models import catalogue


def find_names(
    model: Path, classes: int, given: Path | None = None
) -> tuple[tuple[str, ...], list[str]]:
    file = given or model.with_suffix(".names")
    if given is not None or os.path.isfile(file):
        names = read_names(file)
        if len(names) != classes:
            raise ModelError(
                f"{file}: holds {counted(len(names), 'name')}, but {model.name} has "
                f"{counted(classes, 'class')}; give --names FILE with one name per class"
            )
        return names, []
    for path in _likely_files(model, classes):
        if os.path.isfile(path) and len(names := read_names(path)) == classes:
            return names, []
    warning = (
        f"{model.name} has no names for its {counted(classes, 'class')}: they are called class0, "
        "class1, ...; give --names FILE"
    )
    return tuple(f"class{number}" for number in range(classes)), [warning]


def warn_of_coco(model: Path, classes: int) -> str:
    return (
        f"{model.name} has no class names: COCO's {classes} names are assumed; use --names FILE "
        "for others"
    )


def _likely_files(model: Path, classes: int) -> list[Path]:
    stem = model.stem.lower()
    if classes == 80:  # COCO
        return [model.with_name("coco.names"), catalogue.folder() / "names" / "coco.names"]
    if classes == 2 and ("person" in stem or "vehicle" in stem or stem == "street"):
        return [catalogue.folder() / "names" / "person-vehicle.names"]
    return []


def read_names(path: Path) -> tuple[str, ...]:
    """Read one name per line, ignoring empty lines at the end. Raises ModelError for a bad line."""
    data = read_bytes(path, "a list of names", error=ModelError, cure="give --names FILE")
    lines = [
        line.strip() for line in data.decode("utf-8-sig", errors="replace").rstrip().splitlines()
    ]
    for number, line in enumerate(lines, 1):
        if not line or not line.isprintable():
            raise ModelError(
                f"{path}:{number}: no name on this line; write one class name per line"
            )
    return tuple(lines)
