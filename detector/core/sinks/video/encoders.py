"""Encoders other than x264, used on request: SVT-AV1, NVIDIA's and Intel's. NVENC and Quick Sync
follow FFmpeg's documentation and have not been run here: docs/gpu.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar

import av
import av.logging

from detector.core.errors.machine import usable_cores
from detector.core.sinks.video.h264 import H264File

# SVT-AV1 prints its progress on standard error unless this limits it to errors.
os.environ.setdefault("SVT_LOG", "1")
PROBE = 256  # pixels per side of a picture that every encoder accepts; NVENC's minimum is 160
CURES = {
    "nvenc": "it needs an NVIDIA GPU and its driver",
    "qsv": "it needs an Intel GPU and its driver (intel-media-va-driver, libvpl)",
    "svtav1": "pip install --force-reinstall av",
}
# FFmpeg's messages about an installed driver, and what they mean.
NVENC_CURES = {
    "libnvidia-encode": "the driver lacks its encoder; in a container, start it with "
    "NVIDIA_DRIVER_CAPABILITIES=all",
    "unsupported device": "this GPU has no encoder, like some data-centre cards (A100, H100)",
    "OpenEncodeSession": "all sessions of this GPU's encoder are taken, or it has none",
    "No capable devices": "no GPU here has an encoder: data-centre cards (A100, H100) have none",
}


def cure_of(name: str, reason: str) -> str | None:
    known = NVENC_CURES if name == "nvenc" else {}
    return next((cure for said, cure in known.items() if said in reason), CURES.get(name))


class SvtAv1File(H264File):
    """AV1 by SVT-AV1. Its speed levels go from 0 (best) to 13, its crf to 63."""

    encoder = "libsvtav1"
    lent = False
    qualities: ClassVar[dict[str, dict[str, str]]] = {
        "fast": {"preset": "12", "crf": "38"},
        "balanced": {"preset": "11", "crf": "35"},
        "small": {"preset": "9", "crf": "38"},
    }

    def _choose_options(self) -> dict[str, str]:
        options = dict(self.qualities[self.quality or "balanced"])
        if self.crf is not None:
            options["crf"] = str(self.crf)
        options["svtav1-params"] = f"lp={min(6, usable_cores())}"
        return options

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        stream = self.add_plain_stream(container, height, width)
        with ordinary_priority():
            stream.codec_context.open()
        return stream


class NvencFile(H264File):
    """H.264 by an NVIDIA GPU. Presets p1 (fastest) to p7; ``cq`` is its constant quality."""

    encoder = "h264_nvenc"
    lent = False
    quality_option = "cq"
    qualities: ClassVar[dict[str, dict[str, str]]] = {
        "fast": {"preset": "p1", "cq": "26"},
        "balanced": {"preset": "p4", "cq": "26"},
        "small": {"preset": "p6", "cq": "28"},
    }
    common: ClassVar[dict[str, str]] = {"rc": "vbr", "b": "0"}

    def _choose_options(self) -> dict[str, str]:
        options = self.common | self.qualities[self.quality or "balanced"]
        if self.crf is not None:
            options[self.quality_option] = str(self.crf)
        return options

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        return self.add_plain_stream(container, height, width)


class QsvFile(NvencFile):
    """H.264 by an Intel GPU (Quick Sync). It reads NV12: PyAV converts the picture."""

    encoder = "h264_qsv"
    quality_option = "global_quality"
    qualities: ClassVar[dict[str, dict[str, str]]] = {
        "fast": {"preset": "veryfast", "global_quality": "25"},
        "balanced": {"preset": "faster", "global_quality": "25"},
        "small": {"preset": "slow", "global_quality": "27"},
    }
    common: ClassVar[dict[str, str]] = {}

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        stream = super().add_stream(container, height, width)
        stream.codec_context.pix_fmt = "nv12"
        return stream


FILES: dict[str, type[H264File]] = {
    "x264": H264File,
    "svtav1": SvtAv1File,
    "nvenc": NvencFile,
    "qsv": QsvFile,
}


@contextmanager
def ordinary_priority() -> Iterator[None]:
    """Undo what SVT-AV1 does as root: it makes the calling thread and its own threads real-time
    (SCHED_FIFO, 99), which would starve every other process."""
    ours = os.sched_getscheduler(0)
    try:
        yield
    finally:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # the thread has just ended
                if os.sched_getscheduler(int(thread)) != ours:
                    os.sched_setscheduler(int(thread), ours, os.sched_param(0))


@cache
def why_not(name: str) -> str | None:
    """Return why an encoder cannot be used here; None if it works. Encodes one grey picture."""
    kind = FILES[name]
    try:
        context: Any = av.CodecContext.create(kind.encoder, "w")
    except ValueError:  # UnknownCodecError
        return f"this PyAV has no {kind.encoder}"
    context.width = context.height = PROBE
    context.pix_fmt = "nv12" if name == "qsv" else "yuv420p"
    context.time_base, context.framerate = Fraction(1, 25), Fraction(25)
    picture = av.VideoFrame(PROBE, PROBE, context.pix_fmt)
    for plane in picture.planes:
        plane.update(bytes([128]) * plane.buffer_size)
    picture.pts, picture.time_base = 0, context.time_base
    level = av.logging.get_level()
    av.logging.set_level(av.logging.ERROR)
    try:
        with ordinary_priority(), av.logging.Capture() as said:
            context.open()
        packets = [*context.encode(picture), *context.encode(None)]
    except (av.FFmpegError, OSError, ValueError) as error:
        # The error itself is "Operation not permitted", whatever the driver reported.
        lines = dict.fromkeys(" ".join(text.split()) for _, _, text in said)
        why = "; ".join(lines) or getattr(error, "strerror", None) or error
        return f"FFmpeg cannot open {kind.encoder} ({why})"
    finally:
        av.logging.set_level(level)
    return None if packets else f"{kind.encoder} wrote nothing"
