"""Decoding by NVDEC, encoding by NVENC, and threads that draw ahead of the writer."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpu.children import detect_video
from gpu.findings import Row, rehearsing, row
from gpu.machine import CLIP, HANDICAP, command, torch_lacks

COUNT = 50  # frames
TURNS = 2
CANNOT_WRITE = 6  # exit status
CAMERA = "cameras:\n  - {name: clip, url: %s, options: {hwaccel: cuda}}\n"


def video() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from decoded()
        yield camera(folder)
        yield encoded(folder)


def drawing() -> Iterator[Row]:
    """Run with and without two threads that draw ahead of the writer, in turns; yield speeds."""
    if (why := torch_lacks()) is not None:
        yield row("torch", why, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        for turn, drawers in itertools.product(range(TURNS), (2, 0)):
            name = f"{drawers} drawing threads, run {turn + 1}"
            yield command("torch", name, folder, by=(str(HANDICAP), "drawers", str(drawers)))


def decoded() -> Iterator[Row]:
    """Compare NVDEC's pictures with the CPU decoder's: H.264 allows no difference."""
    import av
    import numpy as np

    from detector.live.sources.hardware import describe_codec, make_accelerator

    pictures, names = [], []
    for options in ({"hwaccel": "cuda"}, {}):
        with av.open(str(CLIP), hwaccel=make_accelerator(options)) as source:
            stream = source.streams.video[0]
            frames = [
                frame.to_ndarray(format="yuv420p")
                for frame, _ in zip(source.decode(stream), range(COUNT), strict=False)
            ]
            pictures.append(frames)
            names.append(describe_codec(stream.codec_context))
    if not rehearsing():
        yield row("NVDEC decodes", names[0], "by hardware" in names[0])
    else:
        yield row("without NVDEC the CPU decodes", names[0], names[0] == "h264")
    same = len(pictures[0]) == len(pictures[1]) == COUNT
    largest = max(int(np.abs(a.astype(int) - b).max()) for a, b in zip(*pictures, strict=False))
    value = f"{len(pictures[0])} frames, which differ by at most {largest}"
    yield row("NVDEC's frames against the CPU's", value, same and largest == 0)


def camera(folder: str) -> Row:
    """Run the clip as a camera with hwaccel."""
    file = Path(folder) / "cameras.yaml"
    file.write_text(CAMERA % CLIP)
    code, out, err = detect_video(
        *(str(file), "--loop", "--frames", str(COUNT), "--engine", "null", "--json"),
        *("-o", f"{folder}/live", "--run-dir", f"{folder}/session"),
        cwd=folder,
    )
    what = "detect-video cameras.yaml, options: {hwaccel: cuda}"
    if code != 0:
        return row(what, f"exit {code}: {err[-300:]}", False)
    codec = json.loads(out)["video"]["codec"]
    return row(what, codec, "by hardware" in codec or rehearsing())


def encoded(folder: str) -> Row:
    target, options = f"{folder}/out.mp4", ("--frames", str(COUNT), "--encoder", "nvenc", "--quiet")
    code, _, err = detect_video(
        *(str(CLIP), "--engine", "null", *options, "-o", target, "--run-dir", f"{folder}/nvenc"),
        cwd=folder,
    )
    what = "--encoder nvenc"
    if rehearsing():
        one_line = code != 0 and len(err.strip().splitlines()) == 1
        return row(f"{what}: refused in one line without a GPU", err.strip()[-200:], one_line)
    if code != 0:
        no_encoder = code == CANNOT_WRITE and "this GPU has no encoder" in err
        return row(what, f"exit {code}: {err.strip()[-300:]}", None if no_encoder else False)
    import av

    with av.open(target) as result:
        count = sum(1 for _ in result.decode(video=0))
        name = result.streams.video[0].codec_context.name
    size = Path(target).stat().st_size
    return row(what, f"{count} frames of {name}, {size} bytes", count == COUNT and name == "h264")
