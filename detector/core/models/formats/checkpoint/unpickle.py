"""Read a checkpoint's pickle into plain records, without importing or calling anything it names.

Each name is checked twice against a list of allowed names. First, we collect and check all names in
the byte code. Then the unpickler checks each name that it loads, and replaces it by a stand-in.
Stand-ins of classes only store arguments and state; stand-ins of functions run our own code.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from detector.core.errors import ModelError
from detector.core.models.formats.checkpoint.archive import Archive, StoredTensor, item_bytes

# Names that YOLOv5, YOLOv7 and torch write in pickles. We refuse all others, even harmless ones.

INERT: dict[str, frozenset[str]] = {
    # module -> classes; each instance of these becomes an ``Instance``
    "models.yolo": frozenset(
        "Model DetectionModel BaseModel SegmentationModel ClassificationModel Detect "
        "Segment IDetect IAuxDetect IKeypoint IBin".split()
    ),
    "models.common": frozenset(
        "Conv DWConv DWConvTranspose2d Focus Bottleneck BottleneckCSP CrossConv C3 C3x "
        "C3TR C3SPP C3Ghost SPP SPPF GhostConv GhostBottleneck Contract Expand Concat "
        "AutoShape TransformerLayer TransformerBlock Proto Classify MP SP ReOrg Shortcut "
        "Chuncat Foldcut Stem DownC SPPCSPC GhostSPPCSPC GhostStem RepConv RepConv_OREPA "
        "ImplicitA ImplicitM BottleneckCSPA BottleneckCSPB BottleneckCSPC RepBottleneck "
        "Res ResX Ghost RepBottleneckCSPA RepBottleneckCSPB RepBottleneckCSPC ResCSPA "
        "ResCSPB ResCSPC ResXCSPA ResXCSPB ResXCSPC GhostCSPA GhostCSPB GhostCSPC "
        "SwinTransformerBlock STCSPA STCSPB STCSPC Hardswish".split()
    ),
    "models.experimental": frozenset(
        "CrossConv Sum MixConv2d Ensemble GhostConv GhostBottleneck C3".split()
    ),
    "utils.activations": frozenset({"SiLU", "Hardswish", "Mish", "MemoryEfficientMish", "FReLU"}),
    "torch.nn.modules.activation": frozenset(
        "SiLU LeakyReLU ReLU ReLU6 Hardswish Hardsigmoid Mish Sigmoid Tanh ELU GELU PReLU "
        "Softplus Softmax MultiheadAttention".split()
    ),
    "torch.nn.modules.batchnorm": frozenset({"BatchNorm2d", "BatchNorm1d", "SyncBatchNorm"}),
    "torch.nn.modules.container": frozenset({"Sequential", "ModuleList", "ModuleDict"}),
    "torch.nn.modules.conv": frozenset({"Conv2d", "Conv1d", "ConvTranspose2d"}),
    "torch.nn.modules.dropout": frozenset({"Dropout", "Dropout2d"}),
    "torch.nn.modules.flatten": frozenset({"Flatten"}),
    "torch.nn.modules.linear": frozenset({"Linear", "Identity", "NonDynamicallyQuantizableLinear"}),
    "torch.nn.modules.normalization": frozenset({"LayerNorm", "GroupNorm"}),
    "torch.nn.modules.padding": frozenset({"ZeroPad2d"}),
    "torch.nn.modules.pooling": frozenset({"MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d"}),
    "torch.nn.modules.upsampling": frozenset({"Upsample", "UpsamplingNearest2d"}),
    # Types of values stored with the network: training options, numpy numbers and paths.
    "torch": frozenset("Size device float16 bfloat16 float32 float64 int64 strided".split()),
    "torch.serialization": frozenset({"_get_layout"}),
    "argparse": frozenset({"Namespace"}),
    "pathlib": frozenset({"Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}),
    "pathlib._local": frozenset({"Path", "PosixPath", "WindowsPath"}),
    "numpy": frozenset({"dtype", "ndarray", "float64", "float32", "int64"}),
    "numpy.core.multiarray": frozenset({"scalar", "_reconstruct"}),
    "numpy._core.multiarray": frozenset({"scalar", "_reconstruct"}),
    "_codecs": frozenset({"encode"}),
}

STORAGES: dict[str, str] = {  # torch class -> number type of archive.py
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}

CONTAINERS: dict[tuple[str, str], type] = {  # (module in Python 2 or 3, name) -> type
    ("__builtin__", "set"): set,
    ("builtins", "set"): set,
    ("__builtin__", "frozenset"): frozenset,
    ("builtins", "frozenset"): frozenset,
}

REBUILDERS = frozenset(  # functions of torch._utils
    {"_rebuild_tensor_v2", "_rebuild_tensor", "_rebuild_parameter", "_rebuild_parameter_with_state"}
)


def is_allowed(module: str, name: str) -> bool:
    return (
        name in INERT.get(module, ())
        or (module == "torch" and name in STORAGES)
        or (module == "torch._utils" and name in REBUILDERS)
        or (module, name) in CONTAINERS
        or (module, name) == ("collections", "OrderedDict")
    )


def is_of_newer_family(module: str) -> bool:
    """Return whether a class is of YOLOv8 or later, YOLOv5u or RT-DETR (package ultralytics)."""
    return module == "ultralytics" or module.startswith("ultralytics.")


TORCH_LAYERS = ("torch.nn.", "torch._C._nn")  # modules of layers and of their functions
TASKS = {  # model class of a newer family, for a task other than detection -> that task
    "ClassificationModel": "classify",
    "OBBModel": "obb",
    "PoseModel": "pose",
    "SegmentationModel": "segment",
    "YOLOESegModel": "segment",
}

# Opcodes that torch.save never writes. They load a class that is given by a number, an old-style
# class, an object whose id is a text, or a buffer that is not in the file.
REFUSED = {"EXT1", "EXT2", "EXT4", "INST", "OBJ", "PERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
TEXTS = {
    "UNICODE",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
    "STRING",
    "BINSTRING",
    "SHORT_BINSTRING",
}
KEY = re.compile(r"[A-Za-z0-9_]{1,64}")
SHOWN_NAMES = 3


class Instance:
    """A record of an instance: its class, its constructor's arguments, and its attributes."""

    __slots__ = ("arguments", "values")
    path = ""  # "models.common.Conv"; each class in the pickle gets a subclass with its path

    arguments: tuple[Any, ...]
    values: dict[str, Any]

    def __new__(cls, *arguments: Any, **_: Any) -> Instance:
        instance = super().__new__(cls)
        instance.arguments, instance.values = arguments, {}
        return instance

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.values = {key: value for key, value in state.items() if isinstance(key, str)}


