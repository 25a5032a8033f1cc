"""A checkpoint's pickle -> plain records. Nothing that the file names is imported or called.

Two gates use one list of allowed names. First, all names in the byte code are collected; one that
is not allowed ends the reading. Then the unpickler asks again for each name. It hands out
stand-ins: instances store what they get; functions are our own.
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

# Every name that may stand in a checkpoint's pickle: what YOLOv5, YOLOv7 and torch write. None is
# ever imported: each has a stand-in here. Others are refused, even harmless ones.

INERT: dict[str, frozenset[str]] = {
    # module -> classes; an instance of one becomes a record of what was stored in it
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
    # Around the network: the options of the training, figures of numpy, paths.
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

CONTAINERS: dict[tuple[str, str], type] = {  # plain Python, by both of its generations' names
    ("__builtin__", "set"): set,
    ("builtins", "set"): set,
    ("__builtin__", "frozenset"): frozenset,
    ("builtins", "frozenset"): frozenset,
}

REBUILDERS = frozenset(  # of torch._utils
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
    """YOLOv8 and later, YOLOv5u, RT-DETR: their classes live in the package ``ultralytics``."""
    return module == "ultralytics" or module.startswith("ultralytics.")


LAYERS_OF_TORCH = ("torch.nn.", "torch._C._nn")  # and their functions
TASKS = {  # class of a newer family's model that does not detect -> its task
    "ClassificationModel": "classify",
    "OBBModel": "obb",
    "PoseModel": "pose",
    "SegmentationModel": "segment",
    "YOLOESegModel": "segment",
}

# Never written by torch.save: names by number, instances of old classes, bytes from outside.
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
    """A record of an instance: its class, the arguments it was made with, and what was stored."""

    __slots__ = ("arguments", "values")
    path = ""  # "models.common.Conv"; each named class has a subclass of its own

    arguments: tuple[Any, ...]
    values: dict[str, Any]

    def __new__(cls, *arguments: Any, **_: Any) -> Instance:
        made = super().__new__(cls)
        made.arguments, made.values = arguments, {}
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.values = {key: value for key, value in state.items() if isinstance(key, str)}


class OrderedMapping(dict[Any, Any]):
    """collections.OrderedDict; what else is stored in one (a state dict's versions) is dropped."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class StandIn:
    """A function of ours under a name of the file. It can only be called; state is refused."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("state for a function")


class StorageKind:
    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("state for a storage class")


class Storage:
    __slots__ = ("key", "kind", "stored")

    def __init__(self, kind: str, key: str, stored: int) -> None:
        self.kind, self.key, self.stored = kind, key, stored

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("state for a storage")


class Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, archive: Archive) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self._archive = archive
        self._classes: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in of a name; never an import, never an attribute of anything."""
        if not is_allowed(module, name):
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        if (module, name) not in self._classes:
            self._classes[module, name] = self._stand_in(module, name)
        return self._classes[module, name]

    def _stand_in(self, module: str, name: str) -> Any:
        if (module, name) in CONTAINERS:
            return CONTAINERS[module, name]
        if module == "collections":
            return OrderedMapping
        if module == "torch" and name in STORAGES:
            return StorageKind(STORAGES[name])
        if module == "torch._utils":
            return StandIn(_parameter if name.startswith("_rebuild_parameter") else self._tensor)
        return type(name, (Instance,), {"__slots__": (), "path": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Storage:
        """("storage", class, key, device, number of elements), as torch.save writes it."""
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
        found, wanted = self._archive.storage_bytes(key), stored * item_bytes(kind.kind)
        if found < wanted:
            raise pickle.UnpicklingError(f"storage {key} holds {max(found, 0)} bytes, not {wanted}")
        return Storage(kind.kind, key, stored)

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> StoredTensor:
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


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def unpickle(archive: Archive) -> Any:
    data = archive.pickle()
    refuse_other_names(archive, collect_names(archive, data))
    try:
        return Unpickler(data, archive).load()
    except ModelError:
        raise
    except Exception as exc:  # any: a forged file calls the stand-ins with what it likes
        reason = " ".join(str(exc).split())[:200]
        raise ModelError(
            f"{archive.path}: damaged or forged, refused: {reason}; download it again"
        ) from exc


def refuse_other_names(archive: Archive, names: set[tuple[str, str]]) -> None:
    newer = sorted(f"{module}.{name}" for module, name in names if is_of_newer_family(module))
    strangers = sorted(
        f"{module}.{name}"
        for module, name in names
        if not is_allowed(module, name)
        and not is_of_newer_family(module)
        # What torch has and YOLOv5 lacks says nothing against a model of a newer family.
        and not (newer and module.startswith(LAYERS_OF_TORCH))
    )
    if strangers:
        more = f" and {len(strangers) - SHOWN_NAMES} more" if len(strangers) > SHOWN_NAMES else ""
        listed = ", ".join(_quote(name) for name in strangers[:SHOWN_NAMES])
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
                "use one whose task is detect"
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
        with warnings.catch_warnings(action="error"):  # an escape in a name: torch writes none
            return set(_read_names(data))
    except (ValueError, IndexError, UnicodeError, Warning) as exc:  # of pickletools: no pickle
        reason = " ".join(str(exc).split())[:200]
        raise ModelError(
            f"{archive.path}: damaged or forged, refused: {reason}; download it again"
        ) from exc


def _read_names(data: bytes) -> Iterator[tuple[str, str]]:
    texts: list[str | None] = []  # the latest pushed values: the text, None for anything else
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
            if place > len(data):  # the unpickler would make a table of that many places
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
