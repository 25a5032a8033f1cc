"""Compare this project with ultralytics, ffmpeg, and the "lab's loop": the simple loop with which
this project began (not the wing lab). Each part runs its variants in turns and returns table rows.
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

from measuring.clips import BENCH, clip, ffmpeg_version, size_of, street_clip
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
    """Two variants to compare. ``aim``: the ratio of end-to-end FPS that ours should reach."""

    ours: str
    theirs: str
    aim: float


def compare(
    rows: Mapping[str, Sequence[Row]], pairs: Sequence[Pair], where: str
) -> list[list[str]]:
    """Return a row of the table for each pair whose variants both ran."""
    table = []
    for ours, theirs, aim in pairs:
        if ours not in rows or theirs not in rows:
            continue
        times = ratios(rows[ours], rows[theirs], "fps")
        cpu = ratios(rows[ours], rows[theirs], "cpu_ms")
        fps = (spread([row["fps"] for row in rows[name]]) for name in (ours, theirs))
        table.append([where, ours, theirs, *fps, spread(times), spread(cpu), against(times, aim)])
    return table


HEAD = (
    "clip",
    "ours",
    "theirs",
    "our end-to-end FPS",
    "their FPS",
    "ratio",
    "CPU per frame, ratio",
    "aim",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The command's options. ``quick``: one round, no warm-up."""

    frames: int
    rounds: int
    heights: tuple[int, ...]
    networks: tuple[str, ...]
    quick: bool

    def turns(self, variants: Mapping[str, Callable[[], Row]]) -> dict[str, list[Row]]:
        return interleave(variants, self.rounds, warm_up=0 if self.quick else 1)

    def whole_clip(self, height: int) -> Path:
        """Return a clip that is run to its end, because ultralytics cannot stop earlier."""
        if height == 720 and BENCH.is_file() and not self.quick:
            return BENCH
        return street_clip(height, self.frames)


@click.command()
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="[default: all]")
@click.option("--heights", default="360,720,1080", help="Heights of the clips.")
@click.option(
    "--network",
    "networks",
    multiple=True,
    default=("yolov8n",),
    help="Model of ultralytics; may be repeated.",
)
@click.option("--frames", default=300)
@click.option("--rounds", default=5)
@quick_option
def peers(
    only: tuple[str, ...],
    heights: str,
    networks: tuple[str, ...],
    frames: int,
    rounds: int,
    quick: bool,
) -> None:
    """Compare our end-to-end FPS with those of ultralytics, ffmpeg and the lab's loop, as ratios.

    ultralytics runs in its own environment, which the first call installs. All figures exclude
    loading and the first picture.
    """
    say_machine(quick)
    frames, rounds = (QUICK_FRAMES, 1) if quick else (frames, rounds)
    settings = Settings(frames, rounds, tuple(map(int, heights.split(","))), networks, quick)
    parts = {"ultralytics": beside_ultralytics, "ffmpeg": beside_ffmpeg, "lab": beside_lab}
    table: list[list[str]] = []
    for name in only or PARTS:
        click.echo(f"\n## {name}")
        try:
            table += parts[name](settings)
        except MissingError as error:
            click.echo(f"{name}: skipped: {error}")
    click.echo("\n" + markdown(HEAD, table))


# ----------------------------------------------------------------------
# ultralytics: a program of its own, with its own torch

