"""A module ``tensorrt`` whose names and signatures are those of a real release, read from its
bindings (bindings.py).

Every class, enum, method and property of the bindings is there and nothing else is: an unknown name
is an AttributeError, an unknown argument a TypeError. What a method does stands in
tensorrt_building.py, tensorrt_running.py and tensorrt_inspecting.py; one that is not modelled there
raises ``NotModelledError``, so that nothing passes by doing nothing.
"""

from __future__ import annotations

import importlib.machinery
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tests.fakes import tensorrt_building, tensorrt_inspecting, tensorrt_running
from tests.fakes.bindings import read_api
from tests.fakes.device import Device
from tests.fakes.signatures import bind, parse
from tests.fakes.tensorrt_state import Gpu, State, edition_of

BEHAVIOUR = (tensorrt_building, tensorrt_running, tensorrt_inspecting)


class NotModelledError(AssertionError):
    """Code under test calls what the fake has no behaviour for."""


class EnumMember:
    def __init__(self, enum: str, name: str, value: int) -> None:
        self.enum, self.name, self.value = enum, name, value

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"<{self.enum}.{self.name}: {self.value}>"


def make_module(
    major: int, device: Device, gpus: Sequence[Gpu] = (("Fake L4", (8, 9)),)
) -> ModuleType:
    """The module, on fake GPUs; what tests look at is ``module.fake``."""
    api = read_api(major)
    module = ModuleType(edition_of(major).module)
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    module.__version__ = api["version"]
    module.fake = State(module, device, gpus, major)
    for name, enum in sorted(api["enums"].items()):
        _place(module, name, _enum(name, enum))
    for name in _ordered(api["classes"]):
        _place(module, name, _class(name, api["classes"][name], module))
    for name, enum in sorted(api["enums"].items()):  # nested ones, now that their classes are there
        if "." in name:
            _place(module, name, _enum(name, enum))
    for alias, target in api["aliases"].items():
        _place(module, alias, _found(module, target))
    return module


def _ordered(classes: dict[str, Any]) -> list[str]:
    """Bases first."""
    done: list[str] = []

    def visit(name: str) -> None:
        for base in classes[name].get("bases", []):
            if base in classes and base not in done:
                visit(base)
        if name not in done:
            done.append(name)

    for name in sorted(classes, key=lambda name: name.count(".")):
        visit(name)
    return done


def _place(module: ModuleType, path: str, thing: Any) -> None:
    *way, last = path.split(".")
    place: Any = module
    for name in way:
        if not hasattr(place, name):
            return
        place = getattr(place, name)
    type.__setattr__(place, last, thing) if isinstance(place, type) else setattr(place, last, thing)


def _found(module: ModuleType, path: str) -> Any:
    thing: Any = module
    for name in path.split("."):
        thing = getattr(thing, name)
    return thing


def _enum(path: str, enum: dict[str, Any]) -> type:
    made = type(path.split(".")[-1], (), {"__module__": "tensorrt"})
    for name, value in enum["members"].items():
        setattr(made, name, EnumMember(path, name, value))
    return made


def _class(name: str, api: dict[str, Any], module: ModuleType) -> type:
    bases = tuple(getattr(module, base) for base in api.get("bases", []) if hasattr(module, base))
    own = next((vars(part)[name] for part in BEHAVIOUR if name in vars(part)), None) or type(
        name, (), {}
    )
    space: dict[str, Any] = {"__module__": "tensorrt", "_trt": module, "_api": name}
    for method, entry in api.get("methods", {}).items():
        if method not in ("__del__", "__enter__", "__exit__") and entry.get("sigs"):
            space[method] = _method(
                name, method, [parse(text) for text in entry["sigs"]], own, module
            )
    for key, entry in api.get("properties", {}).items():
        space[key] = _property(name, key, entry, own)
    inits = [parse(text) for text in api.get("init", [])]
    space["__init__"] = _init(name, inits, own, module)
    settable = {key for key, entry in api.get("properties", {}).items() if entry.get("settable")}
    space["__setattr__"] = _setattr(name, settable)
    for key in ("__del__", "__repr__", "__index__", "__iter__", "__len__"):
        if key in vars(own):
            space[key] = vars(own)[key]
    if issubclass(own, bytes):
        space["__new__"] = lambda cls, data: bytes.__new__(cls, data)
        space["__init__"] = lambda self, data: None
        bases = (bytes,)
    return type(name.split(".")[-1], bases or (), space)


