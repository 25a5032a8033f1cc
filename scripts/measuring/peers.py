"""This project compared with its alternatives: ultralytics, ffmpeg, and the loop that it began
with.

From top to bottom: the command; ultralytics; ffmpeg; the lab's loop. Each part runs its variants in
turns, and returns the rows of one table.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click

from measuring.clips import BENCH, clip, ffmpeg_version, made, size_of
from measuring.environments import CACHE, MissingError, environment
from measuring.rounds import (
    QUICK_FRAMES,
    ROOT,
    SHARED,
    STREET,
    Finished,
    Row,
    against,
    detect_video,
    interleave,
    job,
    markdown,
    quick_option,
    rates,
    ratios,
    run,
    say_machine,
    spread,
)

PARTS = ("ultralytics", "ffmpeg", "lab")
INT8 = ("--precision", "int8")
FP32 = ("--precision", "fp32")
OVERLAY = ("--save", "overlay")


class Pair(NamedTuple):
    """Ours, theirs, and the ratio of end-to-end FPS that ours should reach."""

    ours: str
    theirs: str
    aim: float


def compare(
    rows: Mapping[str, Sequence[Row]], pairs: Sequence[Pair], where: str
) -> list[list[str]]:
    """Return the rows for the pairs that ran."""
    made = []
    for ours, theirs, aim in pairs:
        if ours not in rows or theirs not in rows:
            continue
        times = ratios(rows[ours], rows[theirs], "fps")
        cpu = ratios(rows[ours], rows[theirs], "cpu_ms")
        fps = (spread([row["fps"] for row in rows[name]]) for name in (ours, theirs))
        made.append([where, ours, theirs, *fps, spread(times), spread(cpu), against(times, aim)])
    return made


HEAD = (
    "clip",
    "ours",
    "theirs",
    "our end-to-end FPS",
    "theirs",
    "ratio",
    "CPU a frame, ratio",
    "aim",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options. ``quick``: one round, no warm-up."""

    frames: int
    rounds: int
    heights: tuple[int, ...]
    networks: tuple[str, ...]
    quick: bool

    def turns(self, variants: Mapping[str, Callable[[], Row]]) -> dict[str, list[Row]]:
        return interleave(variants, self.rounds, warm_up=0 if self.quick else 1)

    def whole_clip(self, height: int) -> Path:
        """Return a clip to run as a whole: ultralytics cannot stop earlier."""
        if height == 720 and BENCH.is_file() and not self.quick:
            return BENCH
        return made(height, self.frames)


