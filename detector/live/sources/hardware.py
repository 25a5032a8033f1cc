"""Decoding by a GPU, where a camera asks for it: ``options: {hwaccel: cuda}`` is NVDEC. FFmpeg
copies each picture to the host; where that is impossible, the CPU decodes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import av
from av.codec.hwaccel import HWAccel

OPTION = "hwaccel"  # of a camera; it is not handed to FFmpeg's demuxer
# One context for all cameras of a process: a context of its own would cost each some 300 MB.
_OPTIONS: dict[str, dict[str, object]] = {"cuda": {"primary_ctx": "1"}}


def accelerator_of(options: Mapping[str, str]) -> Any:
    """PyAV's HWAccel for ``av.open``; None where nothing was asked for or the device is absent."""
    kind = options.get(OPTION)
    if kind is None or not _exists(kind):
        return None
    return HWAccel(kind, allow_software_fallback=True, options=_OPTIONS.get(kind, {}))


@functools.cache
def _exists(kind: str) -> bool:
    """Whether the device can be opened; PyAV's own error would not name it."""
    try:
        accelerator = HWAccel(kind, options=_OPTIONS.get(kind, {}))
        accelerator.create(av.Codec("h264", "r"))
    except (av.error.FFmpegError, NotImplementedError, ValueError):
        return False
    return True


def codec_name(codec: Any) -> str:
    return f"{codec.name} by hardware" if codec.is_hwaccel else str(codec.name)