def fits(module: ModuleType, kind: str, value: Any) -> bool:
    """Whether a value goes where the signature says ``kind``. pybind11 converts tuples and lists to
    Dims by itself.
    """
    kind = (
        kind.split("::")[-1]
        .removeprefix("collections.abc.")
        .removeprefix("typing.")
        .removeprefix("typing_extensions.")
    )
    if kind == "SupportsInt":
        return hasattr(value, "__int__") and not isinstance(value, str)
    if kind == "Buffer":
        return isinstance(value, bytes | bytearray | memoryview)
    plain = {"str": str, "bool": bool, "tuple": tuple, "list": list, "float": float}
    if kind in plain:
        return isinstance(value, plain[kind])
    if kind.startswith("Sequence"):
        return hasattr(value, "__len__")
    if kind == "Dims" and isinstance(value, tuple | list):
        return True
    try:
        wanted = _found(module, kind)
    except AttributeError:
        return True  # a C++ name that the bindings do not resolve
    if isinstance(value, EnumMember):
        return any(value is member for member in vars(wanted).values())
    return isinstance(value, wanted)


def _initialised(value: Any) -> bool:
    return not hasattr(type(value), "_api") or isinstance(value, bytes) or "_made" in value.__dict__


def _method(name: str, method: str, signatures: list, own: type, module: ModuleType) -> Any:
    does = getattr(own, method, None)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = bind(signatures, args, kwargs, lambda kind, value: fits(module, kind, value))
        if does is None:
            raise NotModelledError(f"{name}.{method} is real, but the fake does not model it")
        for value in bound.values():
            if not _initialised(value):
                raise TypeError(
                    f"{type(value).__name__}.__init__() must be called when overriding __init__"
                )
        return does(self, **bound)

    call.__name__ = method
    return call


def _init(name: str, signatures: list, own: type, module: ModuleType) -> Any:
    does = getattr(own, "started", None)

    def __init__(  # noqa: N807
        self: Any, *args: Any, _made_here: bool = False, **kwargs: Any
    ) -> None:
        self.__dict__["_made"] = True
        if _made_here:  # made by another object of the module, not by a caller
            self.__dict__.update(kwargs)
            return
        if not signatures:
            raise TypeError(f"tensorrt.{name}: No constructor defined!")
        bound = bind(signatures, args, kwargs, lambda kind, value: fits(module, kind, value))
        for value in bound.values():
            if not _initialised(value):
                raise TypeError(
                    f"{type(value).__name__}.__init__() must be called when overriding __init__"
                )
        if does is not None:
            does(self, **bound)

    return __init__


def _property(name: str, key: str, entry: dict[str, Any], own: type) -> property:
    does, sets = getattr(own, f"get_{key}_", None), getattr(own, f"set_{key}_", None)

    def get(self: Any) -> Any:
        if does is not None:
            return does(self)
        if f"_{key}" in self.__dict__:
            return self.__dict__[f"_{key}"]
        raise NotModelledError(f"{name}.{key} is real, but the fake has no value for it")

    def put(self: Any, value: Any) -> None:
        if not _initialised(value):
            raise TypeError(
                f"{type(value).__name__}.__init__() must be called when overriding __init__"
            )
        if sets is not None:
            sets(self, value)
        self.__dict__[f"_{key}"] = value

    return property(get, put if entry.get("settable") else None)


def _setattr(name: str, settable: set[str]) -> Any:
    def __setattr__(self: Any, key: str, value: Any) -> None:  # noqa: N807
        """pybind11's objects take no attributes but their own; subclasses in Python do."""
        python_subclass = type(self).__module__ != "tensorrt"
        if not python_subclass and not key.startswith("_") and not hasattr(type(self), key):
            raise AttributeError(f"'tensorrt.{name}' object has no attribute '{key}'")
        object.__setattr__(self, key, value)

    return __setattr__
