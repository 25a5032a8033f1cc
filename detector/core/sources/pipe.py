"""``-``: a video that another program sends to standard input. PyAV reads it as it comes."""

from __future__ import annotations

from detector.core.errors import UsageError
from detector.core.sources._standard_input import SPEC, standard_input
from detector.core.sources.base import ANY, Choice, Source


class PipeSource(Source):
    order = -100  # a file of that name is ./-
    gives = ("bgr", "yuv420p")
    has_tracks = True

    @classmethod
    def claims(cls, spec: str) -> bool:
        return spec == SPEC

    @classmethod
    def check_spec(cls, spec: str) -> None:
        standard_input().check()

    @classmethod
    def open(
        cls,
        spec: str,
        *,
        decoder: str = "auto",
        stride: int = 1,
        frames: int | None = None,
        pixels: str = "bgr",
        choice: Choice = ANY,
    ) -> Source:
        if decoder == "opencv":
            raise UsageError("-: opencv cannot read standard input; omit --decoder")
        from detector.core.sources.video._pipe import PipedSource

        return PipedSource.open_first(stride, frames, pixels, choice)
