"""The core's options, with default, limits and help. A wing's options are in WING/config.py.

The command line (cli/command.py), cfg/default.yaml and the table in docs/usage.md (scripts/options)
are made from this tree. levels.py fills it from files and flags, and checks the values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from detector.core import wings
from detector.core.config import option

Group = TypeVar("Group")
# Each of these functions returns the choices of an option. They are called to show help or to check
# a value. They import no library, so that --help stays quick.


def _engines() -> Sequence[str]:
    from detector.core import engines

    return "auto", *engines.names()


def _precisions() -> Sequence[str]:
    from detector.core.engines.base import PRECISIONS

    return "auto", *PRECISIONS


def _decoders() -> Sequence[str]:
    from detector.core import sources

    return sources.decoders()


def _sinks() -> Sequence[str]:
    from detector.core import sinks

    return sinks.names()


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    title: ClassVar = "Model"
    model: str = option(
        "street",
        "Model: a darknet .cfg, an .onnx, a YOLOv5 or YOLOv7 .pt, .safetensors or .yaml, or the "
        "name of a known model. street (person, vehicle) comes with the package.",
        "M",
        short="Model file (.onnx, .cfg, .pt...) or known name",
        common=True,
    )
    weights: str | None = option(
        None, "Weights file; default: the model's own, or the one next to the model file.", "W"
    )
    names: str | None = option(
        None,
        "File of class names, one per line; default: the model's own, or the one next to its file.",
        "N",
    )
    family: str | None = option(
        None,
        "Family of an .onnx or .xml file that is not recognised: yolov8, yolox...",
        "F",
        short="Family of a model that is not recognised",
    )
    describe: str | None = option(
        None,
        "YAML that describes input and outputs of an .onnx or .xml file. To get one, run: "
        "detect-video models describe X.onnx.",
        "D",
        short="YAML that describes an .onnx or .xml",
    )
    cfg: str | None = option(
        None,
        "Darknet .cfg that a TensorRT plan was built from; it describes the plan's outputs.",
        "C",
    )
    class_names: tuple[str, ...] | None = option(
        None, "Class names as a list; in a file: 'names: [person, vehicle]'.", hidden=True
    )
    random_weights: int | None = option(
        None,
        "Random weights from this seed, to measure speed. The boxes are meaningless.",
        "SEED",
        at_least=0,
        at_most=2**32 - 1,
    )


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    title: ClassVar = "Engine"
    engine: str = option(
        "auto",
        "Engine: {choices}. auto picks the one that compare --use, tune --use or --self-timing "
        "found fastest on this machine, else the best one installed, and says why. null runs no "
        "network, to time all the rest.",
        "E",
        choices=_engines,
        short="{choices}",
        common=True,
    )
    batch: int = option(
        1, "Frames per inference; with --tiles, tiles per inference.", "N", at_least=1, at_most=1024
    )
    size: str | None = option(
        None,
        "Network input: 640x384 (width x height), or 640 (the longest side); default: the model's "
        "own; the default model takes the shape of the video.",
        "S",
        also="int",
        short="Network input: 640x384, or 640 (longest side)",
        common=True,
    )
    rect: bool = option(
        False,
        "Give each image an input of its own shape: the longest side is --size, or that of the "
        "model's own input; the other side fits the image.",
        short="Fit the input's shape to each image",
    )
    threads: int = option(
        0, "CPU threads per request; 0: the engine's choice.", "N", at_least=0, at_most=1024
    )
    concurrency: int = option(
        0,
        "Requests that the engine runs at once; 0: the engine's choice.",
        "N",
        at_least=0,
        at_most=256,
    )
    engines_dir: str | None = option(
        None,
        "Folder for built engine files; default: engines/ of the checkout, else the user's cache.",
        "DIR",
    )
    precision: str = option(
        "auto",
        "Precision: {choices}. auto is fp32, unless compare --use, tune --use or --self-timing "
        "found another one faster on this machine and close enough to fp32.",
        "P",
        choices=_precisions,
        short="{choices}",
        common=True,
    )
    device: str = option(
        "auto",
        "Device: auto; cpu; cuda, cuda:N or N for NVIDIA's GPUs; gpu, gpu:N or npu for Intel's.",
        "D",
        short="auto, cpu, cuda, gpu or npu; cuda:N, gpu:N",
    )
    device_memory: str = option(
        "auto",
        "Allocator of GPU memory for TensorRT: auto, pycuda, torch or cuda-python.",
        "M",
        choices=("auto", "pycuda", "torch", "cuda-python"),
        short="Allocator of GPU memory for TensorRT",
    )
    self_timing: bool = option(
        True,
        "Benchmark the engines once, in a model's first run on this machine (up to 3 s, and 5% "
        "of the run), and use the fastest if engine or precision is auto. "
        "DETECT_VIDEO_SELF_TIMING=0 in the environment also turns this off.",
        short="Benchmark the engines in the first run here",
    )
    engine_options: tuple[str, ...] | None = option(
        None, "Engine options: NAME=VALUE, separated by commas.", "A=B,C=D"
    )


CALIBRATIONS = ("minmax", "percentile")


PACKAGED = "packaged"  # --calibrate packaged: the calibration that comes with the default model


@dataclass(frozen=True, slots=True)
class CalibrationConfig:
    title: ClassVar = "int8"
    calibrate: str | None = option(
        None,
        "Video or images to calibrate int8 on, like those that you will run. packaged: the "
        "calibration that comes with the default model.",
        "IN",
        short="Video or images to calibrate int8 on",
    )
    calibrate_method: str = option(
        "minmax",
        "How to find the int8 ranges: minmax or percentile.",
        "C",
        choices=CALIBRATIONS,
        short="How to find the int8 ranges",
    )
    calibrate_frames: int = option(
        64, "Frames to calibrate on, spread over the source.", "N", at_least=1, at_most=10_000
    )
    budget: float = option(
        0.95,
        "Agreement with fp32 that int8 must keep: twice the matched boxes divided by the boxes of "
        "both. Layers stay in float until int8 keeps it.",
        "A",
        at_least=0.0,
        at_most=1.0,
        short="Agreement with fp32 that int8 must keep",
    )


@dataclass(frozen=True, slots=True)
class SelectionConfig:
    title: ClassVar = "Selection"
    conf: float = option(0.25, "Confidence threshold.", "C", at_least=0.0, at_most=1.0, common=True)
    iou: float = option(
        0.45,
        "IoU above which a better box of the same class suppresses another.",
        "I",
        at_least=0.0,
        at_most=1.0,
        short="IoU above which a better box suppresses another",
    )
    classes: tuple[str, ...] | None = option(
        None,
        "Keep only these classes: names or ids, separated by commas; a name that contains a comma "
        "goes in double quotes.",
        "A,B",
        short="Keep only these classes: names or ids",
        also="int",
        common=True,
    )
    agnostic: bool = option(False, "Let boxes of different classes suppress each other.")
    max_det: int = option(
        300, "At most this many detections per frame.", "N", at_least=1, at_most=100_000
    )


@dataclass(frozen=True, slots=True)
class InputConfig:
    title: ClassVar = "Input"
    decoder: str = option(
        "auto",
        "Decoder: opencv (cv2.VideoCapture), av (PyAV, packet by packet) or auto. auto uses PyAV "
        "on all cores, or opencv if an output needs BGR, and continues with av if opencv fails.",
        "D",
        choices=_decoders,
        short="Decoder: auto, av or opencv",
    )
    frames: int | None = option(
        None, "Stop after this many frames.", "N", at_least=1, at_most=10**9, common=True
    )
    stride: int = option(1, "Take every Nth frame.", "N", at_least=1, at_most=10**6)
    skip_still: str | None = option(
        None,
        "Skip inference for frames in which at most this share of the image (0.5%) changed since "
        "the last inferred frame. Skipped frames repeat its detections and are marked.",
        "SHARE",
        short="Skip inference if at most this much changed: 0.5%",
    )
    full_decode: bool = option(
        False,
        "Decode JPEGs and MJPEG at full size even if no output shows them. By default they are "
        "decoded at 1/2, 1/4 or 1/8 of the size, at least 1.5 times the network's input.",
        short="Decode JPEGs and MJPEG whole, shown or not",
    )
    tiles: str | None = option(
        None,
        "Cut each image into tiles (columns x rows) and run the network on them as well as on the "
        "whole image. This finds small objects, but 2x2 takes five inferences per image.",
        "2x2",
        short="Also infer tiles of each image",
    )
    start: str | None = option(
        None,
        "Skip everything before this time, counted from the start of the source: seconds, or "
        "[HH:]MM:SS.",
        "T",
        also="float",
        short="Start at this time: seconds or [HH:]MM:SS",
    )
    duration: str | None = option(
        None,
        "Stop after this much time of the source: seconds, or [HH:]MM:SS.",
        "T",
        also="float",
        short="Stop after this time: seconds or [HH:]MM:SS",
        common=True,
    )
    video_track: int | None = option(
        None,
        "Video track to read, counted from 1, if a file has several; default: the one marked as "
        "default, else the largest.",
        "N",
        at_least=1,
        at_most=10_000,
        short="Video track to read, if a file has several",
    )
    rate: str | None = option(
        None,
        "Frame rate of a raw stream (.h264, .m2v, .mjpeg...): 30 or 30000/1001; default: what its "
        "header states, else 25.",
        "FPS",
        also="float",
        short="Frame rate of a raw stream",
    )
    grey_range: str = option(
        "auto",
        "Range of samples to draw from black to white, for grey of more than 8 bits (thermal "
        "cameras): 29300-31500; full: the whole range; auto: the range in use, if narrow.",
        "LOW-HIGH",
        short="Range of deep grey drawn from black to white",
    )


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


QUALITIES = ("fast", "balanced", "small")
ENCODERS = ("x264", "svtav1", "nvenc", "qsv")


@dataclass(frozen=True, slots=True)
class OutputConfig:
    title: ClassVar = "Output"
    output: str | None = option(
        None,
        "File (for one source), folder, or - to print the detections (with --save video: the "
        "video); default: IN-detected.* in the current folder, or "
        "IN-ENGINE-detected.* with --engine.",
        "OUT",
        flags=("-o", "--output"),
        short="File, folder/, or - (standard output)",
        common=True,
    )
    save: tuple[str, ...] | None = option(
        None,
        "What to write, separated by commas: {choices}; default: video,jsonl (pictures,jsonl for "
        "images).",
        "A,B",
        choices=_sinks,
        short="Outputs: video,jsonl,csv,coco,yolo,mot,crops...",
        common=True,
    )
    save_conf: bool = option(
        False,
        "Append the score to each line of --save yolo, which otherwise has five numbers.",
        short="Write scores into the labels of --save yolo",
    )
    save_times: bool = option(
        False,
        "Write the milliseconds of each stage into each line of --save jsonl and csv; each frame "
        "of a batch gets its share of the inference.",
        short="Add each stage's milliseconds to jsonl and csv",
    )
    no_video: bool = option(False, "Write no annotated video or images.", common=True)
    only_detections: bool = option(
        False, "Write only frames with detections; of a video, clips around them (see --lead)."
    )
    lead: float | None = option(
        None,
        "With --only-detections: seconds of video kept before and after a detection; default: 2.",
        "S",
        at_least=0.0,
        at_most=600.0,
        short="Seconds around detections, for --only-detections",
    )
    quality: str | None = option(
        None,
        "How to encode a video: {choices}; default: balanced. In H.264, fast uses up to a quarter "
        "less CPU and makes files 1.5 times as large; small uses over twice the CPU and makes "
        "files about half as large.",
        "Q",
        choices=QUALITIES,
    )
    preset: str | None = option(
        None,
        "x264 preset (.mp4, .mkv, .mov, .ts; libvpx in .webm) instead of --quality: ultrafast to "
        "veryslow.",
        "P",
        choices=PRESETS,
        short="x264 preset, instead of --quality",
    )
    crf: int | None = option(
        None,
        "Constant rate factor; 0 is best: up to 51 in H.264 (default: 22.5, or 23 with --preset), "
        "up to 63 in VP9 (default: 32) and AV1 (default: 35).",
        "N",
        at_least=0,
        at_most=63,
        short="Constant rate factor; 0 is best",
    )
    encoder: str | None = option(
        None,
        "Encoder of H.264 and AV1: {choices}; default: x264. svtav1 writes AV1 into .mp4 and "
        ".mkv; nvenc needs an NVIDIA GPU, and qsv an Intel GPU.",
        "E",
        choices=ENCODERS,
        short="Encoder of the video: x264, svtav1, nvenc, qsv",
    )
    run_dir: str | None = option(
        None, "Folder of the saved run; default: runs/IN, or runs/IN-ENGINE with --engine.", "DIR"
    )


@dataclass(frozen=True, slots=True)
class DrawingConfig:
    title: ClassVar = "Pictures"
    line_width: int | None = option(
        None,
        "Line width of boxes in pixels; default: scales with the picture.",
        "N",
        at_least=1,
        at_most=256,
    )
    font_scale: float = option(
        1.0, "Size of label text: 2 doubles it.", "F", at_least=0.1, at_most=20.0
    )
    font: str | None = option(
        None,
        "Font file for labels (TTF, OTF, TTC), for class names in any script.",
        "FILE",
        short="Font file for labels, for any script",
    )
    hide_labels: bool = option(False, "Draw boxes without labels.")
    hide_scores: bool = option(False, "Omit scores from labels.")
    blur: tuple[str, ...] | None = option(
        None,
        "Pixelate the boxes of these classes in every image and video that is written: names or "
        "ids, separated by commas. Objects that are not detected stay visible.",
        "A,B",
        short="Pixelate these classes in videos and images",
        also="int",
        common=True,
    )


@dataclass(frozen=True, slots=True)
class LoopConfig:
    title: ClassVar = "Loop"
    sync: bool = option(False, "Run one plain loop, not threads, for comparison.")
    queue_batches: int = option(
        2, "Filled batches that may wait for the engine.", "N", at_least=1, at_most=256, hidden=True
    )
    nvtx: bool = option(True, "NVTX ranges around every stage.", hidden=True)
    instruments: bool = option(
        True, "Timers around every stage; turn off to measure their overhead.", hidden=True
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All options. The groups of the core are attributes; ``of`` returns those that wings add."""

    network: NetworkConfig = NetworkConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    selection: SelectionConfig = SelectionConfig()
    input: InputConfig = InputConfig()
    output: OutputConfig = OutputConfig()
    drawing: DrawingConfig = DrawingConfig()
    loop: LoopConfig = LoopConfig()

    def as_dict(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        return {group: content[group] for group in option_groups()}

    def of(self, kind: type[Group]) -> Group:
        """Return the group of class ``kind``. Raises StopIteration if its wing is not installed."""
        values = (getattr(self, group) for group in option_groups())
        return next(value for value in values if isinstance(value, kind))

    def value(self, name: str, default: Any = dataclasses.MISSING) -> Any:
        """Return one option, whatever its group; ``default`` if no group has it. Raises KeyError
        without a default."""
        if default is not dataclasses.MISSING and not has_option(name):
            return default
        return getattr(getattr(self, _groups_of_options()[name]), name)

    def with_options(self, given: Mapping[str, Any]) -> Config:
        """Return a copy with these options replaced. Raises KeyError for an unknown name."""
        changes: dict[str, dict[str, Any]] = {}
        for name, value in given.items():
            changes.setdefault(_groups_of_options()[name], {})[name] = value
        changed = {
            group: dataclasses.replace(getattr(self, group), **values)
            for group, values in changes.items()
        }
        return dataclasses.replace(self, **changed)


CORE_GROUPS = {group.name: type(group.default) for group in dataclasses.fields(Config)}
if not TYPE_CHECKING:  # adds the groups of the wings
    Config = dataclasses.make_dataclass(
        "Config",
        [(name, kind, kind()) for name, kind in wings.options().items()],
        bases=(Config,),
        namespace={"__module__": __name__, "__doc__": Config.__doc__},
        frozen=True,
        slots=True,
    )


@cache
def option_groups() -> Mapping[str, Any]:
    """Return group -> class in the order of --help. If a wing's class names a group of the core in
    ``after``, the wing's group follows that group. Otherwise it is at the end."""
    ordered: dict[str, Any] = {}
    added = wings.options()
    for name, kind in CORE_GROUPS.items():
        behind = {other: its for other, its in added.items() if getattr(its, "after", "") == name}
        ordered |= {name: kind, **behind}
    return {**ordered, **added}


@cache
def _groups_of_options() -> Mapping[str, str]:
    return {leaf.name: group for group, leaf in options()}


def has_option(name: str) -> bool:
    return name in _groups_of_options()


# Defaults of ``eval``, which are usual for average precision.
EVAL_DEFAULTS = {"conf": 0.001, "iou": 0.65, "max_det": 300}


def options() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    for group, kind in option_groups().items():
        for leaf in dataclasses.fields(kind):
            yield group, leaf


def flag_of(leaf: dataclasses.Field[Any]) -> str:
    """Return the long flag of an option: ``--max-det``."""
    given = [flag for flag in leaf.metadata.get("flags", ()) if flag.startswith("--")]
    return given[0] if given else "--" + leaf.name.replace("_", "-")


def help_of(leaf: dataclasses.Field[Any]) -> str:
    """Return the help text of an option, with its choices in place of ``{choices}``."""
    return _with_choices(leaf, leaf.metadata["help"])


def short_of(leaf: dataclasses.Field[Any]) -> str:
    """Return the short help text of an option, at most 50 characters."""
    first = leaf.metadata["help"].split(". ")[0].split(";")[0].removesuffix(".")
    return _with_choices(leaf, leaf.metadata.get("short", first))


def _with_choices(leaf: dataclasses.Field[Any], text: str) -> str:
    return text.replace("{choices}", ", ".join(choices_of(leaf))) if "{choices}" in text else text


def choices_of(leaf: dataclasses.Field[Any]) -> Sequence[str]:
    """Return the words that an option accepts; empty if it accepts any."""
    choices: Sequence[str] | Callable[[], Sequence[str]] = leaf.metadata.get("choices", ())
    return choices() if callable(choices) else choices
