"""Encoders other than x264, used on request: SVT-AV1, NVIDIA's and Intel's. The code for the last
two follows FFmpeg's documentation, but has never been run (docs/gpu.md)."""

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
from detector.core.sinks.video.h264 import H264File, YuvFile

# Limit SVT-AV1's log to errors; by default it prints its progress on standard error.
os.environ.setdefault("SVT_LOG", "1")
PROBE_SIDE = 256  # pixels; every encoder accepts this size, and NVENC's minimum is 160
CURES = {
    "nvenc": "it needs an NVIDIA GPU and its driver",
    "qsv": "it needs an Intel GPU and its driver (intel-media-va-driver, libvpl)",
    "svtav1": "reinstall PyAV (pip install --force-reinstall av)",
}
# A part of FFmpeg's message on a machine with a driver -> what the message means.
NVENC_CURES = {
    "libnvidia-encode": "the driver lacks its encoder; if this is a container, start it with "
    "NVIDIA_DRIVER_CAPABILITIES=all",
    "unsupported device": "this GPU has no encoder, like some data-centre cards (A100, H100)",
    "OpenEncodeSession": "all sessions of this GPU's encoder are taken, or this GPU has no encoder",
    "No capable devices": "no GPU here has an encoder: data-centre cards (A100, H100) have none",
}


def cure_of(name: str, reason: str) -> str | None:
    cures = NVENC_CURES if name == "nvenc" else {}
    return next((cure for part, cure in cures.items() if part in reason), CURES.get(name))


class SvtAv1File(H264File):
    """AV1 by SVT-AV1. Its presets are 0 (best) to 13, its crf 0 to 63."""

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
        stream = YuvFile.add_stream(self, container, height, width)
        with keep_priority():
            stream.codec_context.open()
        return stream


class NvencFile(H264File):
    """H.264 by an NVIDIA GPU. Its presets are p1 (fastest) to p7, its quality option is ``cq``."""

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

    add_stream = YuvFile.add_stream  # without x264's own settings


class QsvFile(NvencFile):
    """H.264 by an Intel GPU (Quick Sync). PyAV converts pictures to NV12 for it."""

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
def keep_priority() -> Iterator[None]:
    """Restore the scheduling of threads after the block. As root, SVT-AV1 gives the calling thread
    and its own threads real-time priority (SCHED_FIFO, 99), which would starve other processes."""
    policy = os.sched_getscheduler(0)
    try:
        yield
    finally:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # the thread has just ended
                if os.sched_getscheduler(int(thread)) != policy:
                    os.sched_setscheduler(int(thread), policy, os.sched_param(0))


@cache
def why_not(name: str) -> str | None:
    """Encode a grey picture. Return why an encoder cannot be used here; None if it works."""
    kind = FILES[name]
    try:
        context: Any = av.CodecContext.create(kind.encoder, "w")
    except ValueError:  # UnknownCodecError
        return f"this PyAV has no {kind.encoder}"
    context.width = context.height = PROBE_SIDE
    context.pix_fmt = "nv12" if name == "qsv" else "yuv420p"
    context.time_base, context.framerate = Fraction(1, 25), Fraction(25)
    picture = av.VideoFrame(PROBE_SIDE, PROBE_SIDE, context.pix_fmt)
    for plane in picture.planes:
        plane.update(bytes([128]) * plane.buffer_size)
    picture.pts, picture.time_base = 0, context.time_base
    level = av.logging.get_level()
    av.logging.set_level(av.logging.ERROR)
    try:
        with keep_priority(), av.logging.Capture() as messages:
            context.open()
        packets = [*context.encode(picture), *context.encode(None)]
    except (av.FFmpegError, OSError, ValueError) as error:
        # The log has the driver's message; the error itself is always "Operation not permitted".
        lines = dict.fromkeys(" ".join(text.split()) for _, _, text in messages)
        why = "; ".join(lines) or getattr(error, "strerror", None) or error
        return f"FFmpeg cannot open {kind.encoder} ({why})"
    finally:
        av.logging.set_level(level)
    return None if packets else f"{kind.encoder} wrote nothing"
