"""The options for reading the sources of a run: decoder, stride, time window, track, and so on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from detector.core import wings
from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError, SourceError, UsageError
from detector.core.errors.machine import too_much, usable_cores
from detector.core.run.canvas import follows_source
from detector.core.sources._forms import STANDARD_INPUT, is_live
from detector.core.sources.base import Choice, parse_grey_range, parse_rate

if TYPE_CHECKING:
    from detector.core.sources.base import Source
    from detector.core.stages.still import Stillness
    from detector.core.types import SourceInfo

# Seconds, or [HH:]MM:SS. Seconds after MM are below 60, and so are minutes after HH.
TIME = re.compile(
    r"(?:(?:([0-9]{1,4}):(?=[0-5]?[0-9]:))?([0-9]{1,4}):(?=[0-5]?[0-9](?:\.|$)))?"
    r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
)
# Bytes per pixel that decoding a frame takes. The decoder of GIF, which keeps a canvas, took 7.
DECODER_BYTES = 8


@dataclass(frozen=True, slots=True)
class SourceReading:
    """Options for reading. ``start_s``, ``duration_s``: exact seconds, None if not given.
    ``still``: --skip-still as (text, share). ``batch``: least number of frames in flight.
    ``shaped``: whether the network's input takes the shape of a video; ``longest``: whether only
    the longest side of the input is given. ``added``: groups of options that wings add."""

    decoder: str
    stride: int
    frames: int | None
    choice: Choice
    start_s: Fraction | None
    duration_s: Fraction | None
    still: tuple[str, float] | None
    batch: int
    shaped: bool
    longest: bool
    full_decode: bool
    looped: bool
    added: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config) -> SourceReading:
        shaped, given, size = follows_source(config), config.input, config.runtime.size
        if config.runtime.rect and given.skip_still is not None:
            raise UsageError("--rect is for pictures, --skip-still for videos; omit one")
        rate = None if given.rate is None else parse_rate(given.rate)
        start_s = None if given.start is None else _parse_seconds("--start", given.start)
        duration_s = (
            None if given.duration is None else _parse_seconds("--duration", given.duration)
        )
        if duration_s == 0:
            raise UsageError(f"--duration {given.duration}: must be more than 0 seconds")
        still = None
        if given.skip_still is not None:
            from detector.core.stages.still import parse_share

            still = given.skip_still, parse_share(given.skip_still)
        return cls(
            decoder=given.decoder,
            stride=given.stride,
            frames=given.frames,
            choice=Choice(
                given.video_track,
                rate,
                parse_grey_range(given.grey_range),
                at_once=1 if config.loop.sync else usable_cores(),
            ),
            start_s=start_s,
            duration_s=duration_s,
            still=still,
            batch=config.runtime.batch,
            shaped=shaped,
            longest=config.runtime.rect or (size is not None and size.isdecimal()),
            full_decode=given.full_decode,
            looped=config.value("repeat", False),
            added={group: getattr(config, group) for group in wings.options()},
        )

    @property
    def whole(self) -> SourceReading:
        return replace(self, start_s=None, duration_s=None)

    def open(
        self,
        spec: str,
        pixels: str = "bgr",
        *,
        as_camera: bool = False,
        reduce: Callable[[int, int], int] | None = None,
    ) -> Source:
        """Open one source. ``pixels``: "yuv420p" requests planes. ``as_camera``: an address is a
        camera even if its server sends a file. Raises SourceError and UsageError."""
        from detector.core import sources

        live = self.looped or (as_camera and is_live(spec))
        kind = sources.find_arriving() if live else sources.find_claiming(spec)
        if kind.arrives:
            source = kind.open_arriving(spec, self)
        else:
            source = sources.open(
                spec,
                decoder=self.decoder,
                stride=self.stride,
                frames=self.frames,
                pixels=pixels,
                choice=self.choice if reduce is None else replace(self.choice, reduce=reduce),
            )
        try:
            _refuse_huge_frames(source.info, self.batch)
            if self.start_s is not None or self.duration_s is not None:
                source.restrict(self.start_s, self.duration_s)
        except BaseException:
            source.close()
            raise
        return source

    def frames_ahead(self, info: SourceInfo) -> int | None:
        """Estimate how many frames will be read from a source; None if unknown."""
        left = info.frames_declared
        if left is not None and self.start_s is not None:
            left -= math.ceil(self.start_s * info.fps)
        if self.duration_s is not None and info.fps:
            within = math.ceil(self.duration_s * info.fps)
            left = within if left is None else min(left, within)
        if left is not None:
            left = max(1, math.ceil(left / self.stride))
        return min([limit for limit in (left, self.frames) if limit is not None], default=None)

    def stillness(self, info: SourceInfo) -> Stillness | None:
        """Return the motion detector of --skip-still; None without this option or for pictures."""
        if self.still is None or info.kind == "pictures":
            return None
        from detector.core.stages.still import Stillness

        return Stillness(self.still[1])

    def picture_size(self, specs: Sequence[str]) -> tuple[int, int] | None:
        """Return (width, height) of the first source that opens, if the input depends on it."""
        from detector.core.sources import find_claiming

        if not (self.shaped or self.longest):
            return None
        with suppress(DetectVideoError):  # opening the source will report the error
            if self.shaped and all(find_claiming(spec).kind == "pictures" for spec in specs):
                return None
        info = self._first_info(specs)
        if info is None or (self.shaped and info.kind == "pictures"):
            return None  # pictures have different shapes
        return info.width, info.height

    def first_size(self, specs: Sequence[str]) -> tuple[int, int] | None:
        """Return width and height of the first source that opens; None if none does."""
        info = self._first_info(specs)
        return None if info is None else (info.width, info.height)

    def _first_info(self, specs: Sequence[str]) -> SourceInfo | None:
        for spec in specs:
            # Running the source will report errors. Planes ("yuv420p") save a conversion.
            with suppress(DetectVideoError), self.whole.open(spec, "yuv420p") as source:
                return source.info
        return None

    def kind_of(self, spec: str) -> str | None:
        """Return "1280x720 h264", "pictures" or another kind of source; None if unknown."""
        if spec == STANDARD_INPUT:
            return None
        with suppress(DetectVideoError), self.whole.open(spec) as source:
            info = source.info
            is_video = info.kind == "video"
            return f"{info.width}x{info.height} {info.codec}" if is_video else info.kind
        return None


def _refuse_huge_frames(info: SourceInfo, batch: int) -> None:
    size, pixels = f"{info.width}x{info.height}", info.width * info.height
    if (needed := too_much(pixels * (3 * (batch + 1) + DECODER_BYTES))) is not None:
        cure = "use a smaller --batch" if batch > 1 else "use a smaller picture"
        raise SourceError(f"{info.path}: {batch + 1} frames of {size} need {needed}; {cure}")


def _parse_seconds(flag: str, text: str) -> Fraction:
    if (parts := TIME.fullmatch(text)) is None:
        raise UsageError(f"{flag} {text}: not a time; use seconds (10, 0.5) or 01:10, 1:00:10.5")
    hours, minutes, seconds = (Fraction(part or 0) for part in parts.group(1, 2, 3))
    return hours * 3600 + minutes * 60 + seconds
