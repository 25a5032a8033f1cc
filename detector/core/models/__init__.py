"""Read a model file into a ``Network``.

Each module or folder of models/formats is the front end for one kind of model file. It holds

    SUFFIXES = (".cfg",)     on one line, as literals
    FRONT_END = FrontEnd(read, ...)

To add a kind of model file, add such a module and its test. We read the suffixes from the modules'
source text, so that a run imports only the front end of its model.

The front end also chooses the head that decodes the outputs (``Network.head``):

    .cfg                       the head of [yolo] layers: formats/darknet/__init__.py
    .yaml, .pt, .safetensors   the head of YOLOv5 and YOLOv7: formats/yolo/network.py
    .onnx                      the head of the outputs' layout (layouts/), which
                               formats/onnx/recognise.py finds
    .trt, .engine, .plan       as for .onnx; ready_made.py finds the layout by the file's tensors
    .xml                       as for .onnx; engines/_openvino_ir.py finds the layout
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from detector.core import wings
from detector.core.errors import ModelError, UsageError
from detector.core.errors.guard import keep
from detector.core.errors.holding import unchanged
from detector.core.errors.reading import check_regular
from detector.core.models import formats
from detector.core.models.base import FrontEnd, ModelRequest, Network, files_in_folder
from detector.core.models.catalogue import absent_model, known, known_model, network_yaml

__all__ = ["ModelRequest", "describe", "front_ends", "known", "open_network"]

MAX_BATCH = 1024
MAX_SEED = 2**32 - 1  # the largest seed of numpy's RandomState
# Suffixes of files that a front end looks for next to the model file.
WEIGHTS = (".weights", ".pt", ".safetensors")
DESCRIPTIONS = (".cfg", ".yaml")
NO_FRONT_ENDS: Mapping[str, str] = MappingProxyType({})


def open_network(
    request: ModelRequest, engine_front_ends: Mapping[str, str] = NO_FRONT_ENDS
) -> Network:
    """Return the network of a model file, or of a known model's name.

    ``engine_front_ends``: a mapping like ``front_ends()``, for files that only one engine can
    read. Raises ModelError and UsageError.
    """
    if not 1 <= request.batch <= MAX_BATCH:
        raise ModelError(f"batch {request.batch} is out of range: --batch takes 1 to {MAX_BATCH}")
    request, front_end = _find_front_end(request, engine_front_ends)
    _check_options(front_end, request)
    with unchanged(_hashed_files(request), ModelError):
        return front_end.read(request)


def describe(request: ModelRequest, engine_front_ends: Mapping[str, str] = NO_FRONT_ENDS) -> str:
    """Describe a model that another program exported, as YAML for --describe. Guesses are marked.
    Raises ModelError, and UsageError for a model file that describes itself."""
    request, front_end = _find_front_end(request, engine_front_ends)
    if front_end.describe is None:
        raise UsageError(f"{request.path}: needs no description; such a file describes itself")
    with unchanged(_hashed_files(request), ModelError):
        return front_end.describe(request)


def keep_files(request: ModelRequest) -> None:
    """Protect the model's files from being overwritten: the files in the request, and files that
    may be next to the model. If a model file names more files, its front end protects them."""
    path = request.path
    keep("the model file", path)
    keep("the weights file", request.weights)
    keep("the list of class names", request.names)
    keep("the model's description", request.cfg, request.describe)
    if path.name:
        keep("the weights file", *map(path.with_suffix, WEIGHTS))
        names = (path.with_suffix(".names"), path.with_name("coco.names"))
        keep("the list of class names", *names)
        keep("the model's description", *map(path.with_suffix, DESCRIPTIONS))


def _hashed_files(request: ModelRequest) -> list[Path | None]:
    """Return the model's files whose names are known before the model is read."""
    return [request.path, request.weights, *map(request.path.with_suffix, WEIGHTS)]


@cache
def front_ends() -> Mapping[str, str]:
    """Map each suffix to the module whose FRONT_END reads such files. No module is imported."""
    modules: dict[str, str] = {}
    for name in wings.list_files(*formats.__path__):
        module = f"{formats.__name__}.{name}"
        suffixes = wings.read_literal(module, "SUFFIXES")
        assert suffixes is not None, f"{module}: needs a line SUFFIXES = (...)"
        modules |= dict.fromkeys(suffixes, module)
    return MappingProxyType(modules)