JOB = Path(__file__).with_name("ultralytics_job.py")
EXPORTERS = ("nncf", "onnx", "onnxslim")
AS_THEIRS = ("--conf", 0.25, "--iou", 0.7)
PICTURES = 16  # both programs calibrate int8 on this many pictures
TORCH, THEIR_OPENVINO, THEIR_INT8, THEIR_OWN = (
    "ultralytics, torch",
    "ultralytics, OpenVINO in fp32",
    "ultralytics, OpenVINO int8",
    "ultralytics, OpenVINO by default",
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
    """Return the Python of ultralytics' environment, and how torch was installed.

    First we try our version of torch, with the package index's torchvision. If these two do not
    work together, we take both from the index, with CUDA's libraries (gigabytes). Raises
    MissingError.
    """
    openvino = f"openvino=={version('openvino')}"
    torch = version("torch")
    plans = {
        f"torch {torch} as here, torchvision from pip's index": (f"torch=={torch}", "torchvision"),
        "torch and torchvision from pip's index": (),
    }
    reasons = []
    for number, (plan_name, packages) in enumerate(plans.items()):
        name = f"ultralytics-peer-{number}"
        try:
            step = [*packages, "ultralytics", openvino, *EXPORTERS]
            return environment(name, step, check=[str(JOB), "check"]), plan_name
        except MissingError as error:
            reasons.append(f"{plan_name}: {error}")
            click.echo(f"environment {name}: {reasons[-1]}")
    raise MissingError("; ".join(reasons))


def theirs(python: Path, *arguments: Any) -> tuple[dict[str, Any], Finished]:
    """Run ultralytics_job.py in a temporary folder; return its output. Raises ClickException."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"YOLO_CONFIG_DIR": folder, "YOLO_OFFLINE": "true"}
        finished = run([python, JOB, *map(str, arguments)], Path(folder), environment)
        output: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
        return output, finished


def beside_ultralytics(settings: Settings) -> list[list[str]]:
    python, plan = ultralytics_python()
    state = theirs(python, "check")[0]
    click.echo(f"installed: {plan}: " + ", ".join(map(" ".join, state["versions"].items())))
    click.echo(f"its torchvision: {state['torchvision']}")
    table = []
    for network in settings.networks:
        for height in settings.heights:
            source = settings.whole_clip(height)
            exports = prepared(python, network, source, network_size(*size_of(source)))
            title = f"{source.name}, {network} {exports['width']}x{exports['height']}"
            click.echo(f"\n{title}, all frames")
            rows = settings.turns(_variants(python, exports, source))
            table += compare(rows, BESIDE_ULTRALYTICS, title)
    return table


def network_size(width: int, height: int, longest: int = 640, stride: int = 32) -> tuple[int, int]:
    """Return (height, width) of a network's input for a picture of this size, such as 384x640 for
    16:9. With torch, ultralytics chooses the size itself; an export needs the size as an option."""
    scale = longest / max(width, height)
    sides = (-(-round(side * scale) // stride) * stride for side in (height, width))
    return next(sides), next(sides)


def prepared(python: Path, network: str, source: Path, size: tuple[int, int]) -> dict[str, Any]:
    """Return ultralytics' exports of this size: paths ``torch``, ``onnx``, ``openvino`` and
    ``openvino int8``. Each clip has its own cached exports, because we adjust the networks' random
    weights until they find a realistic number of boxes in the clip."""
    name = f"{python.parents[1].name}-{network}-{source.stem}-{size[0]}x{size[1]}"
    folder = CACHE / name
    record = folder / "exports.json"
    if not record.is_file():
        pictures = folder / "set" / "images"
        pictures.mkdir(parents=True, exist_ok=True)
        every_tenth = "select=not(mod(n\\,10))"
        pattern = pictures / "%03d.jpg"
        sampling = ["-vf", every_tenth, "-vsync", "vfr", "-frames:v", PICTURES, "-q:v", 2]
        run(["ffmpeg", "-v", "error", "-y", "-i", source, *map(str, sampling), pattern])
        click.echo(f"{network}: exporting to torch, ONNX and OpenVINO takes minutes")
        output, _ = theirs(python, "prepare", network, folder, *size, pictures)
        record.write_text(json.dumps(output, indent=1) + "\n", encoding="utf-8")
    exports: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return exports | {"height": size[0], "width": size[1]}


def _variants(python: Path, exports: dict[str, Any], source: Path) -> dict[str, Callable[[], Row]]:
    size = exports["height"], exports["width"]
    pictures = Path(exports["torch"]).parent / "set" / "images"
    # --budget 0 quantises every layer, like NNCF. With random weights, searching for layers to keep
    # in float would be meaningless.
    calibration = ("--calibrate", pictures, "--calibrate-frames", PICTURES, "--budget", 0)

    def run_theirs(model: str, precision: str = "default") -> Row:
        output, finished = theirs(python, "predict", exports[model], source, *size, precision)
        if output["ran"]:
            click.echo(f"  {model}: OpenVINO computes in {output['ran']}")
        row = {key: float(output[key]) for key in ("fps", "cpu_ms", "boxes")}
        return {
            **row,
            "MB": output["bytes"] / 1e6,
            "wall_s": finished.wall_s,
            "peak_mb": finished.peak_mb,
        }

    def ours(*options: Any) -> Row:
        return _ours(source, "--model", exports["onnx"], *AS_THEIRS, *options)

    return {
        TORCH: partial(run_theirs, "torch"),
        OUR_DEFAULT: ours,
        OUR_OVERLAY: partial(ours, *OVERLAY),
        THEIR_OPENVINO: partial(run_theirs, "openvino", "f32"),
        OUR_OPENVINO: partial(ours, "--engine", "openvino", *FP32),
        OUR_BF16: partial(ours, "--engine", "openvino", "--precision", "bf16"),
        THEIR_INT8: partial(run_theirs, "openvino int8"),
        OUR_INT8: partial(ours, *INT8, *calibration),
        THEIR_OWN: partial(run_theirs, "openvino"),
    }


def _ours(source: Path, *options: Any) -> Row:
    summary, finished = job(source, *options)
    boxes = summary["detections"]["total"] / summary["frames"]["written"]
    return {**rates(summary), "boxes": boxes, "peak_mb": finished.peak_mb}


# ----------------------------------------------------------------------
# ffmpeg: decoding and encoding only

FFMPEG_HEIGHTS = (720, 1080)
NULL = ("--engine", "null", "--model", "street-1")  # needs least preprocessing; ffmpeg does none
BESIDE_FFMPEG = (
    Pair("null engine, video", "ffmpeg, decoded and encoded", 0.90),
    Pair("null engine, superfast", "ffmpeg, superfast", 0.90),
    Pair("null engine, overlay", "ffmpeg -f null", 0.75),
)


def beside_ffmpeg(settings: Settings) -> list[list[str]]:
    from detector.core.sinks.video.h264 import QUALITIES

    click.echo(f"{ffmpeg_version()}; {_our_ffmpegs()}")
    if not any(height in FFMPEG_HEIGHTS for height in settings.heights):
        raise MissingError(f"only clips with heights {FFMPEG_HEIGHTS} can be compared")
    table = []
    superfast = {"preset": "superfast", "crf": "23"}
    for height in (height for height in settings.heights if height in FFMPEG_HEIGHTS):
        source = clip(height, settings.frames)
        source_options, limit_options = [source, *NULL], ["--frames", settings.frames]

        def ours(
            *options: Any,
            source_options: list[Any] = source_options,
            limit_options: list[Any] = limit_options,
        ) -> Row:
            return rates(detect_video(*source_options, *limit_options, *options))

        def ffmpeg(*options: str, source: Path = source) -> Row:
            return transcode(source, settings.frames, options)

        click.echo(f"\n{source.name}, the first {settings.frames} frames")
        rows = settings.turns(
            {
                "null engine, video": ours,
                "ffmpeg, decoded and encoded": partial(ffmpeg, *encoded(QUALITIES["balanced"])),
                "null engine, superfast": partial(ours, "--preset", "superfast"),
                "ffmpeg, superfast": partial(ffmpeg, *encoded(superfast)),
                "null engine, overlay": partial(ours, *OVERLAY),
                "ffmpeg -f null": ffmpeg,
            }
        )
        table += compare(rows, BESIDE_FFMPEG, source.name)
    return table


def _our_ffmpegs() -> str:
    """Return the versions of the libraries that this project reads and writes with."""
    import av
    import cv2

    libraries = ", ".join(
        f"{name} {'.'.join(map(str, av.library_versions[name]))}"
        for name in ("libavcodec", "libavformat")
    )
    return f"PyAV {av.__version__} ({libraries}); cv2 {cv2.__version__}"


def encoded(options: Mapping[str, str]) -> list[str]:
    """Return ffmpeg's options for libx264. x264 chooses its number of threads, as in our runs."""
    flags = [part for name, value in options.items() for part in (f"-{name}", value)]
    return ["-c:v", "libx264", *flags, "-pix_fmt", "yuv420p", "-movflags", "+faststart"]


def transcode(source: Path, frames: int, options: Sequence[str]) -> Row:
    """Decode the clip with ffmpeg, without audio; also encode it if there are ``options``."""
    with tempfile.TemporaryDirectory() as folder:
        target = [str(Path(folder, "out.mp4"))] if options else ["-f", "null", "-"]
        read = ["ffmpeg", "-hide_banner", "-benchmark", "-y", "-i", str(source)]
        finished = run([*read, "-an", "-frames:v", str(frames), *options, *target])
    return read_benchmark(finished.stderr, frames)


def read_benchmark(output: str, frames: int) -> Row:
    """Read the times that ffmpeg reports. Like our figures, they exclude the program's start."""
    times = re.search(r"bench: utime=([\d.]+)s stime=([\d.]+)s rtime=([\d.]+)s", output)
    frame_counts = re.findall(r"frame=\s*(\d+)", output)
    if times is None or not frame_counts:
        raise click.ClickException(f"ffmpeg reported no times: {output[-300:]}")
    if int(frame_counts[-1]) != frames:
        raise click.ClickException(f"ffmpeg took {frame_counts[-1]} frames, not {frames}")
    user, system, real = map(float, times.groups())
    return {"fps": frames / real, "cpu_ms": (user + system) * 1e3 / frames}


# ----------------------------------------------------------------------
# The lab's loop

LAB_MODEL = "yolov4-tiny-person-vehicle"
LAB_CONF = 0.95
# Comparing our int8 with the lab's fp32 is fair only if our int8 agrees with our fp32 at least this
# well. The compared network has random weights, so the agreement is measured on trained ones.
LICENCE = 0.90
LICENSED_BY = ("weights/yolo-fastest-1.1-xl.cfg", "weights/yolov5n.pt")
LAB = "the lab's loop, torch fp32"
BESIDE_LAB = (
    Pair("ours, fp32", LAB, 1.35),
    Pair("ours, fp32, overlay", LAB, 1.5),
    Pair("ours, int8", LAB, 3.3),
    Pair("ours, int8, overlay", LAB, 3.3),
)


def beside_lab(settings: Settings) -> list[list[str]]:
    source = clip(720, settings.frames)
    shape = ("--model", LAB_MODEL, "--random-weights", 0, "--conf", LAB_CONF)
    int8_options = (*INT8, "--calibrate", STREET, "--calibrate-frames", PICTURES)

    def ours(*options: Any) -> Row:
        return _ours(source, *shape, "--frames", settings.frames, *options)

    click.echo(f"{LAB_MODEL}, 416x416, random weights, {source.name}, {settings.frames} frames")
    rows = settings.turns(
        {
            LAB: lambda: _lab_loop(source, settings.frames),
            "ours, fp32": partial(ours, *FP32),
            "ours, fp32, overlay": partial(ours, *FP32, *OVERLAY),
            "ours, int8": partial(ours, *int8_options),
            "ours, int8, overlay": partial(ours, *int8_options, *OVERLAY),
        }
    )
    table = compare(rows, BESIDE_LAB, source.name)
    click.echo("\n" + markdown(LICENCE_HEAD, _licences(settings)))
    return table


def _lab_loop(source: Path, frames: int) -> Row:
    """Run the lab's loop by scripts/bench. The figures exclude loading."""
    bench = [sys.executable, ROOT / "scripts/bench", "lab-loop"]
    finished = run([*bench, source, LAB_MODEL, str(frames), str(LAB_CONF)])
    output = json.loads(finished.stdout)
    return {"fps": output["end_to_end"], "cpu_ms": output["cpu_ms"], "boxes": output["boxes"]}


LICENCE_HEAD = ("network", "engine", "precision executed", "agreement with fp32", "may be compared")


def _licences(settings: Settings) -> list[list[str]]:
    """Measure how well int8, calibrated on street.mp4, agrees with fp32 on another clip."""
    rows = []
    for name in LICENSED_BY:
        if not (SHARED / name).is_file():
            click.echo(f"{name}: skipped: {SHARED / name} does not exist")
            continue
        document = compare_document(
            clip(720, settings.frames),
            *("--model", SHARED / name, "--engine", "ort,openvino", "--precision", "fp32,int8"),
            *("--calibrate", STREET, "--calibrate-frames", PICTURES, "--rounds", 1),
            *("--frames", 20 if settings.quick else 200, "--no-video"),
        )
        rows += licence_rows(Path(name).stem, document)
    return rows


def licence_rows(name: str, document: Mapping[str, Any]) -> list[list[str]]:
    table = []
    for row in document["rows"]:
        if row["precision"] != "int8":
            continue
        agreement = row["agreement"] and row["agreement"]["matched"]
        if agreement is None:
            table.append([name, row["engine"], row["precision_text"], "-", str(row["error"])])
            continue
        verdict = f"yes (>= {LICENCE:g})" if agreement >= LICENCE else f"no (< {LICENCE:g})"
        table.append([name, row["engine"], row["precision_text"], f"{agreement:.3f}", verdict])
    return table


def compare_document(source: Path, *options: Any) -> dict[str, Any]:
    """Run ``detect-video compare``, ignoring its exit code: the document says which rows failed."""
    command = [sys.executable, "-m", "detector", "compare", source, *options, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        completed = subprocess.run(
            list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False
        )
    if not completed.stdout:
        raise click.ClickException(f"compare: {completed.stderr.strip()}")
    document: dict[str, Any] = json.loads(completed.stdout)
    return document
