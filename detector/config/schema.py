"""Every option once: its name, default, limits and help.

The command line, cfg/default.yaml and the table in docs/usage.md are made from this tree
(cli/options.py, reference.py). levels.py fills the tree from files and flags, and checks them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


def option(default: Any, help: str, metavar: str | None = None, **extra: Any) -> Any:
    """A field of the tree, which is an option of the command line too.

    ``extra``: ``choices`` (words, or a function that lists them), ``at_least``, ``at_most``,
    ``flags`` where they are not ``--name``, ``hidden`` where --help leaves it out.
    """
    return field(default=default, metadata={"help": help, "metavar": metavar, **extra})


# Choices are what the folders hold. They are listed when a text is shown or a value is checked;
# listing imports no library, so that --help stays quick.


def _engines() -> Sequence[str]:
    from detector import engines

    return "auto", *engines.names()


def _precisions() -> Sequence[str]:
    from detector.engines.base import PRECISIONS

    return "auto", *PRECISIONS


def _decoders() -> Sequence[str]:
    from detector import sources

    return sources.decoders()


def _sinks() -> Sequence[str]:
    from detector import sinks

    return sinks.names()


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    model: str = option(
        "street",
        "Model: a darknet .cfg, an .onnx, a YOLOv5 or YOLOv7 .pt, .safetensors or .yaml, or the "
        "name of a known model. street (person, vehicle) comes with the package.",
        "M",
    )
    weights: str | None = option(
        None, "Weights file; default: the model's own, or the one beside the model file.", "W"
    )
    names: str | None = option(
        None, "File of class names, one a line; default: the model's, or beside its file.", "N"
    )
    family: str | None = option(
        None, "Family of an .onnx file that is not recognised: yolov8, yolox...", "F"
    )
    cfg: str | None = option(
        None, "Darknet .cfg that a TensorRT plan was made of. It says what its outputs mean.", "C"
    )
    class_names: tuple[str, ...] | None = option(
        None, "Class names as a list. In a file, names: [person, vehicle] means this.", hidden=True
    )
    random_weights: int | None = option(
        None,
        "Random weights from this seed, for speed work. Boxes are meaningless.",
        "SEED",
        at_least=0,
        at_most=2**32 - 1,
    )


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    engine: str = option(
        "auto",
        "Engine: {choices}. auto takes what was measured fastest "
        "here, else what is installed, and says why.",
        "E",
        choices=_engines,
    )
    batch: int = option(1, "Frames in one inference.", "N", at_least=1, at_most=4096)
    size: str | None = option(
        None,
        "Network input: 640x384 (width x height), or 640: its longest side; default: the "
        "model's own.",
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
    engines_dir: str | None = option(
        None,
        "Folder of built engine files; default: engines/ of the checkout, else the user's cache.",
        "DIR",
    )
    precision: str = option(
        "auto",
        "Precision: {choices}. auto is fp32, unless detect-video "
        "compare measured another to be faster and close enough to fp32 on this machine.",
        "P",
        choices=_precisions,
    )
    device: str = option("auto", "Device: auto, cpu, cuda or cuda:N.", "D")
    device_memory: str = option(
        "auto",
        "Who allocates GPU memory for TensorRT: auto, pycuda, torch or cuda-python.",
        "M",
        choices=("auto", "pycuda", "torch", "cuda-python"),
    )
    engine_options: tuple[str, ...] | None = option(
        None, "The engine's own options: NAME=VALUE, with commas.", "A=B,C=D"
    )


CALIBRATIONS = ("minmax", "entropy", "percentile")


@dataclass(frozen=True, slots=True)
class CalibrationConfig:
    calibrate: str | None = option(
        None, "Video or pictures to calibrate int8 on: of the kind that you will run.", "IN"
    )
    calibrate_method: str = option(
        "minmax",
        "How int8 ranges are found: minmax, entropy or percentile.",
        "C",
        choices=CALIBRATIONS,
    )
    calibrate_frames: int = option(
        64, "Frames to calibrate on, spread over the source.", "N", at_least=1
    )
    budget: float = option(
        0.95,
        "Agreement with fp32 that int8 must keep, 2 x matched / (A + B). Layers stay float until "
        "it does.",
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
    max_det: int = option(300, "At most this many detections in a frame.", "N", at_least=1)


@dataclass(frozen=True, slots=True)
class InputConfig:
    decoder: str = option(
        "auto",
        "Decoder: opencv, av (PyAV) or auto. auto is opencv, and av where opencv gives up.",
        "D",
        choices=_decoders,
    )
    frames: int | None = option(None, "Stop after this many frames.", "N", at_least=1)
    stride: int = option(1, "Take every Nth frame.", "N", at_least=1)


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
        "What to write, with commas: {choices}; default: "
        "video,jsonl (pictures,jsonl for pictures).",
        "A,B",
        choices=_sinks,
    )
    no_video: bool = option(False, "Write no annotated video or pictures.")
    preset: str = option(
        "superfast",
        "x264 preset of the video, ultrafast to veryslow. veryfast files are a third smaller and "
        "cost half as much again.",
        "P",
        choices=PRESETS,
    )
    crf: int = option(23, "x264 quality of the video, 0 (best) to 51.", "N", at_least=0, at_most=51)
    run_dir: str | None = option(None, "Folder of the session; default: runs/IN-ENGINE.", "DIR")


@dataclass(frozen=True, slots=True)
class LoopConfig:
    sync: bool = option(False, "One plain loop instead of threads, for comparison.")
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


# Defaults of ``eval``: what average precision is customarily computed with.
EVAL_DEFAULTS = {"conf": 0.001, "iou": 0.65, "max_det": 300}


def options() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """(group, field) of every option, in the order of the tree."""
    for group in dataclasses.fields(Config):
        for leaf in dataclasses.fields(type(group.default)):  # type: ignore[arg-type]
            yield group.name, leaf


def flag_of(leaf: dataclasses.Field[Any]) -> str:
    """The long flag of an option: ``--max-det``."""
    return "--" + leaf.name.replace("_", "-")


def help_of(leaf: dataclasses.Field[Any]) -> str:
    """The help text of an option, with its choices where the text has a place for them."""
    text: str = leaf.metadata["help"]
    return text.replace("{choices}", ", ".join(choices_of(leaf))) if "{choices}" in text else text


def choices_of(leaf: dataclasses.Field[Any]) -> Sequence[str]:
    """The words that an option takes; empty where it takes any."""
    choices: Sequence[str] | Callable[[], Sequence[str]] = leaf.metadata.get("choices", ())
    return choices() if callable(choices) else choices
