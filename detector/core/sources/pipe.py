"""``-``: a video that another program writes to standard input. PyAV reads it as it arrives."""

from __future__ import annotations

from typing import Unpack

from detector.core.errors import UsageError
from detector.core.sources._forms import STANDARD_INPUT
from detector.core.sources._standard_input import standard_input
from detector.core.sources.base import ANY, OpenOptions, Source


class PipeSource(Source):
    form = r"-"
    order = -100  # a file named - must be given as ./-
    gives = ("bgr", "yuv420p")
    has_tracks = True

    @classmethod
    def claims(cls, spec: str) -> bool:
        return spec == STANDARD_INPUT

    @classmethod
    def check_spec(cls, spec: str) -> None:
        standard_input().check()

    @classmethod
    def open(cls, spec: str, **how: Unpack[OpenOptions]) -> Source:
        if how.get("decoder") == "opencv":
            raise UsageError("-: opencv cannot read standard input; omit --decoder")
        from detector.core.sources.video._pipe import open_pipe

        stride, frames, pixels = how.get("stride", 1), how.get("frames"), how.get("pixels", "bgr")
        return open_pipe(stride, frames, pixels, how.get("choice", ANY))