def _find_front_end(
    request: ModelRequest, engine_front_ends: Mapping[str, str]
) -> tuple[ModelRequest, FrontEnd]:
    modules = {**front_ends(), **engine_front_ends}
    request = _locate(request, tuple(modules))
    keep_files(request)
    for file in filter(None, (request.path, request.weights)):
        check_regular(file, "a model file", ModelError)
    return request, _load_front_end(request.path, modules)


def _locate(request: ModelRequest, suffixes: tuple[str, ...]) -> ModelRequest:
    model, path = request.model, request.path
    if os.path.isdir(path):
        return replace(request, model=_find_only_file(model, suffixes))
    if os.path.exists(path):
        return request
    if (described := network_yaml(model)) is not None:
        return replace(request, model=str(described))
    if path.suffix.lower() in suffixes or len(path.parts) != 1:
        raise absent_model(model)
    entry = known_model(model)
    request = replace(request, names=request.names or entry.names)
    if request.random_seed is not None:
        return replace(request, model=str(entry.layers or entry.file_to_run()))
    if entry.download is not None and entry.weights is None and request.weights is None:
        entry.file_to_run(entry.download.target)
    file, weights = entry.file_to_run(), request.weights or entry.weights
    return replace(request, model=str(file), weights=weights)


def _find_only_file(folder: str, suffixes: tuple[str, ...]) -> str:
    models = files_in_folder(folder)
    if len(models) == 1:
        return models[0]
    listed = ", ".join(map(os.path.basename, models[:5]))
    raise ModelError(
        f"{folder}: is a folder with {len(models)} models: {listed}; give one of them"
        if models
        else f"{folder}: is a folder; give a model file ({', '.join(suffixes)})"
    )


def _load_front_end(path: Path, modules: Mapping[str, str]) -> FrontEnd:
    suffix = path.suffix.lower()
    if suffix == ".weights":
        raise ModelError(
            f"{path}: this file holds only weights; give the .cfg of its network: --model "
            f"{path.with_suffix('.cfg')}"
        )
    if suffix not in modules:
        raise ModelError(
            f"{path}: {f'{suffix} files' if suffix else 'files without a suffix'} cannot be read; "
            f"export the network to ONNX, or give one of: {', '.join(modules)}"
        )
    front_end: FrontEnd = wings.load(f"{modules[suffix]}:FRONT_END")
    return front_end


def _check_options(front_end: FrontEnd, request: ModelRequest) -> None:
    name, family, families = request.path.name, request.family, front_end.families
    if family is not None and family not in families:
        cure = (
            f"it can be {', '.join(families)}"
            if families
            else "such a file names its family itself; omit the option"
        )
        raise UsageError(f"--family {family}: not for {name}: {cure}")
    if request.describe is not None and front_end.describe is None:
        raise UsageError(
            f"--describe {request.describe}: only for .onnx and .xml files; {name} itself says "
            "what its outputs mean; omit the option"
        )
    if request.describe is not None and family is not None:
        raise UsageError(
            f"--family {family}: --describe already names the family; omit one of them"
        )
    if front_end.self_describing and (request.cfg is not None or request.class_names):
        given = f"--cfg {request.cfg}" if request.cfg else "a list of class names"
        raise UsageError(
            f"{given}: only for TensorRT plans, which do not describe themselves; {name} does, so "
            "omit it"
        )
    weights, seed = f"--weights {request.weights}", f"--random-weights {request.random_seed}"
    if request.weights is not None and not front_end.takes_weights:
        raise UsageError(f"{weights}: {name} holds its own weights; omit the option")
    if request.random_seed is not None and not front_end.takes_random_weights:
        raise UsageError(f"{seed}: {name} holds its own weights; omit the option")
    if request.weights is not None and request.random_seed is not None:
        raise UsageError(f"{weights} and {seed} cannot be combined; give one of them")
    if request.random_seed is not None and not 0 <= request.random_seed <= MAX_SEED:
        raise ModelError(f"{seed} is out of range: a seed is a whole number from 0 to {MAX_SEED}")
