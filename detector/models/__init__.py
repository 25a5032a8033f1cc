"""Model file -> Network. A front end is a module of this folder with ``SUFFIXES`` and ``read``: one file each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from detector.errors import ModelError, UsageError
from detector.models import formats
from detector.models.base import Network
from detector.models.catalogue import known, known_model, network_yaml

__all__ = ["known", "open_network", "suffixes"]

MAX_BATCH = 1024


def open_network(
    model: str,
    *,
    weights: str | None = None,
    names: str | None = None,
    random_seed: int | None = None,
    size: tuple[int, int] | None = None,
    batch: int = 1,
    family: str | None = None,
    cfg: str | None = None,
    class_names: Sequence[str] = (),
    trusted: bool = False,
    device: str = "auto",
    others: Mapping[str, ModuleType] = MappingProxyType({}),
) -> Network:
    """The network of a model file, or of a model known by name.

    ``size``: (height, width) of the input in place of the model's own. ``random_seed``: numbers from this seed in
    place of a weights file. ``family``: what an .onnx file is, where it does not tell. ``cfg`` and ``class_names``
    describe a file that does not describe itself (a TensorRT plan). ``trusted``: code that such a file carries may run;
    ``device``: where it will, which alone can read it. ``others``: suffix -> front end of files that only
    one engine can read (``engines.model_readers``).
    Raises ModelError, and UsageError for options that do not go with the model.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise ModelError(f"batch {batch} is out of range: --batch takes 1 to {MAX_BATCH}")
    path, default_weights, default_names = _locate(model, random_seed, weights, others)
    reader = _front_end(path, {**suffixes(), **others})
    more = _family_option(reader, path, family)
    network: Network = reader.read(
        path,
        weights=_path(weights) or (default_weights if random_seed is None else None),
        names=_path(names) or default_names,
        random_seed=random_seed,
        size=size,
        batch=batch,
        **more,
        **_description(reader, path, cfg, class_names, {"trusted": trusted, "device": device}),
    )
    return network


def _family_option(reader: ModuleType, path: Path, family: str | None) -> dict[str, str]:
    """``--family`` for a front end of several families (FAMILY_CHOICES); the others know theirs."""
    if family is None:
        return {}
    choices = getattr(reader, "FAMILY_CHOICES", ())
    if family not in choices:
        known = (
            f"it can be {', '.join(choices)}"
            if choices
            else "such a file tells its family itself; leave it out"
        )
        raise UsageError(f"--family {family}: not for {path.name}: {known}")
    return {"family": family}


def _description(
    reader: ModuleType, path: Path, cfg: str | None, class_names: Sequence[str], how: dict[str, Any]
) -> dict[str, Any]:
    """Arguments for a front end whose files do not say what they are (DESCRIBED); the others know."""
    if getattr(reader, "DESCRIBED", False):
        return {"cfg": _path(cfg), "class_names": tuple(class_names), **how}
    if cfg is not None or class_names:
        given = f"--cfg {cfg}" if cfg else "a list of names"
        raise UsageError(
            f"{given}: for TensorRT plans, which do not describe themselves; {path.name} does"
        )
    return {}


def suffixes() -> dict[str, ModuleType]:
    """Suffix of a model file -> its front end, by listing formats/. Front ends import their libraries late."""
    found: dict[str, ModuleType] = {}
    for info in pkgutil.iter_modules(formats.__path__):
        module = importlib.import_module(f"{formats.__name__}.{info.name}")
        found |= {suffix: module for suffix in getattr(module, "SUFFIXES", ())}
    return found


def _locate(
    model: str, random_seed: int | None, weights: str | None, others: Mapping[str, ModuleType]
) -> tuple[Path, Path | None, Path | None]:
    """The model file with the weights and names that belong to it, where a description states them."""
    path = Path(model)
    if path.is_file():
        return path, None, None
    if path.is_dir():
        raise ModelError(
            f"{model}: is a folder; give a model file ({', '.join((*suffixes(), *others))})"
        )
    if (described := network_yaml(model)) is not None:
        return described, None, None
    if path.suffix.lower() in {*suffixes(), *others} or len(path.parts) != 1:
        raise ModelError(
            f"{model}: no such file; give the path of a model file, or a known name: {', '.join(known())}"
        )
    entry = known_model(model)
    if random_seed is not None and entry.layers is not None:
        return entry.layers, None, entry.names
    if (
        entry.download is not None
        and entry.weights is None
        and weights is None
        and random_seed is None
    ):
        entry.file_to_run(entry.download.target)
    return entry.file_to_run(), entry.weights, entry.names


def _front_end(path: Path, readers: Mapping[str, ModuleType]) -> ModuleType:
    suffix = path.suffix.lower()
    if suffix == ".weights":
        raise ModelError(
            f"{path}: weights alone describe no network; give its .cfg: --model {path.with_suffix('.cfg')}"
        )
    if suffix not in readers:
        raise ModelError(
            f"{path}: model family {suffix or 'without suffix'} is not supported yet; supported: {', '.join(readers)}"
        )
    return readers[suffix]


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