class OrderedMapping(dict[Any, Any]):
    """Our OrderedDict. It drops attributes, such as the versions in a state dict."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class _Sealed:
    """The base of stand-ins that refuse a state, so that a pickle cannot change them."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError(f"state for a {type(self).__name__}")


class StandIn(_Sealed):
    """Our replacement for a function that the file names. A pickle can call it, not change it."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


class StorageKind(_Sealed):
    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


class Storage(_Sealed):
    __slots__ = ("key", "kind", "stored")

    def __init__(self, kind: str, key: str, stored: int) -> None:
        self.kind, self.key, self.stored = kind, key, stored


class Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, archive: Archive) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self._archive = archive
        self._classes: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name. Nothing is imported."""
        if not is_allowed(module, name):
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        if (module, name) not in self._classes:
            self._classes[module, name] = self._make_stand_in(module, name)
        return self._classes[module, name]

    def _make_stand_in(self, module: str, name: str) -> Any:
        if (module, name) in CONTAINERS:
            return CONTAINERS[module, name]
        if module == "collections":
            return OrderedMapping
        if module == "torch" and name in STORAGES:
            return StorageKind(STORAGES[name])
        if module == "torch._utils":
            return StandIn(_rebuild_parameter if "parameter" in name else self._rebuild_tensor)
        return type(name, (Instance,), {"__slots__": (), "path": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage with the id ("storage", class, key, device, number of elements)."""
        if not (
            isinstance(pid, tuple)
            and len(pid) == 5
            and pid[0] == "storage"
            and isinstance(pid[1], StorageKind)
        ):
            raise pickle.UnpicklingError("a persistent id that is not a storage")
        _, kind, key, _, stored = pid
        if not (
            isinstance(key, str) and KEY.fullmatch(key) and type(stored) is int and stored >= 0
        ):
            raise pickle.UnpicklingError("a storage without key or size")
        size, needed = self._archive.storage_bytes(key), stored * item_bytes(kind.kind)
        if size < needed:
            raise pickle.UnpicklingError(f"storage {key} holds {max(size, 0)} bytes, not {needed}")
        return Storage(kind.kind, key, stored)

    def _rebuild_tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Any:
        if not (
            isinstance(storage, Storage) and isinstance(shape, tuple) and isinstance(strides, tuple)
        ):
            raise pickle.UnpicklingError("a tensor without storage or shape")
        key, archive = storage.key, self._archive
        return StoredTensor(
            storage.kind,
            shape,
            strides,
            offset,
            storage.stored,
            lambda: archive.storage(key),
            archive.byte_order,
        )


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def unpickle(archive: Archive) -> Any:
    data = archive.pickle()
    check_names(archive, collect_names(archive, data))
    try:
        return Unpickler(data, archive).load()
    except ModelError:
        raise
    except Exception as exc:  # any kind: a forged file may call the stand-ins with any arguments
        reason = " ".join(str(exc).split())[:200]
        raise ModelError(
            f"{archive.path}: damaged or forged, refused: {reason}; download it again"
        ) from exc


def check_names(archive: Archive, names: set[tuple[str, str]]) -> None:
    newer = sorted(f"{module}.{name}" for module, name in names if is_of_newer_family(module))
    refused = sorted(
        f"{module}.{name}"
        for module, name in names
        if not is_allowed(module, name)
        and not is_of_newer_family(module)
        # Newer families may use layers of torch that YOLOv5 lacks.
        and not (newer and module.startswith(TORCH_LAYERS))
    )
    if refused:
        more = f" and {len(refused) - SHOWN_NAMES} more" if len(refused) > SHOWN_NAMES else ""
        listed = ", ".join(_quote(name) for name in refused[:SHOWN_NAMES])
        raise ModelError(
            f"{archive.path}: refused before running any of it: its pickle names {listed}{more}, "
            "which no YOLOv5 or YOLOv7 checkpoint needs; download the file from its source again, "
            "or export the model to ONNX"
        )
    if newer:
        model = next((name for name in newer if name.endswith("Model")), newer[0])
        if task := TASKS.get(model.rpartition(".")[2]):
            raise ModelError(
                f"{archive.path}: is a model for the task {task!r}; only detection is supported: "
                "use a model for the task 'detect'"
            )
        raise ModelError(
            f"{archive.path}: a model of a newer family ({_quote(model)}: YOLOv8 and later, "
            "YOLOv5u, RT-DETR) cannot be read from .pt; export it with: "
            f"yolo export model={archive.path.name} format=onnx, and give --model "
            f"{archive.path.with_suffix('.onnx').name}"
        )


def _quote(name: str) -> str:
    return name[:60].encode("unicode_escape").decode("ascii")


def collect_names(archive: Archive, data: bytes) -> set[tuple[str, str]]:
    """Collect the names that the byte code can load, without running it. Raises ModelError."""
    try:
        with warnings.catch_warnings(action="error"):  # Python warns of invalid escapes
            return set(_read_names(data))
    except (ValueError, IndexError, UnicodeError, Warning) as exc:  # if this is not a pickle
        reason = " ".join(str(exc).split())[:200]
        raise ModelError(
            f"{archive.path}: damaged or forged, refused: {reason}; download it again"
        ) from exc


def _read_names(data: bytes) -> Iterator[tuple[str, str]]:
    texts: list[str | None] = []  # the last two values pushed; None if a value is no text
    memo: dict[int, str | None] = {}
    for opcode, argument, at in pickletools.genops(data):
        name = opcode.name
        if name in REFUSED:
            raise ValueError(f"pickle code {name} at byte {at}")
        if name == "GLOBAL":
            module, _, rest = str(argument).partition(" ")
            yield module, rest
        elif name == "STACK_GLOBAL":
            module_text, name_text = [None, None, *texts][-2:]
            if module_text is None or name_text is None:
                raise ValueError(f"a computed name at byte {at}")
            yield module_text, name_text
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(memo) if name == "MEMOIZE" else int(str(argument))
            if place > len(data):  # the unpickler would allocate a table of this size
                raise ValueError(f"memo place {place} at byte {at}")
            memo[place] = texts[-1] if texts else None
            continue
        if name in TEXTS:
            texts.append(str(argument))
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            texts.append(memo.get(int(str(argument))))
        else:
            texts.append(None)
        del texts[:-2]
