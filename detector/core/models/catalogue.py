"""The known models: those whose files the package contains (``cfg``), and those that
``detect-video models pull`` downloads into the user's cache."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detector.core.errors import ModelError
from detector.core.errors.private import user_cache
from detector.core.errors.reading import read_text

KEYS = tuple(
    "family cfg file layers weights names calibration canvases licence description options url "
    "sha256 bytes needs figures".split()
)
CANVAS = re.compile(r"([1-9][0-9]{1,3})x([1-9][0-9]{1,3})")

# Names of ultralytics' checkpoints newer than YOLOv5, which have to be exported to ONNX.
NEWER = re.compile(r"(?i)yolov?(?:8|9|1\d|26)|rtdetr")


@dataclass(frozen=True, slots=True)
class Download:
    """An official file. If it has no sha256, the user has to put it at ``target``."""

    url: str
    target: Path
    sha256: str | None = None
    size: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One ``models/NAME.yaml``, without its ``options``, which ``detector.core.config`` reads.

    ``path``: the model file, in the package or (perhaps still missing) in the cache. ``layers``: a
    description of the network, to run it with random weights. ``canvases``: the input sizes
    (height, width) that it was trained for, the default first; a run takes the size that fits
    the source best (run/canvas.py).
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
    calibration: Path | None = None
    canvases: tuple[tuple[int, int], ...] = ()
    download: Download | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def file_to_run(self, file: Path | None = None) -> Path:
        """Return ``file`` or else the model file. Raises ModelError if it does not exist."""
        path = file or self.path
        if os.path.isfile(path):
            return path
        raise ModelError(f"{self.name}: {self.how_to_get()}")

    def how_to_get(self) -> str:
        """Say how the user can get the model's files, for a message that begins with its name."""
        download = self.download
        if self.needs:
            return f"needs {self.needs}"
        if download is None:
            return f"put the file at {self.path} yourself"
        if download.sha256 is None:
            return (
                f"needs {self.path.name}, which is missing: put the file from {download.url} at "
                f"{download.target}"
            )
        return (
            f"needs {download.target.name}, which is missing: run detect-video models pull "
            f"{self.name}, or put the file from {download.url} at {download.target}"
        )


def folder() -> Path:
    """Return the folder ``cfg``: inside an installed package, but next to a checkout's package."""
    installed = Path(__file__).parents[2] / "cfg"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "cfg"


def cache() -> Path:
    return user_cache() / "models"


def absent_model(model: str | Path) -> ModelError:
    path = Path(model)
    if path.suffix in (".pt", "") and NEWER.match(path.stem):
        return ModelError(
            f"{model}: no such file. YOLOv8 and newer run as ONNX; give --model {path.stem}.onnx; "
            f"to write this file, run: yolo export model={path.stem}.pt format=onnx"
        )
    name = f"the known name {path.stem}" if path.stem in known() else "a known name"
    return ModelError(
        f"{model}: no such file; give the path of a model file, or {name} (see detect-video models)"
    )


def known() -> list[str]:
    return sorted(path.stem for path in (folder() / "models").glob("*.yaml"))


def known_model(name: str) -> KnownModel:
    if name not in known():
        if NEWER.match(name) and "," not in name:
            raise absent_model(name)
        nearest = difflib.get_close_matches(name, known(), 1)
        cure = (
            f"did you mean {nearest[0]}? To list all names, run: detect-video models"
            if nearest
            else "give the path of a model file, or a known name (detect-video models)"
        )
        if "," in name:
            cure = (
                "only one model runs at a time; for several, run: detect-video compare --model A,B"
            )
        raise ModelError(f"unknown model {name!r}: no such file; {cure}")
    path = folder() / "models" / f"{name}.yaml"
    values = _read_yaml(path)
    cfg = _find_file(path, values, "darknet", "cfg")
    stored = cache() / str(values["file"]) if "file" in values else None
    if cfg is None and stored is None:
        raise ModelError(f"{path}: needs the key 'cfg' or the key 'file'")
    weights = _find_file(path, values, "weights", "weights")
    if cfg is not None and stored is not None:
        weights = stored if stored.is_file() else None
    layers = folder() / "yolo" / str(values["layers"]) if "layers" in values else None
    return KnownModel(
        name=name,
        path=cfg or stored or path,
        weights=weights,
        layers=layers if layers is not None and layers.is_file() else None,
        names=_find_file(path, values, "names", "names"),
        family=str(values.get("family", "")),
        licence=str(values.get("licence", "")),
        description=str(values.get("description", "")),
        needs=str(values.get("needs", "")),
        calibration=_find_file(path, values, "weights", "calibration"),
        canvases=_parse_canvases(path, values),
        download=_read_download(path, values, stored),
        figures=dict(values.get("figures") or {}),
    )


def network_yaml(name: str) -> Path | None:
    """Return the packaged YOLOv5 or YOLOv7 description ``name`` (yolov5s.yaml); None if absent."""
    path = folder() / "yolo" / name
    return path if Path(name).parts == (name,) and os.path.isfile(path) else None


def _read_download(path: Path, values: dict[str, Any], stored: Path | None) -> Download | None:
    if "url" not in values:
        return None
    if stored is None:
        raise ModelError(f"{path}: url: needs the key 'file', the file's name in the cache")
    size = values.get("bytes")
    return Download(
        url=str(values["url"]),
        target=stored,
        sha256=str(values["sha256"]) if "sha256" in values else None,
        size=int(size) if size is not None else None,
    )


def canvases_of(model: str) -> tuple[tuple[int, int], ...]:
    """Return the canvases of a known model; () if ``model`` is a file."""
    if os.path.exists(model) or model not in known():
        return ()
    return known_model(model).canvases


def _parse_canvases(path: Path, values: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    sizes = []
    for text in values.get("canvases") or ():
        if (sides := CANVAS.fullmatch(str(text))) is None:
            raise ModelError(f"{path}: canvases: {text!r}: write 416x256 (width x height)")
        sizes.append((int(sides[2]), int(sides[1])))
    return tuple(sizes)


def _read_yaml(path: Path) -> dict[str, Any]:
    from detector.core.errors.yaml_parsing import parse_yaml  # imports yaml, which most runs skip

    values = parse_yaml(read_text(path, "a known model", error=ModelError), path, ModelError)
    if not isinstance(values, dict):
        raise ModelError(f"{path}: must hold keys and values: {', '.join(KEYS)}")
    for key in values:
        if key not in KEYS:
            raise ModelError(f"{path}: unknown key {key!r}; known are {', '.join(KEYS)}")
    return values


def _find_file(path: Path, values: dict[str, Any], part: str, key: str) -> Path | None:
    """Return the file ``cfg/PART/VALUE`` for the value of ``key``; None if the key is missing."""
    value = values.get(key)
    if value is None:
        return None
    file = folder() / part / str(value)
    if not file.is_file():
        raise ModelError(f"{path}: {key}: {value} is not in {file.parent}")
    return file
