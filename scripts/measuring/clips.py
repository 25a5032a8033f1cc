"""Make clips of any height for measurements: ffmpeg scales the demo's clip, and results are cached.
Also measure the quality of a video, compared with its source."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click

from measuring.environments import CACHE
from measuring.rounds import SHARED, STREET, Row, run

BENCH = SHARED / "videos/bench_720p.mp4"  # 200 frames of people, then 200 of traffic
BENCH_FRAMES = 400
# --clip's type makes the path absolute, because the measured program runs in an empty folder.
GIVEN_CLIP = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)
# Cameras and phones record in about this quality. Their bit rate is a few times that of a film.
ENCODED = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-g", "50", "-an")


def clip(height: int, frames: int) -> Path:
    """Return a 16:9 clip of this height with at least this many frames. Raises ClickException.

    It is the shared clip (720 lines, 400 frames) if that exists and suffices, else ``street_clip``.
    """
    if height == 720 and frames <= BENCH_FRAMES and BENCH.is_file():
        return BENCH
    return street_clip(height, frames)


def street_clip(height: int, frames: int) -> Path:
    """Return the demo's clip, scaled to this height, and repeated to exactly this many frames.
    Raises ClickException."""
    path = CACHE / "clips" / f"street-{height}p-{frames}.mp4"
    if not path.is_file():
        scaled = ["-vf", f"scale=-2:{height}:flags=lanczos", "-frames:v", str(frames)]
        _make(path, [*_looped(STREET), *scaled, *ENCODED])
    return path


def looped_copy(height: int, frames: int) -> Path:
    """Return a long clip: it repeats the packets of a short clip, because encoding is slow."""
    path = CACHE / "clips" / f"copied-{height}p-{frames}.mp4"
    if not path.is_file():
        _make(path, [*_looped(street_clip(height, 300)), "-frames:v", str(frames), "-c", "copy"])
    return path


def _looped(path: Path) -> list[str]:
    return ["-stream_loop", "-1", "-i", str(path)]


def _make(path: Path, arguments: list[str]) -> None:
    """Run ffmpeg. The file gets its final name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial.mp4")
    try:
        run(["ffmpeg", "-v", "error", "-y", *arguments, partial])
        partial.replace(path)
    except FileNotFoundError:
        raise click.ClickException("ffmpeg is not installed: apt install ffmpeg") from None
    finally:
        partial.unlink(missing_ok=True)


def size_of(path: Path) -> tuple[int, int]:
    """Return (width, height), by ffprobe."""
    options = ["-select_streams", "v:0", "-show_entries", "stream=width,height", "-of", "json"]
    output = run(["ffprobe", "-v", "error", *options, path]).stdout
    stream = json.loads(output)["streams"][0]
    return stream["width"], stream["height"]


def ffmpeg_version() -> str:
    return run(["ffmpeg", "-version"]).stdout.split("Copyright")[0].strip()


def fidelity(written: Path, source: Path, frames: int, read_options: Sequence[str] = ()) -> Row:
    """Compare a video with its source; return PSNR (dB, of luma) and SSIM (of all planes).

    ffmpeg compares the first ``frames`` pictures of both videos in order, ignoring their times. If
    all are equal, ``psnr`` is inf. ``read_options``: ffmpeg's input options for ``source``.
    """
    inputs = "".join(
        f"[{at}:v]trim=end_frame={frames},settb=1/25,setpts=N,format=yuv420p[{name}];"
        for at, name in enumerate("ab")
    )
    metrics = "[a]split[c][d];[b]split[e][f];[c][e]psnr;[d][f]ssim"
    command = [
        "ffmpeg",
        "-i",
        str(written),
        *read_options,
        "-i",
        str(source),
        "-lavfi",
        inputs + metrics,
    ]
    output = subprocess.run(
        [*command, "-f", "null", "-"], capture_output=True, text=True, check=True
    ).stderr
    return read_fidelity(output)


def read_fidelity(output: str) -> Row:
    """Read the results that ffmpeg's filters print. Raises ClickException if there are none."""
    psnr, ssim = re.search(r"PSNR y:(\S+)", output), re.search(r"SSIM .*All:(\S+)", output)
    if psnr is None or ssim is None:
        raise click.ClickException(f"ffmpeg compared nothing: {output[-300:]}")
    return {"psnr": float(psnr[1]), "ssim": float(ssim[1])}
