"""Find the named tensors, the description, class names and modules in a checkpoint's records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from detector.core.errors import ModelError
from detector.core.models.formats.checkpoint.archive import StoredTensor
from detector.core.models.formats.checkpoint.unpickle import Instance

MAX_MODULES = 20_000  # yolov7-e6e has 1,300
LAYER_TENSOR = re.compile(r"(.*?)model\.[0-9]+\..*", re.DOTALL)
# Tensors that are not parameters: running statistics, anchors and grids.
BUFFERS = re.compile(
    r"(.*\.)?(running_mean|running_var|num_batches_tracked|anchors|anchor_grid|stride|grid(\.\d+)?)"
)


@dataclass(frozen=True, slots=True)
class Module:
    """One module of a checkpoint. ``path``: its class ("torch.nn.modules.conv.Conv2d")."""

    path: str
    settings: Mapping[str, Any]


@dataclass(slots=True)
class Contents:
    """A network in a file. ``tensors``: name in the state dict -> tensor. ``modules``: place in the
    network -> module; {} if the file has only tensors. ``description``: the network's YAML."""

    origin: str  # path of the file, for messages
    tensors: Mapping[str, StoredTensor]
    modules: Mapping[str, Module] = field(default_factory=dict)
    description: Mapping[str, Any] | None = None
    names: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None  # (height, width) of the input in training
    parameters: int = 0  # number of stored values


def contents_of(loaded: Any, origin: str) -> Contents:
    """Return the network in ``unpickle``'s result: a model, or a state dict. Raises ModelError."""
    model = _find_network(loaded)
    if isinstance(model, Instance):
        return _contents_of_model(model, loaded, origin)
    if isinstance(model, dict) and model and all(isinstance(key, str) for key in model):
        tensors = {key: value for key, value in model.items() if isinstance(value, StoredTensor)}
        if len(tensors) == len(model):
            return contents_of_tensors(tensors, origin)
    raise ModelError(
        f"{origin}: holds no network; expected a model or a state dict, alone or under "
        f"the key 'ema', 'model' or 'state_dict'; found {_summarise(loaded)}"
    )


def _find_network(loaded: Any) -> Any:
    """Return the network; prefer averaged weights (ema), as YOLOv5 and YOLOv7 do."""
    if not isinstance(loaded, dict):
        return loaded
    for key in ("ema", "model", "state_dict", "model_state_dict"):
        if isinstance(loaded.get(key), (Instance, dict)) and loaded[key]:
            return loaded[key]
    return loaded


def _summarise(loaded: Any) -> str:
    if isinstance(loaded, dict):
        keys = ", ".join(ascii(key)[:30] for key in list(loaded)[:6])
        return f"a dict of {keys or 'nothing'}"
    return loaded.path if isinstance(loaded, Instance) else f"a {type(loaded).__name__}"


def contents_of_tensors(tensors: Mapping[str, StoredTensor], origin: str) -> Contents:
    prefix = _find_prefix(tensors)
    if prefix is None:
        raise ModelError(
            f"{origin}: not a YOLOv5 or YOLOv7 checkpoint: no tensor name begins with model.0; "
            f"the first is {ascii(next(iter(tensors), ''))[:80]}; export the model to ONNX instead"
        )
    named = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    parameters = sum(tensor.size for name, tensor in named.items() if not BUFFERS.fullmatch(name))
    return Contents(origin, named, parameters=parameters)


def _find_prefix(names: Mapping[str, Any]) -> str | None:
    """Return the text before ``model.0.`` in names: "", or a wrapper's prefix such as "module."."""
    for name in names:
        if match := LAYER_TENSOR.fullmatch(name):
            return match[1]
    return None


def _contents_of_model(model: Instance, loaded: Any, origin: str) -> Contents:
    top = model
    # AutoShape and DataParallel keep the network as their only module, "model" or "module".
    for _ in range(4):
        inner = top.values.get("_modules")
        wrapped = inner.get("model", inner.get("module")) if isinstance(inner, dict) else None
        if "yaml" in top.values or not isinstance(wrapped, Instance):
            break
        top = wrapped
    tensors: dict[str, StoredTensor] = {}
    modules: dict[str, Module] = {}
    parameters = 0
    for path, instance in _walk(top, origin):
        modules[path] = Module(instance.path, instance.values)
        for kind in ("_parameters", "_buffers"):
            for name, tensor in _list_items(instance, kind):
                if isinstance(tensor, StoredTensor):
                    tensors[f"{path}.{name}" if path else name] = tensor
                    parameters += tensor.size if kind == "_parameters" else 0
    description = top.values.get("yaml")
    return Contents(
        origin,
        tensors,
        modules,
        description if isinstance(description, dict) else None,
        _read_class_names(top.values.get("names")),
        _read_trained_size(loaded),
        parameters,
    )


def _walk(top: Instance, origin: str) -> Iterator[tuple[str, Instance]]:
    """Yield each module and its path, parents first."""
    waiting: list[tuple[str, Instance]] = [("", top)]
    for _ in range(MAX_MODULES):
        if not waiting:
            return
        path, instance = waiting.pop()
        yield path, instance
        inner = [
            (name, part)
            for name, part in _list_items(instance, "_modules")
            if isinstance(part, Instance)
        ]
        waiting += [(f"{path}.{name}" if path else name, part) for name, part in reversed(inner)]
    raise ModelError(
        f"{origin}: more than {MAX_MODULES} modules, or a module inside itself: "
        "damaged or forged, refused; download it again"
    )


def _list_items(instance: Instance, key: str) -> list[tuple[str, Any]]:
    stored = instance.values.get(key)
    if not isinstance(stored, dict):
        return []
    return [
        (name, value)
        for name, value in stored.items()
        if isinstance(name, str) and name.isascii() and len(name) < 200
    ]


def _read_class_names(stored: Any) -> tuple[str, ...] | None:
    if isinstance(stored, dict) and sorted(stored, key=str) == sorted(range(len(stored)), key=str):
        stored = [stored[number] for number in range(len(stored))]
    if not isinstance(stored, (list, tuple)) or not all(isinstance(name, str) for name in stored):
        return None
    return tuple(name if name.isprintable() else ascii(name) for name in stored)


def _read_trained_size(loaded: Any) -> tuple[int, int] | None:
    """Return the training option imgsz, which newer checkpoints store, as (height, width)."""
    options = loaded.get("opt") if isinstance(loaded, dict) else None
    if isinstance(options, Instance):
        options = options.values
    size = options.get("imgsz", options.get("img_size")) if isinstance(options, dict) else None
    sides = list(size[:2]) if isinstance(size, (list, tuple)) else [size]
    valid = [side for side in sides if type(side) is int and 32 <= side <= 8192]
    return (valid[0], valid[-1]) if valid and valid == sides else None
