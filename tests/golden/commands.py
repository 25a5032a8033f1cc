"""The command lines whose results are recorded in tests/golden."""

from dataclasses import dataclass

DOTS = ("--model", "dots.onnx", "--engine", "ort")
STREET = ("videos/street.mp4",)
ENGINES = "{engines}"  # a folder for the engine files of this test run
RUN = "runs/clip-ort"


@dataclass(frozen=True)
class Command:
    name: str
    argv: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    read: tuple[str, ...] = ()  # globs of files whose content is recorded, not only their names
    near: bool = False  # compare a real network's figures loosely: last digits depend on the CPU
    after: str | None = None  # run after this command, in a copy of its folder
    needs: tuple[str, ...] = ()  # required libraries
    slow: bool = False  # takes many seconds, so it starts first


def _detect(name: str, *argv: str, inputs: tuple[str, ...] = ("clip.mkv",), **more) -> Command:
    return Command(
        name, (*argv, "--json", "--engines-dir", ENGINES), (*inputs, "dots.onnx"), **more
    )


def _street(name: str, *argv: str, inputs: tuple[str, ...] = (), **more) -> Command:
    whole = ("street.mp4", *argv, "--json", "--engines-dir", ENGINES, "--no-video")
    return Command(name, whole, (*STREET, *inputs), ("*.jsonl",), near=True, **more)


def _broken(name: str, *argv: str, inputs: tuple[str, ...] = ("clip.mkv", "dots.onnx")) -> Command:
    return Command(name, (*argv, "--json", "--engines-dir", ENGINES), inputs)


SLOW = [
    Command(
        "profile-layers",
        ("profile", "clip.mkv", *DOTS, "--only", "layers,roofline", "--no-video", "--json", "--engines-dir", ENGINES),
        ("clip.mkv", "dots.onnx"), ("passes/*.json",), needs=("torch",), slow=True,
    ),
    _detect(
        "profile", "profile", "clip.mkv", *DOTS, "--no-video", "--only",
        "loop,critical_path,what_if,memory,python,counters", "--what-if-seconds", "1",
        read=(f"{RUN}/passes/*.json",), slow=True,
    ),
    _street("engine-torch", "--engine", "torch", "--frames", "3", needs=("torch",), slow=True),
    Command(
        "compare",
        ("compare", "clip.mkv", "--model", "dots.onnx", "--engine", "ort,null", "--batch", "1,2", "--rounds", "1",
         "--frames", "6", "--json", "--quiet", "--engines-dir", "engines"),
        ("clip.mkv", "dots.onnx"), slow=True,
    ),
]  # fmt: skip

