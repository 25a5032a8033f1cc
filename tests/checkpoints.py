"""Make valid and malicious checkpoints in the format of torch.save, without torch."""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from detector.core.models import catalogue
from detector.core.models.formats.yolo.blocks import Design
from detector.core.models.formats.yolo.description import read_description
from tests.models.plain_yolo import random_tensors

STORAGES = {
    "float16": "HalfStorage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "uint16": "BFloat16Storage",  # numpy has no bfloat16
}


def foreign(module: str, name: str) -> type:
    return type(name, (), {"__module__": module, "__qualname__": name})


class Reduced:
    def __init__(self, function: type, *arguments: Any, state: Any = None) -> None:
        self.function, self.arguments, self.state = function, arguments, state

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            (self.function, self.arguments)
            if self.state is None
            else (self.function, self.arguments, self.state)
        )


class Stored:
    def __init__(self, key: str, kind: str, count: int) -> None:
        self.key, self.kind, self.count = key, kind, count


class Writer(pickle._Pickler):
    """A pickler that writes arrays as tensors. It does not import the classes that it names."""

    def __init__(self, file: Any, byte_order: str = "<", protocol: int = 2) -> None:
        super().__init__(file, protocol)
        self.storages: dict[str, bytes] = {}
        self.byte_order = byte_order

    def save_global(self, obj: Any, name: str | None = None) -> None:
        module = "__builtin__" if obj is set else obj.__module__
        if self.proto >= 4:
            self.save(module)
            self.save(name or obj.__qualname__)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(f"c{module}\n{name or obj.__qualname__}\n".encode())
        self.memoize(obj)

    dispatch: ClassVar[dict[Any, Any]] = {**pickle._Pickler.dispatch, type: save_global}

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Stored):
            return ("storage", foreign("torch", STORAGES[obj.kind]), obj.key, "cpu", obj.count)
        return None

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, np.ndarray):
            return NotImplemented
        key = str(len(self.storages))
        self.storages[key] = obj.astype(obj.dtype.newbyteorder(self.byte_order)).tobytes()
        steps = tuple(step // obj.itemsize for step in np.empty(obj.shape, obj.dtype).strides)
        stored = Stored(key, obj.dtype.name, obj.size)
        return foreign("torch._utils", "_rebuild_tensor_v2"), (
            stored,
            0,
            obj.shape,
            steps,
            False,
            OrderedDict(),
        )


def pickled(
    content: Any, byte_order: str = "<", protocol: int = 2
) -> tuple[bytes, dict[str, bytes]]:
    file = io.BytesIO()
    writer = Writer(file, byte_order, protocol)
    writer.dump(content)
    return file.getvalue(), writer.storages


def zipped(
    path: Path,
    data: bytes,
    storages: Mapping[str, bytes] | None = None,
    *,
    folder: str = "archive",
    **more: bytes,
) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr(f"{folder}/data.pkl", data)
        for key, values in (storages or {}).items():
            file.writestr(f"{folder}/data/{key}", values)
        for name, values in {"version": b"3\n", **more}.items():
            file.writestr(f"{folder}/{name}", values)
    return path


def saved(path: Path, content: Any, byte_order: str = "<", **more: bytes) -> Path:
    data, storages = pickled(content, byte_order)
    if byte_order == ">":
        more["byteorder"] = b"big"
    return zipped(path, data, storages, **more)


def module(name: str, parts: Mapping[str, Any] | None = None, **values: Any) -> Any:
    """Return a stand-in for an instance of ``name``, the full name of a subclass of nn.Module.
    Arrays among ``values`` are its parameters or buffers."""
    home, _, kind = name.rpartition(".")
    made = foreign(home, kind)()
    arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
    made.__dict__ = {
        "training": False,
        "_parameters": OrderedDict(
            (key, value) for key, value in arrays.items() if "running" not in key
        ),
        "_buffers": OrderedDict((key, value) for key, value in arrays.items() if "running" in key),
        "_modules": OrderedDict(parts or {}),
        "_non_persistent_buffers_set": set(),
        **{key: value for key, value in values.items() if key not in arrays},
    }
    return made


def whole_model(tensors: Mapping[str, Any], description: Any, **more: Any) -> Any:
    """Return a network of one ``Conv`` and one ``Detect``, in the form that YOLOv5 saves."""
    layers = "torch.nn.modules"
    conv = {"conv": module(f"{layers}.conv.Conv2d", weight=tensors["model.0.conv.weight"])}
    norm = {name.rsplit(".", 1)[1]: array for name, array in tensors.items() if ".bn." in name}
    conv["bn"] = module(f"{layers}.batchnorm.BatchNorm2d", **norm, eps=1e-3)
    weight, bias = tensors["model.1.m.0.weight"], tensors["model.1.m.0.bias"]
    heads = {"0": module(f"{layers}.conv.Conv2d", weight=weight, bias=bias)}
    detect = module("models.yolo.Detect", {"m": module(f"{layers}.container.ModuleList", heads)})
    rows = {"0": module("models.common.Conv", conv), "1": detect}
    inner = module(f"{layers}.container.Sequential", rows)
    return module("models.yolo.Model", {"model": inner}, yaml=description, **more)


def random_checkpoint(path: Path) -> Path:
    """Write random weights, as a state dict, for the packaged network named ``path.stem``."""
    description, _ = read_description(catalogue.folder() / "yolo" / f"{path.stem}.yaml")
    return saved(path, random_tensors(Design(description).architecture(2048, 2048)))


def call(module_name: str, name: str, *arguments: Any) -> bytes:
    return pickled({"model": Reduced(foreign(module_name, name), *arguments)})[0]
