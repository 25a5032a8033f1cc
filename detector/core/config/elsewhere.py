"""Names that other programs use for our options and commands, and what to use instead."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

# Option of another program -> ours, or what to do instead.
HABITS = {
    **dict.fromkeys(
        ("--source", "--input", "-i"), "name the source without an option: detect-video in.mp4"
    ),
    **dict.fromkeys(("--imgsz", "--img", "--img-size"), "--size"),
    "--half": "--precision fp16, or bf16 if fp16 does not run here (detect-video doctor)",
    "--fp16": "--precision fp16, or bf16 if fp16 does not run here (detect-video doctor)",
    "--int8": "--precision int8",
    "--vid-stride": "--stride",
    "--conf-thres": "--conf",
    "--iou-thres": "--iou",
    "--agnostic-nms": "--agnostic",
    "--max-detections": "--max-det",
    "--nosave": "--no-video",
    "--save-txt": "--save yolo",
    "--save-crop": "--save crops",
    "--save-frames": "--save pictures",
    "--tracker": "--track bytetrack",
    "--project": "-o DIR/ for the outputs, --run-dir DIR for the session",
    "--name": "-o FILE or -o DIR/",
    **dict.fromkeys(("--exist-ok", "-y"), "not needed; a complete new file replaces the old one"),
    "--hide-conf": "--hide-scores",
    "--line-thickness": "--line-width",
    "--show": "--serve 8080, for a page that shows the run; or open the written video",
    "--view-img": "--serve 8080, for a page that shows the run; or open the written video",
    "--data": "--names FILE for class names, or eval DATASET",
    "--task": "give a command: detect, eval, build, compare",
    **dict.fromkeys(("--cuda", "--gpu"), "--device cuda"),
    "--cpu": "--device cpu",
    "--end": "give the length instead: --duration SECONDS (from --start)",
    "--fps": "give --stride N to read every Nth frame",
    "--count": "give lines or zones: detect-video zones in.mp4, then --zones FILE",
    "--list-models": "give the command: detect-video models",
    "--track true": "--track",
    "--track botsort": "--track bytetrack or ocsort; no tracker compares appearances",
}
# Command of another program -> ours.
WORDS = {
    "predict": "detect",
    "track": "detect --track",
    **dict.fromkeys(("val", "validate", "test"), "eval"),
    "export": "build --to onnx",
    **dict.fromkeys(("benchmark", "bench"), "compare"),
    "info": "models show",
    "checks": "doctor",
    "cfg": "config",
}
# Command that we do not have -> what to do instead.
ABSENT = {
    "train": "training is not supported; train elsewhere and give the result with --model",
    "segment": "masks are not supported yet; models must give boxes",
    "pose": "keypoints are not supported yet; models must give boxes",
    "classify": "classification is not supported; models must give boxes",
    "solutions": "not a command; --zones counts, --blur pixelates, --save crops cuts objects out",
    "version": "not a command; use detect-video --version",
    "count": "not a command; detect-video zones in.mp4 draws lines, and --zones counts",
    "help": "not a command; use detect-video --help",
    "live": "not a command; give a camera's address, such as detect-video rtsp://10.0.0.5/stream",
}
# Keyword argument of other libraries -> what to write instead.
IN_PYTHON = {
    "source": "pass it to detector(picture) or detector.stream(source)",
    "input": "pass it to detector(picture) or detector.stream(source)",
    "save": "use detector.process(source, save=[...]), or found.save(path) for one picture",
    "show": "use found.plot(), which returns the picture with its boxes",
    "verbose": "not needed; Detector prints nothing",
    "stream": "use detector.stream(source) for videos and cameras",
    "save_txt": "use found.to_dict() or found.to_df() for the values",
}
_OPTION = re.compile(r"--([a-z][a-z-]*)(?: (\w+)\b)?")


def answer_keyword(name: str, value: Any, known: Collection[str]) -> str | None:
    """Return a hint such as ``use size=640``, or None. ``known``: our keywords."""
    if name in IN_PYTHON:
        return IN_PYTHON[name]
    ours = HABITS.get("--" + name.replace("_", "-"))
    if ours is None or (option := _OPTION.match(ours)) is None:
        return ours
    keyword = option[1].replace("-", "_")
    if keyword not in known:
        return "write files yourself: found.save(path), found.plot(), found.to_df()"
    return f"use {keyword}={value if option[2] is None else option[2]!r}"