DETECT = [
    _detect(
        "all-outputs", "clip.mkv", *DOTS, "--save", "video,pictures,jsonl,csv,coco,mot,yolo", "-o", "out/",
        "--frames", "6",
        read=("out/*", "out/*/*", "out/*/*/*", f"{RUN}/*"),
    ),
    _detect("default-outputs", "detect", "clip.mkv", *DOTS, "--frames", "5", read=("*",)),
    _detect("picture", "one.png", *DOTS, inputs=("one.png",), read=("*", "*/*")),
    _detect("folder", "pictures", *DOTS, "--save", "pictures,jsonl,csv,yolo", "-o", "out/", inputs=("pictures",),
            read=("out/*", "out/*/*", "out/*/*/*")),
    _detect("glob", "pictures/*.png", *DOTS, "--batch", "2", "--save", "coco,jsonl", inputs=("pictures",), read=("*",)),
    _detect("several-sources", "clip.mkv", "one.png", "second.mkv", *DOTS, "--frames", "3", "--no-video",
            inputs=("clip.mkv", "second.mkv", "one.png"), read=("*.jsonl",)),
    _detect("sync", "clip.mkv", *DOTS, "--sync", "--no-video", read=("*.jsonl",)),
    _detect("batch", "clip.mkv", *DOTS, "--batch", "4", "--frames", "6", "--no-video", read=("*.jsonl",)),
    _detect("classes-and-conf", "clip.mkv", *DOTS, "--classes", "green,2", "--conf", "0.7", "--no-video",
            read=("*.jsonl",)),
    _detect("agnostic", "clip.mkv", *DOTS, "--agnostic", "--no-video", "--frames", "4", read=("*.jsonl",)),
    _detect("max-det", "clip.mkv", *DOTS, "--max-det", "1", "--no-video", "--frames", "4", read=("*.jsonl",)),
    _detect("iou", "clip.mkv", *DOTS, "--iou", "0.9", "--agnostic", "--no-video", "--frames", "4", read=("*.jsonl",)),
    _detect("stride", "clip.mkv", *DOTS, "--stride", "3", "--frames", "4", "--save", "csv,mot", read=("*",)),
    _detect("decoder-av", "clip.mkv", *DOTS, "--decoder", "av", "--frames", "4", "--no-video", read=("*.jsonl",)),
    _detect("one-file", "clip.mkv", *DOTS, "-o", "sub.mp4", "--frames", "4", "--run-dir", "mine", read=("*",)),
    _detect("config-file", "clip.mkv", *DOTS, "--config", "options.yaml", "--conf", "0.8", "--no-video",
            inputs=("clip.mkv", "options.yaml"), read=("*.jsonl",)),
    Command("quiet", ("clip.mkv", *DOTS, "-q", "--frames", "2", "--engines-dir", ENGINES), ("clip.mkv", "dots.onnx")),
    _detect("engine-null", "clip.mkv", "--model", "dots.onnx", "--engine", "null", "--frames", "4", read=("*",)),
    _street("engine-ort", "--engine", "ort", "--frames", "6"),
    _street("engine-auto", "--engine", "auto", "--device", "cpu", "--frames", "2"),
    _street("engine-openvino", "--engine", "openvino", "--frames", "3", needs=("openvino",)),
    _street("size", "--engine", "ort", "--size", "256x160", "--frames", "3"),
    _street("darknet", "--model", "street.cfg", "--size", "320x192", "--engine", "ort", "--frames", "3",
            inputs=("cfg/darknet/street.cfg", "street.weights", "street.names")),
    _street("yolox", "--model", "yolox.onnx", "--engine", "ort", "--frames", "3", inputs=("yolox.onnx",)),
    _street("checkpoint", "--model", "cells.pt", "--size", "64", "--engine", "ort", "--frames", "3",
            inputs=("cells.pt",)),
    _detect("random-weights", "clip.mkv", "--model", "good.cfg", "--random-weights", "1", "--names", "two.names",
            "--engine", "ort", "--frames", "2", "--no-video", inputs=("clip.mkv", "good.cfg", "two.names"), near=True),
]  # fmt: skip

BROKEN = [
    _broken("truncated", "short.mp4", *DOTS, inputs=("short.mp4", "dots.onnx")),
    _broken("no-moov", "headless.mp4", *DOTS, inputs=("headless.mp4", "dots.onnx")),
    _broken("sound-only", "sound.mp4", *DOTS, inputs=("sound.mp4", "dots.onnx")),
    _broken("text-as-video", "text.mp4", *DOTS, inputs=("text.mp4", "dots.onnx")),
    _broken("no-such-file", "absent.mp4", *DOTS, inputs=("dots.onnx",)),
    _broken("one-of-two-broken", "text.mp4", "clip.mkv", *DOTS, "--frames", "2",
            inputs=("clip.mkv", "text.mp4", "dots.onnx")),
    _broken("corrupt-weights", "clip.mkv", "--model", "half.onnx", inputs=("clip.mkv", "half.onnx")),
    _broken("bad-cfg-line", "clip.mkv", "--model", "bad.cfg", "--random-weights", "1", inputs=("clip.mkv", "bad.cfg")),
    _broken("no-such-model", "clip.mkv", "--model", "absent.onnx"),
    _broken("no-such-engine", "clip.mkv", "--model", "dots.onnx", "--engine", "tensorflow"),
    _broken("unknown-config-key", "clip.mkv", *DOTS, "--config", "unknown.yaml",
            inputs=("clip.mkv", "dots.onnx", "unknown.yaml")),
    _broken("config-not-yaml", "clip.mkv", *DOTS, "--config", "not-a-tree.yaml",
            inputs=("clip.mkv", "dots.onnx", "not-a-tree.yaml")),
    _broken("unknown-option", "clip.mkv", *DOTS, "--confidence", "0.5"),
    _broken("contradiction", "one.png", *DOTS, "-o", "out.mp4", inputs=("one.png", "dots.onnx")),
    _broken("output-is-source", "clip.mkv", *DOTS, "-o", "clip.mkv"),
    _broken("no-folder-for-output", "clip.mkv", *DOTS, "-o", "absent/x.mp4"),
    _broken("conf-out-of-range", "clip.mkv", *DOTS, "--conf", "2"),
    _broken("unknown-class", "clip.mkv", *DOTS, "--classes", "rde"),
    _broken("size-that-cannot-be", "clip.mkv", "--model", "good.cfg", "--random-weights", "1", "--size", "333",
            "--engine", "ort", inputs=("clip.mkv", "good.cfg")),
    Command("misspelt-command", ("profle", "clip.mkv"), ("clip.mkv",)),
    Command("no-argument", ()),
    Command("report-of-nothing", ("report", "absent")),
]  # fmt: skip

