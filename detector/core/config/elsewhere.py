"""Names that other programs use for our options and commands, and what to use instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

# Option of another program -> our option, or what to do instead.
HABITS = {
    **dict.fromkeys(
        ("--source", "--input", "-i"), "name the source without an option: detect-video in.mp4"
    ),
    **dict.fromkeys(("--imgsz", "--img", "--img-size"), "--size"),
    "--half": "--precision fp16, or bf16 if fp16 does not run here (see detect-video doctor)",
    "--fp16": "--precision fp16, or bf16 if fp16 does not run here (see detect-video doctor)",
    "--int8": "--precision int8",
    "--vid-stride": "--stride",
    "--conf-thres": "--conf",
    "--iou-thres": "--iou",
    "--agnostic-nms": "--agnostic",
    "--max-detections": "--max-det",
    "--nosave": "--no-video",
    "--save-txt": "--save yolo",
    "--save-crop": "--save crops",
    "--save-csv": "--save csv",
    "--save-json": "--save coco",
    "--augment": "not supported; --tiles finds small objects",
    "--save-frames": "--save pictures",
    "--region": "--zones",
    "--tracker": "--track bytetrack",
    "--project": "-o DIR/ for the outputs, --run-dir DIR for the session",
    "--name": "-o FILE or -o DIR/",
    **dict.fromkeys(("--exist-ok", "-y"), "not needed; a complete new file replaces the old one"),
    "--persist": "not needed; a tracker lasts for the whole source",
    "--hide-conf": "--hide-scores",
    "--line-thickness": "--line-width",
    "--show": "--serve 8080, for a page that shows the run; or open the written video",
    "--view-img": "--serve 8080, for a page that shows the run; or open the written video",
    "--data": "--names FILE for class names, or the command eval DATASET",
    "--task": "give a command: detect, eval, build, compare",
    **dict.fromkeys(("--cuda", "--gpu"), "--device cuda"),
    "--cpu": "--device cpu",
    "--end": "give the length instead: --duration SECONDS (from --start)",
    "--fps": "give --stride N to read every Nth frame",
    "--count": "give lines or zones with --zones FILE; to draw them: detect-video zones in.mp4",
    "--profile": "give the command: detect-video profile in.mp4",
    "--port": "--serve",
    "--log-file": "redirect standard error instead: 2> FILE",
    "--list-models": "give the command: detect-video models",
    "--track true": "--track",
    "--track botsort": "--track bytetrack or ocsort; no tracker compares appearances",
}
# Command of another program -> our command.
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
    "obb": "oriented boxes are not supported yet; models must give upright boxes",
    "train": "training is not supported; train elsewhere and give the result with --model",
    "segment": "masks are not supported yet; models must give boxes",
    "pose": "keypoints are not supported yet; models must give boxes",
    "classify": "classification is not supported; models must give boxes",
    "solutions": "not a command; to count: --zones; to pixelate: --blur; to cut out: --save crops",
    "burn": "not a command; use ffmpeg -i x.mkv -vf subtitles=x.mkv out.mp4",
    "metrics": "not a command; see 'nvprof Transition Guide' in Nsight Compute's manual",
    "version": "not a command; use detect-video --version",
    "count": "not a command; count with --zones FILE; to draw its lines: detect-video zones in.mp4",
    "settings": "not a command; use detect-video config show",
    "help": "not a command; use detect-video --help",
    "serve": "not a command; add --serve 8080 to a run: detect-video cameras.yaml --serve 8080",
    "live": "not a command; give a camera's address, such as detect-video rtsp://10.0.0.5/stream",
}
# Keyword argument of other libraries -> what to write instead.
IN_PYTHON = {
    **dict.fromkeys(("source", "input"), "pass it to detector(picture) or detector.stream(x)"),
    "save": "use detector.process(source, save=[...]), or found.save(path) for one picture",
    "show": "use found.plot(), which returns the picture with its boxes",
    "verbose": "not needed; Detector prints nothing",
    "stream": "use detector.stream(source) for videos and cameras",
    "save_txt": 'use process(source, save=["yolo"]), or found.to_df() for the values',
    "region": 'use zones={"lines": {"a": [[0, 9], [9, 9]]}}, with your points (x, y)',
}
# Attribute of other libraries' detectors, results and streams -> what to write instead.
OF_DETECTORS = {
    **{word: f"use detect-video {ours}" for word, ours in WORDS.items()},
    **ABSENT,
    "predict": "call it: detector(picture), or detector.stream(source) for videos and cameras",
    "track": 'use Detector(track="bytetrack") and detector.stream(source)',
    "to": 'use Detector(device="cuda")',
    **dict.fromkeys(("fuse", "model"), "not needed; for the class names: detector.names"),
}
OF_RESULTS = {  # NAME stands for the attribute that was asked for
    "xyxy": "use found.boxes (x1, y1, x2, y2), or one.box in a loop",
    **dict.fromkeys(("conf", "confidence"), "use found.scores, or one.score in a loop"),
    **dict.fromkeys(("cls", "class_id"), "use found.class_ids, or one.class_id in a loop"),
    **dict.fromkeys(("id", "tracker_id", "track_id"), "use found.track_ids"),
    **dict.fromkeys(("xywh", "xyxyn", "xywhn"), "compute it from found.boxes (x1, y1, x2, y2)"),
    **dict.fromkeys(("orig_img", "orig_shape", "path"), "use what you passed to detector(picture)"),
    **dict.fromkeys(("cpu", "numpy"), "not needed; found.boxes is a NumPy array"),
    **dict.fromkeys(("save_txt", "summary", "pandas"), "use found.to_dict() or found.to_df()"),
    "speed": "use detect-video profile",
    **dict.fromkeys(("boxes", "plot"), "use found.NAME, with found = detector(picture)"),
    "show": 'use found.save("out.jpg"), or cv2.imshow("found", found.plot())',
    **dict.fromkeys(("tojson", "to_json"), "use found.to_dict()"),
    "to_csv": "use found.to_df().to_csv(path)",
    "masks": ABSENT["segment"],
    "keypoints": ABSENT["pose"],
}
OF_STREAMS = dict.fromkeys(
    (*OF_RESULTS, "names", "save", "scores", "class_ids", "track_ids"),
    "a stream gives pairs: for frame, found in detector.stream(source)",
)
_OPTION = re.compile(r"--([a-z][a-z-]*)(?: (\w+)\b)?")


def answer_keyword(name: str, value: Any, known: Collection[str]) -> str | None:
    """Return a hint for a keyword, such as ``use size=640``, or None. ``known``: our keywords."""
    if name in IN_PYTHON:
        return IN_PYTHON[name]
    ours = HABITS.get("--" + name.replace("_", "-"))
    if ours is None or (option := _OPTION.match(ours)) is None:
        return ours
    keyword = option[1].replace("-", "_")
    if keyword not in known:
        return "write files yourself: found.save(path), found.plot(), found.to_df()"
    return f"use {keyword}={value if option[2] is None else option[2]!r}"


class AnswersAttributes:
    """A base class that suggests our attribute instead of another library's, such as ``xyxy``."""

    __slots__ = ()
    answers: ClassVar[Mapping[str, str]] = OF_RESULTS
    if not TYPE_CHECKING:  # type checkers must not see this, or they would accept any attribute

        def __getattr__(self, name):
            answer = self.answers.get(name, "").replace("NAME", name)
            error = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(f"{error}; {answer}" if answer else error, name=name, obj=self)
