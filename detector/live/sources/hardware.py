"""Decodes on a GPU: NVDEC for cameras with ``options: {hwaccel: cuda}``.

FFmpeg copies each picture to the host. If the GPU cannot decode a stream, the CPU decodes it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import av
from av.codec.hwaccel import HWAccel

OPTION = "hwaccel"  # a camera's option that is not passed to FFmpeg's demuxer
# One context for all cameras of a process: separate contexts would take some 300 MB each.
_OPTIONS: dict[str, dict[str, object]] = {"cuda": {"primary_ctx": "1"}}


def make_accelerator(options: Mapping[str, str]) -> Any:
    """Return PyAV's HWAccel for ``av.open``; None if not requested, or the device does not open."""
    kind = options.get(OPTION)
    if kind is None or not _exists(kind):
        return None
    return HWAccel(kind, allow_software_fallback=True, options=_OPTIONS.get(kind, {}))


@functools.cache
def _exists(kind: str) -> bool:
    """Return whether the device can be opened. PyAV's own error would not name the device."""
    try:
        HWAccel(kind, options=_OPTIONS.get(kind, {})).create(av.Codec("h264", "r"))
    except (av.error.FFmpegError, NotImplementedError, ValueError):
        return False
    return True


def describe_codec(codec: Any) -> str:
    return f"{codec.name} by hardware" if codec.is_hwaccel else str(codec.name)
