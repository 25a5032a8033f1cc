"""Files that the package carries in ``detector.cfg``: model descriptions, darknet cfgs, lists of class names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detector.errors import ModelError

KEYS = ("family", "cfg", "weights", "names", "licence", "description", "options")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One ``models/NAME.yaml``. ``options`` are settings of a run, which config.py reads; nothing here does."""

    name: str
    cfg: Path
    weights: Path | None
    names: Path | None
    family: str
    licence: str
    description: str


def folder() -> Path:
    """Where the packaged files lie: inside the package of an installed wheel, beside it in a checkout."""
    installed = Path(__file__).parents[1] / "cfg"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "cfg"


def known() -> list[str]:
    return sorted(path.stem for path in (folder() / "models").glob("*.yaml"))


def known_model(name: str) -> KnownModel:
    """Raises ModelError that lists the known ones."""
    if name not in known():
        raise ModelError(
            f"unknown model {name!r}: no such file, and known by name are only {', '.join(known()) or 'none'}; "
            "give a path to a model file, or one of these names"
        )
    path = folder() / "models" / f"{name}.yaml"
    values = _read_yaml(path)
    return KnownModel(
        name=name,
        cfg=_file(path, values, "darknet", "cfg") or _lacks(path, "cfg"),
        weights=_file(path, values, "weights", "weights"),
        names=_file(path, values, "names", "names"),
        family=str(values.get("family", "")),
        licence=str(values.get("licence", "")),
        description=str(values.get("description", "")),
    )


def network_yaml(name: str) -> Path | None:
    """The packaged description of a YOLOv5 or YOLOv7 network by its file name (yolov5s.yaml); None for any other."""
    path = folder() / "yolo" / name
    return path if Path(name).parts == (name,) and path.is_file() else None


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ModelError(f"{path}: cannot be read: {' '.join(str(exc).split())}") from exc
    if not isinstance(values, dict):
        raise ModelError(f"{path}: must hold keys and values: {', '.join(KEYS)}")
    for key in values:
        if key not in KEYS:
            raise ModelError(f"{path}: unknown key {key!r}; known are {', '.join(KEYS)}")
    return values


def _file(path: Path, values: dict[str, Any], part: str, key: str) -> Path | None:
    """A value that names a file in ``cfg/PART/``."""
    value = values.get(key)
    if value is None:
        return None
    found = folder() / part / str(value)
    if not found.is_file():
        raise ModelError(f"{path}: {key}: {value} does not lie in {found.parent}")
    return found


def _lacks(path: Path, key: str) -> Path:
    raise ModelError(f"{path}: lacks the key {key!r}")
