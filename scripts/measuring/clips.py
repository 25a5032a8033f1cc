"""Clips of any height for measurements, made by ffmpeg of the demo's street, and kept; and what one
video lost against another.
"""

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
# Of --clip. The measured program runs in an empty folder, so the path is made a whole one.
GIVEN_CLIP = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)
# As good as cameras and phones have it: their bit rate is a few times that of a film.
ENCODED = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-g", "50", "-an")


def clip(height: int, frames: int) -> Path:
    """A 16:9 clip of this height with at least so many frames.

    At 720 the shared clip, where it is there; else ``made``. Raises ClickException.
    """
    if height == 720 and frames <= BENCH_FRAMES and BENCH.is_file():
        return BENCH
    return made(height, frames)


def made(height: int, frames: int) -> Path:
    """The demo's street, scaled, and played again from its start up to exactly so many frames.

    Raises ClickException.
    """
    path = CACHE / "clips" / f"street-{height}p-{frames}.mp4"
    if not path.is_file():
        scaled = ["-vf", f"scale=-2:{height}:flags=lanczos", "-frames:v", str(frames)]
        _make(path, [*_looped(STREET), *scaled, *ENCODED])
    return path


def looped_copy(height: int, frames: int) -> Path:
    """A small clip whose packets are repeated up to so many frames; nothing is encoded twice."""
    path = CACHE / "clips" / f"copied-{height}p-{frames}.mp4"
    if not path.is_file():
        _make(path, [*_looped(made(height, 300)), "-frames:v", str(frames), "-c", "copy"])
    return path


def _looped(path: Path) -> list[str]:
    return ["-stream_loop", "-1", "-i", str(path)]


def _make(path: Path, arguments: list[str]) -> None:
    """Under its final name only when it is whole."""
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
    """Width and height, by ffprobe."""
    asked = ["-select_streams", "v:0", "-show_entries", "stream=width,height", "-of", "json"]
    told = run(["ffprobe", "-v", "error", *asked, path]).stdout
    stream = json.loads(told)["streams"][0]
    return stream["width"], stream["height"]


def ffmpeg_version() -> str:
    return run(["ffmpeg", "-version"]).stdout.split("Copyright")[0].strip()


def fidelity(written: Path, source: Path, frames: int, read: Sequence[str] = ()) -> Row:
    """PSNR of the brightness (dB) and SSIM of a video against the first frames of its source.

    By ffmpeg, picture by picture in their order, whatever their times. ``psnr`` is inf where they
    are equal. ``read``: what ffmpeg has to know of ``source``.
    """
    alike = "".join(
        f"[{at}:v]trim=end_frame={frames},settb=1/25,setpts=N,format=yuv420p[{name}];"
        for at, name in enumerate("ab")
    )
    apart = "[a]split[c][d];[b]split[e][f];[c][e]psnr;[d][f]ssim"
    command = ["ffmpeg", "-i", str(written), *read, "-i", str(source), "-lavfi", alike + apart]
    told = subprocess.run(
        [*command, "-f", "null", "-"], capture_output=True, text=True, check=True
    ).stderr
    return read_fidelity(told)


def read_fidelity(told: str) -> Row:
    """What ffmpeg's filters say at the end. Raises ClickException where they say nothing."""
    psnr, ssim = re.search(r"PSNR y:(\S+)", told), re.search(r"SSIM .*All:(\S+)", told)
    if psnr is None or ssim is None:
        raise click.ClickException(f"ffmpeg compared nothing: {told[-300:]}")
    return {"psnr": float(psnr[1]), "ssim": float(ssim[1])}