EVAL = ("eval", "labels.json", "--images", "pictures")
LABELLED = ("labels.json", "pictures", "dots.onnx")
SCORED = ("faster_coco_eval",)
OTHERS = [
    Command("eval", (*EVAL, *DOTS, "--json", "--engines-dir", ENGINES), LABELLED,
            ("runs/*/evaluation.json", "runs/*/detections.jsonl"), needs=SCORED),
    Command("eval-gate", (*EVAL, *DOTS, "--min-ap50", "0.99", "--json", "--engines-dir", ENGINES), LABELLED, needs=SCORED),
    Command("eval-detections", (*EVAL, "--detections", "found.json", "--json"),
            (*LABELLED, "found.json"), needs=SCORED),
    Command("eval-street",
            ("eval", "street.mp4", "--frames", "4", "--engine", "ort", "--json", "--engines-dir", ENGINES),
            (*STREET, "videos/street.json"), near=True, needs=SCORED),
    *(Command(f"report-{kind}", ("report", RUN, "--format", kind, *more), read=read, after="profile")
      for kind, more, read in [
          ("json", ("-o", "-"), ()),
          ("csv", ("-o", "tables/"), ("tables/*",)),
          ("trace", ("-o", "trace.json"), ("trace.json",)),
          ("table", ("-o", "-"), ()),
      ]),
    _detect("second-run", "clip.mkv", *DOTS, "--sync", "--no-video", "--run-dir", "runs/second", after="sync"),
    # After ``second-run``, because the folder of ``profile`` already contains the HTML report.
    Command("report-html", ("report", "runs/second", "--format", "html"), after="second-run"),
    Command("diff", ("diff", RUN, "runs/second", "--json"), after="second-run"),
    Command("build-onnx",
            ("build", "street", "--to", "onnx", "-o", "s.onnx", "--batch", "2", "--size", "128x64", "--json"),
            read=("*.onnx",)),
    Command("build", ("build", "street", "--engine", "ort", "--size", "128x64", "--engines-dir", "engines", "--json"),
            read=("engines/*.onnx", "engines/*.json")),
    Command("models-show", ("models", "show", "street", "--json")),
    Command("models-show-file", ("models", "show", "dots.onnx", "--json"), ("dots.onnx",)),
    Command("models-list", ("models", "list", "--json")),
    Command("doctor", ("doctor", "--quick", "--json", "--engines-dir", "engines")),
    Command("version", ("--version",)),
]  # fmt: skip

HELP = [
    Command(f"help-{command.replace(' ', '-')}", (*command.split(), "--help", "all"))
    for command in (
        "build", "compare", "detect", "diff", "doctor", "eval", "models", "models list",
        "models show", "models pull", "profile", "report", "tune", "why",
    )
]  # fmt: skip

COMMANDS = [*SLOW, *DETECT, *BROKEN, *OTHERS, *HELP]
