"""The speed of this version, an older one and ultralytics on a folder of 12-megapixel photos."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from measuring.clips import street_clip
from measuring.environments import CACHE, MissingError, checkout, environment
from measuring.peers import AS_THEIRS, prepared, theirs, ultralytics_python
from measuring.rounds import (
    OURS,
    ROOT,
    Command,
    Row,
    detect_video,
    interleave,
    markdown,
    quick_option,
    rates,
    ratios,
    run,
    say_machine,
    spread,
)

COMMIT = "3fc2985"  # the last commit that decoded photos one by one, in full size
SIZE = (4000, 3000)  # JPEGs of 2.5 to 3 MB, like those of phones and trail cameras
ROWS, ANNOTATED = ("--save", "jsonl"), ("--save", "jsonl,pictures")
BF16 = ("--engine", "openvino", "--precision", "bf16")
HEAD = ("job", "pictures/s", "compared with", "ratio")


def photos(count: int) -> Path:
    """Return a cached folder of photos: enlarged frames of the street clip, with noise."""
    import cv2
    import numpy as np

    folder = CACHE / f"photos-{count}"
    if not folder.is_dir():
        partial_folder = folder.with_suffix(".partial")
        partial_folder.mkdir(parents=True, exist_ok=True)
        rng, clip = np.random.default_rng(0), cv2.VideoCapture(str(street_clip(1080, count)))
        for number in range(count):
            image = cv2.resize(clip.read()[1], SIZE, interpolation=cv2.INTER_CUBIC)
            noise = rng.normal(0, 5, image.shape).astype(np.int16)
            image = np.clip(image + noise, 0, 255).astype(np.uint8)
            path = str(partial_folder / f"{number:03}.jpg")
            cv2.imwrite(path, image, [cv2.IMWRITE_JPEG_QUALITY, 90])
        partial_folder.rename(folder)
    return folder


def program_of(commit: str) -> Command:
    """Return the command of an older version, in its own environment. Raises MissingError."""
    folder = checkout(ROOT, commit)
    constraints = folder / "constraints.txt"
    pinned = ["-c", str(constraints)] if constraints.is_file() else []
    python = environment(f"{folder.name}-python", [*pinned, "-e", f"{folder}[openvino]"])
    isolated = [python, "-E"]  # -E ignores PYTHONPATH, which may contain this version
    locate = [*isolated, "-c", "import detector; print(detector.__file__)"]
    location = run(locate, python.parent).stdout.strip()  # run in a folder without modules
    if not Path(location).is_relative_to(folder):
        raise MissingError(f"{python} runs {location}, not {folder}: remove {python.parents[1]}")
    return [*isolated, "-m", "detector"]


@click.command(name="photos")
@click.option("--commit", default=COMMIT, help="The commit to compare with.")
@click.option("--count", default=40, help="Number of photos.")
@click.option("--rounds", default=5)
@click.option("--network", default="yolov8n", help="Model of ultralytics.")
@quick_option
def compare_photos(commit: str, count: int, rounds: int, network: str, quick: bool) -> None:
    """Measure pictures per second in a folder of 12-megapixel JPEGs. This version and --commit
    write rows, with and without annotated copies; ultralytics (torch, OpenVINO) writes nothing."""
    say_machine(quick)
    count, rounds = (4, 1) if quick else (count, rounds)
    folder = photos(count)
    old = program_of(commit)

    def measure(program: Command, *options: Any) -> Row:
        return rates(detect_video(folder, *options, program=program))

    variants = {"street, rows": partial(measure, OURS, *ROWS)}
    variants["street, rows, before"] = partial(measure, old, *ROWS)
    variants["street, annotated"] = partial(measure, OURS, *ANNOTATED)
    variants["street, annotated, before"] = partial(measure, old, *ANNOTATED)
    try:
        python, _ = ultralytics_python()
        exports = prepared(python, network, street_clip(1080, 300), (640, 640))
        model_options = ("--model", exports["onnx"], *AS_THEIRS, *ROWS)
        variants[network] = partial(measure, OURS, *model_options)
        variants[f"{network}, bf16"] = partial(measure, OURS, *model_options, *BF16)
        variants[f"{network}, before"] = partial(measure, old, *model_options)
        for name, model in (("torch", "torch"), ("OpenVINO by default", "openvino")):

            def measure_theirs(model: str = model) -> Row:
                row, _ = theirs(python, "predict", exports[model], folder, 640, 640, "default")
                return {key: float(row[key]) for key in ("fps", "cpu_ms")}

            variants[f"ultralytics {name}"] = measure_theirs
    except MissingError as error:
        click.echo(f"ultralytics: skipped: {error}")
    rows = interleave(variants, rounds, warm_up=0 if quick else 1)
    pairs = [(name, f"{name}, before") for name in rows]
    pairs += [(f"{network}, bf16", f"{network}, before")]
    pairs += [
        (ours, name)
        for ours in (network, f"{network}, bf16")
        for name in rows
        if name.startswith("ultralytics")
    ]
    table = [
        [
            ours,
            spread([row["fps"] for row in rows[ours]]),
            f"{rival}: {spread([row['fps'] for row in rows[rival]])}",
            spread(ratios(rows[ours], rows[rival], "fps")),
        ]
        for ours, rival in pairs
        if ours in rows and rival in rows
    ]
    click.echo("\n" + markdown(HEAD, table))
