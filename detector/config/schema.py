"""Layers of YAML and options -> one frozen tree, or an error that names the path and the nearest known key.

Names, defaults and help of every option live here, once: the command line is made from this tree.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from detector.errors import UsageError


def option(default: Any, help: str, metavar: str | None = None, **extra: Any) -> Any:
    """A field of the tree that is an option of the command line too. ``extra``: choices, at_least, at_most, flags."""
    return field(default=default, metadata={"help": help, "metavar": metavar, **extra})


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    model: str = option(
        "street",
        "Model: a darknet .cfg, an .onnx, a YOLOv5 or YOLOv7 .pt, .safetensors or .yaml, or the name of a known one.",
        "M",
    )
    weights: str | None = option(
        None, "Weights file; default: the model's own, or beside the model file.", "W"
    )
    names: str | None = option(
        None, "File of class names, one a line; default: the model's, or beside its file.", "N"
    )
    family: str | None = option(
        None, "Family of an .onnx file, where it is not recognised: yolov8, yolox...", "F"
    )
    cfg: str | None = option(
        None, "Darknet .cfg that says what a TensorRT plan's outputs mean.", "C"
    )
    class_names: tuple[str, ...] | None = option(
        None, "Class names one by one, where names: is a list.", hidden=True
    )
    random_weights: int | None = option(
        None,
        "Random weights from this seed, for speed work: boxes are meaningless.",
        "SEED",
        at_least=0,
        at_most=2**32 - 1,
    )


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    engine: str = option(
        "auto",
        "Engine: auto, trt, ort, openvino, torch, null. auto takes what is installed and says why.",
        "E",
    )
    batch: int = option(1, "Frames in one inference.", "N", at_least=1, at_most=4096)
    size: str | None = option(
        None,
        "Network input: 640x384 (width x height), or 640: its longest side; default: the model's own.",
        "S",
    )
    threads: int = option(
        0, "CPU threads of one request; 0: the engine's choice.", "N", at_least=0, at_most=4096
    )
    concurrency: int = option(
        0,
        "Requests inside the engine at once; 0: the engine's choice.",
        "N",
        at_least=0,
        at_most=256,
    )
    engines_dir: str | None = option(None, "Where built engine files are kept.", "DIR")
    precision: str = option(
        "auto",
        "Precision: fp32, tf32, bf16, fp16, int8, or auto: fp32, unless another was measured faster and right "
        "enough on this machine (detect-video compare).",
        "P",
        choices=("auto", "fp32", "tf32", "bf16", "fp16", "int8"),
    )
    device: str = option("auto", "Device: auto, cpu, cuda or cuda:N.", "D")
    device_memory: str = option(
        "auto",
        "GPU memory for TensorRT through auto, pycuda, torch or cuda-python.",
        "M",
        choices=("auto", "pycuda", "torch", "cuda-python"),
    )
    engine_options: tuple[str, ...] | None = option(
        None, "The engine's own: NAME=VALUE, with commas.", "A=B,C=D"
    )


CALIBRATIONS = ("minmax", "entropy", "percentile")


@dataclass(frozen=True, slots=True)
class CalibrationConfig:
    calibrate: str | None = option(
        None, "Video or pictures to calibrate int8 on: the kind you will run.", "IN"
    )
    calibrate_method: str = option(
        "minmax", "Ranges of int8: minmax, entropy or percentile.", "C", choices=CALIBRATIONS
    )
    calibrate_frames: int = option(
        64, "Frames to calibrate on, spread over the source.", "N", at_least=1
    )
    budget: float = option(
        0.95,
        "Agreement with fp32 that int8 must keep (2 x matched / (A + B)); layers stay float until it does.",
        "A",
        at_least=0.0,
        at_most=1.0,
    )


@dataclass(frozen=True, slots=True)
class SelectionConfig:
    conf: float = option(0.25, "Confidence threshold.", "C", at_least=0.0, at_most=1.0)
    iou: float = option(
        0.45,
        "IoU above which a better box of the same class suppresses another.",
        "I",
        at_least=0.0,
        at_most=1.0,
    )
    classes: tuple[str, ...] | None = option(
        None, "Keep these classes only: names or ids, with commas.", "A,B"
    )
    agnostic: bool = option(False, "Boxes suppress each other across classes.")
    max_det: int = option(300, "At most this many detections a frame.", "N", at_least=1)


@dataclass(frozen=True, slots=True)
class InputConfig:
    decoder: str = option(
        "auto",
        "Decoder: opencv, av (PyAV), or auto: opencv, and av where it gives up.",
        "D",
        choices=("auto", "opencv", "av"),
    )
    frames: int | None = option(None, "Stop after this many frames.", "N", at_least=1)
    stride: int = option(1, "Take every Nth frame.", "N", at_least=1)


SAVES = ("video", "pictures", "yolo", "coco", "mot", "jsonl", "csv")
PRESETS = (
    "ultrafast",
    "superfast",
    "veryfast",
    "faster",
    "fast",
    "medium",
    "slow",
    "slower",
    "veryslow",
)


@dataclass(frozen=True, slots=True)
class OutputConfig:
    output: str | None = option(
        None,
        "File (one source) or folder; default: IN-ENGINE-detected.* in the current folder.",
        "OUT",
        flags=("-o", "--output"),
    )
    save: tuple[str, ...] | None = option(
        None,
        "What to write, with commas: video, pictures, jsonl, csv, coco, mot, yolo. Default: video,jsonl "
        "(pictures,jsonl).",
        "A,B",
        choices=SAVES,
    )
    no_video: bool = option(False, "Write no annotated video or pictures.")
    preset: str = option(
        "superfast",
        "x264 preset of the video: ultrafast, superfast, veryfast, ..., slow.",
        "P",
        choices=PRESETS,
    )
    crf: int = option(23, "x264 quality of the video, 0 (best) to 51.", "N", at_least=0, at_most=51)
    run_dir: str | None = option(None, "Folder of the session; default: runs/IN-ENGINE.", "DIR")


@dataclass(frozen=True, slots=True)
class LoopConfig:
    sync: bool = option(False, "One plain loop instead of threads: the lab's way, for comparison.")
    queue_batches: int = option(
        2, "Filled batches that may wait for the engine.", "N", at_least=1, hidden=True
    )
    nvtx: bool = option(True, "NVTX ranges around every stage.", hidden=True)
    instruments: bool = option(
        True, "Timers around every stage; off to measure what they cost.", hidden=True
    )


@dataclass(frozen=True, slots=True)
class Config:
    network: NetworkConfig = NetworkConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    selection: SelectionConfig = SelectionConfig()
    input: InputConfig = InputConfig()
    output: OutputConfig = OutputConfig()
    loop: LoopConfig = LoopConfig()

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# What ``eval`` takes where nothing else is said: what AP is customarily computed with.
EVAL_DEFAULTS = {"conf": 0.001, "iou": 0.65, "max_det": 300}


def options() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """(group, field) of every option, in the order of the tree."""
    for group in dataclasses.fields(Config):
        for leaf in dataclasses.fields(type(group.default)):  # type: ignore[arg-type]
            yield group.name, leaf


COMMAND_LINE = (
    "command line"  # as a layer's origin: messages then name the flag, not the path in the tree
)

_GROUP_OF = {leaf.name: group for group, leaf in options()}


def flag_of(leaf: dataclasses.Field[Any]) -> str:
    """The long flag of an option: ``--max-det``."""
    return "--" + leaf.name.replace("_", "-")


def merge_levels(*layers: tuple[str, Mapping[str, Any]]) -> Config:
    """The layers ("where it comes from", nested or flat keys), later ones winning, checked and frozen."""
    values: dict[str, dict[str, Any]] = {group.name: {} for group in dataclasses.fields(Config)}
    for origin, layer in layers:
        for group, name, value in _leaves(origin, layer):
            values[group][name] = _checked(origin, group, name, value)
    groups = {f.name: type(f.default)(**values[f.name]) for f in dataclasses.fields(Config)}  # type: ignore[misc]
    return Config(**groups)


def read_level(path: str | Path) -> tuple[str, dict[str, Any]]:
    """A YAML file as a layer for ``resolve``."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot read the configuration: {_reason(error)}") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UsageError(
            f"{where}: not valid YAML: {getattr(error, 'problem', None) or 'unreadable'}"
        ) from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise UsageError(
            f"{path}: a configuration is a mapping of options (conf: 0.4), not a {_kind(content)}"
        )
    return str(path), content


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"


