"""Files that the package carries in ``detector.cfg``, and models that it knows by name without carrying them.

A file that is not in the package lies in the user's cache, where ``detect-video models pull`` or the user puts it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detector.errors import ModelError

KEYS = (
    "family", "cfg", "file", "layers", "weights", "names", "licence", "description", "options",
    "url", "sha256", "bytes", "needs", "figures",
)  # fmt: skip
FIGURES = ("input", "parameters", "parameters_fused", "macs", "gflops_published")


@dataclass(frozen=True, slots=True)
class Download:
    """An official file. Without a sha256 it is not fetched: the user puts it at ``target`` by hand."""

    url: str
    target: Path
    sha256: str | None = None
    size: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One ``models/NAME.yaml``. ``options`` are settings of a run, which config.py reads; nothing here does.

    ``path``: the model file; of a packaged cfg, or in the cache, where it may not be yet. ``layers``: a description
    that random weights are built from where ``path`` is absent. ``figures``: of ``FIGURES``, for the list.
    ``gflops_published`` are its makers'; the others are counted here where the file is at hand, else theirs too.
    """

    name: str
    path: Path
    weights: Path | None
    layers: Path | None
    names: Path | None
    family: str
    licence: str
    description: str
    needs: str = ""
    download: Download | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def file_to_run(self, file: Path | None = None) -> Path:
        """The model file, or ``file``. Raises ModelError where it belongs in the cache and is not there yet."""
        wanted = file or self.path
        if wanted.is_file():
            return wanted
        raise ModelError(f"{self.name}: {self.how_to_get()}")

    def how_to_get(self) -> str:
        """What the user has to do before it runs."""
        download = self.download
        if self.needs:
            return f"needs {self.needs}"
        if download is None:
            return f"put the file at {self.path} by hand"
        if download.sha256 is None:
            return f"needs {self.path.name}, which is not here: put the file from {download.url} at {download.target}"
        return (
            f"needs {download.target.name}, which is not here: run detect-video models pull {self.name}, or put the "
            f"file from {download.url} at {download.target}"
        )


def folder() -> Path:
    """Where the packaged files lie: inside the package of an installed wheel, beside it in a checkout."""
    installed = Path(__file__).parents[1] / "cfg"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "cfg"


def cache() -> Path:
    """Where downloaded models lie, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "detect-video" / "models"


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
    cfg = _file(path, values, "darknet", "cfg")
    stored = cache() / str(values["file"]) if "file" in values else None
    if cfg is None and stored is None:
        raise ModelError(f"{path}: lacks the key 'cfg', or 'file'")
    weights = _file(path, values, "weights", "weights")
    if cfg is not None and stored is not None:
        weights = stored if stored.is_file() else None
    layers = folder() / "yolo" / str(values["layers"]) if "layers" in values else None
    return KnownModel(
        name=name,
        path=cfg or stored or path,
        weights=weights,
        layers=layers if layers is not None and layers.is_file() else None,
        names=_file(path, values, "names", "names"),
        family=str(values.get("family", "")),
        licence=str(values.get("licence", "")),
        description=str(values.get("description", "")),
        needs=str(values.get("needs", "")),
        download=_download(path, values, stored),
        figures=_figures(path, values),
    )


def network_yaml(name: str) -> Path | None:
    """The packaged description of a YOLOv5 or YOLOv7 network by its file name (yolov5s.yaml); None for any other."""
    path = folder() / "yolo" / name
    return path if Path(name).parts == (name,) and path.is_file() else None


def _download(path: Path, values: dict[str, Any], stored: Path | None) -> Download | None:
    if "url" not in values:
        return None
    if stored is None:
        raise ModelError(f"{path}: url: needs the key 'file', the name that it gets in the cache")
    size = values.get("bytes")
    return Download(
        url=str(values["url"]),
        target=stored,
        sha256=str(values["sha256"]) if "sha256" in values else None,
        size=int(size) if size is not None else None,
    )


def _figures(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    figures = values.get("figures") or {}
    for key in figures:
        if key not in FIGURES:
            raise ModelError(f"{path}: figures: unknown key {key!r}; known are {', '.join(FIGURES)}")
    return dict(figures)


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