@click.command()
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="[default: all]")
@click.option("--heights", default="360,720,1080", show_default=True, help="Heights of the clips.")
@click.option(
    "--network",
    "networks",
    multiple=True,
    default=("yolov8n",),
    show_default=True,
    help="Model of ultralytics; may be repeated.",
)
@click.option("--frames", default=300, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@quick_option
def peers(
    only: tuple[str, ...],
    heights: str,
    networks: tuple[str, ...],
    frames: int,
    rounds: int,
    quick: bool,
) -> None:
    """Compare with ultralytics, ffmpeg and the lab's loop: end-to-end FPS as ratios.

    ultralytics runs in its own environment, cached at the first call. No figure of either program
    includes loading and the first picture.
    """
    say_machine(quick)
    frames, rounds = (QUICK_FRAMES, 1) if quick else (frames, rounds)
    asked = Asked(frames, rounds, tuple(map(int, heights.split(","))), networks, quick)
    parts = {"ultralytics": beside_ultralytics, "ffmpeg": beside_ffmpeg, "lab": beside_lab}
    table: list[list[str]] = []
    for name in only or PARTS:
        click.echo(f"\n## {name}")
        try:
            table += parts[name](asked)
        except MissingError as error:
            click.echo(f"{name}: skipped: {error}")
    click.echo("\n" + markdown(HEAD, table))


# ----------------------------------------------------------------------
# ultralytics: a program of its own, with its own torch

JOB = Path(__file__).with_name("ultralytics_job.py")
EXPORTERS = ("nncf", "onnx", "onnxslim")
AS_THEIRS = ("--conf", 0.25, "--iou", 0.7)
PICTURES = 16  # for the ranges of int8, on both sides
TORCH, THEIR_OPENVINO, THEIR_INT8, THEIR_OWN = (
    "ultralytics, torch",
    "ultralytics, OpenVINO in fp32",
    "ultralytics, OpenVINO int8",
    "ultralytics, OpenVINO as it comes",
)
OUR_DEFAULT, OUR_OPENVINO, OUR_BF16, OUR_INT8, OUR_OVERLAY = (
    "ours, default",
    "ours, openvino fp32",
    "ours, openvino bf16",  # what self-timing chooses for trained weights
    "ours, int8",
    "ours, default, overlay",
)
BESIDE_ULTRALYTICS = (
    Pair(OUR_DEFAULT, TORCH, 2.5),
    Pair(OUR_DEFAULT, THEIR_OPENVINO, 1.35),
    Pair(OUR_OPENVINO, THEIR_OPENVINO, 1.35),
    Pair(OUR_INT8, THEIR_INT8, 1.6),
    Pair(OUR_BF16, THEIR_OWN, 1.25),
    Pair(OUR_BF16, OUR_DEFAULT, 1.45),
    Pair(OUR_OVERLAY, TORCH, 3.0),
)


def ultralytics_python() -> tuple[Path, str]:
    """Return the Python of its environment, and how torch was installed.

    First we try torch's CPU build in our version, which is not available to every machine, with the
    index's torchvision. If that cannot predict, we take the index's own pair with CUDA's libraries
    (gigabytes). Raises MissingError.
    """
    openvino = f"openvino=={version('openvino')}"
    torch = version("torch")
    plans = {
        f"torch {torch} as here, torchvision of the index": (f"torch=={torch}", "torchvision"),
        "torch and torchvision of the index": (),
    }
    reasons = []
    for number, (how, pinned) in enumerate(plans.items()):
        name = f"ultralytics-peer-{number}"
        try:
            step = [*pinned, "ultralytics", openvino, *EXPORTERS]
            return environment(name, step, check=[str(JOB), "check"]), how
        except MissingError as error:
            reasons.append(f"{how}: {error}")
            click.echo(f"environment {name}: {reasons[-1]}")
    raise MissingError("; ".join(reasons))


def theirs(python: Path, *arguments: Any) -> tuple[dict[str, Any], Finished]:
    """Return the output of a job, run in a temporary folder. Raises ClickException."""
    with tempfile.TemporaryDirectory() as folder:
        around = {"YOLO_CONFIG_DIR": folder, "YOLO_OFFLINE": "true"}
        done = run([python, JOB, *map(str, arguments)], Path(folder), around)
        printed: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return printed, done


def beside_ultralytics(asked: Asked) -> list[list[str]]:
    python, plan = ultralytics_python()
    state = theirs(python, "check")[0]
    click.echo(f"installed: {plan}: " + ", ".join(map(" ".join, state["versions"].items())))
    click.echo(f"its torchvision: {state['torchvision']}")
    table = []
    for network in asked.networks:
        for height in asked.heights:
            source = asked.whole_clip(height)
            exports = prepared(python, network, source, network_size(*size_of(source)))
            title = f"{source.name}, {network} {exports['width']}x{exports['height']}"
            click.echo(f"\n{title}, all frames")
            rows = asked.turns(_variants(python, exports, source))
            table += compare(rows, BESIDE_ULTRALYTICS, title)
    return table


def network_size(width: int, height: int, longest: int = 640, stride: int = 32) -> tuple[int, int]:
    """Return height and width of a network's input for a picture of this size: 640x384 for 16:9,
    ultralytics' default for torch, which must be set for exports."""
    scale = longest / max(width, height)
    sides = (-(-round(side * scale) // stride) * stride for side in (height, width))
    return next(sides), next(sides)


def prepared(python: Path, network: str, source: Path, size: tuple[int, int]) -> dict[str, Any]:
    """Return its exports of this size, made once for a clip, whose pictures set the number of boxes
    of its random weights; ``torch``, ``onnx``, ``openvino`` and ``openvino int8`` are paths."""
    named = f"{python.parents[1].name}-{network}-{source.stem}-{size[0]}x{size[1]}"
    folder = CACHE / named
    record = folder / "exports.json"
    if not record.is_file():
        pictures = folder / "set" / "images"
        pictures.mkdir(parents=True, exist_ok=True)
        every = "select=not(mod(n\\,10))"
        pattern = pictures / "%03d.jpg"
        taken = ["-vf", every, "-vsync", "vfr", "-frames:v", PICTURES, "-q:v", 2]
        run(["ffmpeg", "-v", "error", "-y", "-i", source, *map(str, taken), pattern])
        click.echo(f"{network}: exporting in torch, ONNX and OpenVINO: minutes")
        printed, _ = theirs(python, "prepare", network, folder, *size, pictures)
        record.write_text(json.dumps(printed, indent=1) + "\n", encoding="utf-8")
    exports: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return exports | {"height": size[0], "width": size[1]}


def _variants(python: Path, exports: dict[str, Any], source: Path) -> dict[str, Callable[[], Row]]:
    size = exports["height"], exports["width"]
    pictures = Path(exports["torch"]).parent / "set" / "images"
    # With random weights the search for float layers has no meaning, and NNCF has none either:
    # every possible layer is int8.
    calibrated = ("--calibrate", pictures, "--calibrate-frames", PICTURES, "--budget", 0)

    def job(model: str, precision: str = "as it comes") -> Row:
        printed, done = theirs(python, "predict", exports[model], source, *size, precision)
        if printed["ran"]:
            click.echo(f"  {model}: OpenVINO computes in {printed['ran']}")
        row = {key: float(printed[key]) for key in ("fps", "cpu_ms", "boxes")}
        return {**row, "MB": printed["bytes"] / 1e6, "wall_s": done.wall_s, "peak_mb": done.peak_mb}

    def own(*options: Any) -> Row:
        return _ours(source, "--model", exports["onnx"], *AS_THEIRS, *options)

    return {
        TORCH: partial(job, "torch"),
        OUR_DEFAULT: own,
        OUR_OVERLAY: partial(own, *OVERLAY),
        THEIR_OPENVINO: partial(job, "openvino", "f32"),
        OUR_OPENVINO: partial(own, "--engine", "openvino", *FP32),
        OUR_BF16: partial(own, "--engine", "openvino", "--precision", "bf16"),
        THEIR_INT8: partial(job, "openvino int8"),
        OUR_INT8: partial(own, *INT8, *calibrated),
        THEIR_OWN: partial(job, "openvino"),
    }


def _ours(source: Path, *options: Any) -> Row:
    summary, done = job(source, *options)
    found = summary["detections"]["total"] / summary["frames"]["written"]
    return {**rates(summary), "boxes": found, "peak_mb": done.peak_mb}


# ----------------------------------------------------------------------
# ffmpeg: the time of decoding and encoding alone

FFMPEG_HEIGHTS = (720, 1080)
NULL = ("--engine", "null", "--model", "street-1")  # the smallest input: ffmpeg has none
BESIDE_FFMPEG = (
    Pair("null engine, video", "ffmpeg, decoded and encoded", 0.90),
    Pair("null engine, superfast", "ffmpeg, superfast", 0.90),
    Pair("null engine, overlay", "ffmpeg -f null", 0.75),
)


def beside_ffmpeg(asked: Asked) -> list[list[str]]:
    from detector.core.sinks.video.h264 import QUALITIES

    click.echo(f"{ffmpeg_version()}; {_our_ffmpegs()}")
    if not any(height in FFMPEG_HEIGHTS for height in asked.heights):
        raise MissingError(f"only clips of {FFMPEG_HEIGHTS} can be compared")
    table = []
    superfast = {"preset": "superfast", "crf": "23"}
    for height in (height for height in asked.heights if height in FFMPEG_HEIGHTS):
        source = clip(height, asked.frames)
        null, limited = [source, *NULL], ["--frames", asked.frames]

        def own(*options: Any, null: list[Any] = null, limited: list[Any] = limited) -> Row:
            return rates(detect_video(*null, *limited, *options))

        def ffmpeg(*options: str, source: Path = source) -> Row:
            return transcode(source, asked.frames, options)

        click.echo(f"\n{source.name}, the first {asked.frames} frames")
        rows = asked.turns(
            {
                "null engine, video": own,
                "ffmpeg, decoded and encoded": partial(ffmpeg, *encoded(QUALITIES["balanced"])),
                "null engine, superfast": partial(own, "--preset", "superfast"),
                "ffmpeg, superfast": partial(ffmpeg, *encoded(superfast)),
                "null engine, overlay": partial(own, *OVERLAY),
                "ffmpeg -f null": ffmpeg,
            }
        )
        table += compare(rows, BESIDE_FFMPEG, source.name)
    return table


def _our_ffmpegs() -> str:
    """Return the versions that this project reads and writes with."""
    import av
    import cv2

    ours = ", ".join(
        f"{name} {'.'.join(map(str, av.library_versions[name]))}"
        for name in ("libavcodec", "libavformat")
    )
    return f"PyAV {av.__version__} ({ours}); cv2 {cv2.__version__}"


def encoded(options: Mapping[str, str]) -> list[str]:
    """Return options of libx264 for ffmpeg's command line. Both let x264 choose its threads."""
    named = [part for name, value in options.items() for part in (f"-{name}", value)]
    return ["-c:v", "libx264", *named, "-pix_fmt", "yuv420p", "-movflags", "+faststart"]


def transcode(source: Path, frames: int, options: Sequence[str]) -> Row:
    """Run the clip through ffmpeg without sound; without an encoder, into nothing."""
    with tempfile.TemporaryDirectory() as folder:
        target = [str(Path(folder, "out.mp4"))] if options else ["-f", "null", "-"]
        read = ["ffmpeg", "-hide_banner", "-benchmark", "-y", "-i", str(source)]
        done = run([*read, "-an", "-frames:v", str(frames), *options, *target])
    return read_benchmark(done.stderr, frames)


def read_benchmark(output: str, frames: int) -> Row:
    """Read ffmpeg's own times, which exclude its start, as ours do."""
    times = re.search(r"bench: utime=([\d.]+)s stime=([\d.]+)s rtime=([\d.]+)s", output)
    counted = re.findall(r"frame=\s*(\d+)", output)
    if times is None or not counted:
        raise click.ClickException(f"ffmpeg reported no times: {output[-300:]}")
    if int(counted[-1]) != frames:
        raise click.ClickException(f"ffmpeg took {counted[-1]} frames, not {frames}")
    user, system, real = map(float, times.groups())
    return {"fps": frames / real, "cpu_ms": (user + system) * 1e3 / frames}


# ----------------------------------------------------------------------
# The lab's loop

LAB_MODEL = "yolov4-tiny-person-vehicle"
LAB_CONF = 0.95
LICENCE = 0.90  # least agreement of int8 with fp32 on trained networks
LICENSED_BY = ("weights/yolo-fastest-1.1-xl.cfg", "weights/yolov5n.pt")
LAB = "the lab's loop, torch fp32"
BESIDE_LAB = (
    Pair("ours, fp32", LAB, 1.35),
    Pair("ours, fp32, overlay", LAB, 1.5),
    Pair("ours, int8", LAB, 3.3),
    Pair("ours, int8, overlay", LAB, 3.3),
)


def beside_lab(asked: Asked) -> list[list[str]]:
    source = clip(720, asked.frames)
    shape = ("--model", LAB_MODEL, "--random-weights", 0, "--conf", LAB_CONF)
    calibrated = (*INT8, "--calibrate", STREET, "--calibrate-frames", PICTURES)

    def own(*options: Any) -> Row:
        return _ours(source, *shape, "--frames", asked.frames, *options)

    click.echo(f"{LAB_MODEL}, 416x416, random weights, {source.name}, {asked.frames} frames")
    rows = asked.turns(
        {
            LAB: lambda: _lab_loop(source, asked.frames),
            "ours, fp32": partial(own, *FP32),
            "ours, fp32, overlay": partial(own, *FP32, *OVERLAY),
            "ours, int8": partial(own, *calibrated),
            "ours, int8, overlay": partial(own, *calibrated, *OVERLAY),
        }
    )
    table = compare(rows, BESIDE_LAB, source.name)
    click.echo("\n" + markdown(LICENCE_HEAD, _licences(asked)))
    return table


def _lab_loop(source: Path, frames: int) -> Row:
    """Run the copy in scripts/bench. Its figures exclude loading."""
    bench = [sys.executable, ROOT / "scripts/bench", "lab-loop"]
    done = run([*bench, source, LAB_MODEL, str(frames), str(LAB_CONF)])
    printed = json.loads(done.stdout)
    return {"fps": printed["end_to_end"], "cpu_ms": printed["cpu_ms"], "boxes": printed["boxes"]}


LICENCE_HEAD = ("network", "engine", "precision executed", "agreement with fp32", "licence")


def _licences(asked: Asked) -> list[list[str]]:
    """Measure the loss of int8 on trained networks, calibrated as above, on another clip."""
    rows = []
    for name in LICENSED_BY:
        if not (SHARED / name).is_file():
            click.echo(f"{name}: left out: {SHARED / name} is not there")
            continue
        document = compare_document(
            clip(720, asked.frames),
            *("--model", SHARED / name, "--engine", "ort,openvino", "--precision", "fp32,int8"),
            *("--calibrate", STREET, "--calibrate-frames", PICTURES, "--rounds", 1),
            *("--frames", 20 if asked.quick else 200, "--no-video"),
        )
        rows += licence_rows(Path(name).stem, document)
    return rows


def licence_rows(name: str, document: Mapping[str, Any]) -> list[list[str]]:
    made = []
    for row in document["rows"]:
        if row["precision"] != "int8":
            continue
        found = row["agreement"] and row["agreement"]["matched"]
        if found is None:
            made.append([name, row["engine"], row["precision_text"], "-", str(row["error"])])
            continue
        verdict = f"given (>= {LICENCE:g})" if found >= LICENCE else f"refused (< {LICENCE:g})"
        made.append([name, row["engine"], row["precision_text"], f"{found:.3f}", verdict])
    return made


def compare_document(source: Path, *options: Any) -> dict[str, Any]:
    """Run ``detect-video compare``, whose exit code may differ from 0 if a row failed."""
    command = [sys.executable, "-m", "detector", "compare", source, *options, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False
        )
    if not done.stdout:
        raise click.ClickException(f"compare: {done.stderr.strip()}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document