def _leaves(origin: str, layer: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for key, value in layer.items():
        if key in Config.__dataclass_fields__ and isinstance(value, Mapping):
            for name, leaf in value.items():
                if _GROUP_OF.get(name) != key:
                    raise UsageError(_unknown(origin, f"{key}.{name}"))
                yield key, name, leaf
        elif key in Config.__dataclass_fields__ and value is None:
            continue  # an empty group
        elif key in _GROUP_OF:
            yield _GROUP_OF[key], key, value
        else:
            raise UsageError(_unknown(origin, str(key)))


def _unknown(origin: str, path: str) -> str:
    known = [f"{group}.{name}" for name, group in _GROUP_OF.items()]
    by_leaf = difflib.get_close_matches(
        path.rsplit(".", 1)[-1].replace("-", "_"), _GROUP_OF, 1, 0.5
    )
    by_path = difflib.get_close_matches(path, known, 1, 0.5)
    nearest = (
        f"{_GROUP_OF[by_leaf[0]]}.{by_leaf[0]}" if by_leaf else by_path[0] if by_path else None
    )
    hint = f"; did you mean {nearest}?" if nearest else f"; known: {', '.join(known)}"
    return f"{origin}: unknown key {path}{hint}"


def _kind(value: Any) -> str:
    return {"str": "text", "list": "list", "dict": "mapping"}.get(
        type(value).__name__, type(value).__name__
    )


def _checked(origin: str, group: str, name: str, value: Any) -> Any:
    """The value in the field's own type, within its limits; else an error that names the path."""
    leaf = next(f for g, f in options() if g == group and f.name == name)
    where = flag_of(leaf) if origin == COMMAND_LINE else f"{origin}: {group}.{name}"
    hint = typing.get_type_hints(type(getattr(Config(), group)))[name]
    wanted, optional = _plain(hint)
    if value is None:
        if optional:
            return None
        raise UsageError(f"{where} needs a value")
    try:
        value = _convert(wanted, value)
    except (TypeError, ValueError):
        raise UsageError(f"{where}: {value!r} is not {_WANTED[wanted]}") from None
    _check_limits(where, value, leaf.metadata)
    return value


def _plain(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return typing.get_origin(inner[0]) or inner[0], True
    return typing.get_origin(hint) or hint, False


_WANTED = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list",
}


def _convert(wanted: type, value: Any) -> Any:
    if wanted is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            items = [items]
        return tuple(str(item).strip() for item in items if str(item).strip())
    if wanted is bool or isinstance(value, bool):
        if wanted is bool and isinstance(value, bool):
            return value
        raise TypeError
    if wanted is str:
        if isinstance(value, (str, int, float)):
            return str(value)
        raise TypeError
    number = wanted(value)
    if wanted is int and number != float(value):
        raise ValueError
    if number != number:
        raise ValueError
    return number


def _check_limits(where: str, value: Any, limits: Mapping[str, Any]) -> None:
    low, high, choices = limits.get("at_least"), limits.get("at_most"), limits.get("choices")
    if low is not None and value < low:
        raise UsageError(f"{where}: {value} is too small: at least {low}")
    if high is not None and value > high:
        raise UsageError(f"{where}: {value} is too large: at most {high}")
    if choices:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in choices:
                near = difflib.get_close_matches(str(item), choices, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UsageError(f"{where}: {item!r} is not one of {', '.join(choices)}{hint}")
