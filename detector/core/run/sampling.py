"""Sample a few frames of a source before its run, to decide settings for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from detector.core.errors import DetectVideoError
from detector.core.sources._forms import STANDARD_INPUT

if TYPE_CHECKING:
    from detector.core.run.reading import SourceReading
    from detector.core.sources.base import Source
    from detector.core.types import Frame, Picture, SourceInfo

FRAMES = 12
PLACES = (0.1, 0.5, 0.9)  # positions of the frames in a video


@dataclass(frozen=True, slots=True)
class SourceSample:
    """Sampled frames. ``pictures``: copies, of any size. ``info``: of their source."""

    pictures: list[Picture]
    info: SourceInfo


def sample(
    reading: SourceReading, specs: Sequence[str], opens: Callable[[str], Source] | None = None
) -> SourceSample | None:
    """Sample up to ``FRAMES`` frames of the first source that opens; pipes are skipped."""
    for spec in specs:
        if spec == STANDARD_INPUT:
            continue
        with suppress(DetectVideoError):
            with (opens or reading.open)(spec) as source:
                info = source.info
                seeks = opens is None and info.kind == "video" and bool(info.duration_s)
                taken = [] if seeks else _first(source, FRAMES)
            if seeks:
                taken = _from_places(reading, spec, info)
            if taken:
                return SourceSample(taken, info)
    return None


@dataclass(frozen=True, slots=True)
class Ahead:
    """A sample of what a run is going to read, and its estimated length. Opens no addresses."""

    reading: SourceReading
    specs: Sequence[str]

    @property
    def _files(self) -> list[str]:
        return [spec for spec in self.specs if "://" not in spec]

    def sample(self) -> SourceSample | None:
        return sample(self.reading, self._files)

    def count_frames(self) -> int | None:
        """Estimate the frames as if all sources were like the first file that opens; or None."""
        for spec in self._files:
            with suppress(DetectVideoError), self.reading.open(spec) as source:
                frames = self.reading.frames_ahead(source.info)
                return None if frames is None else frames * len(self.specs)
        return 0


def _from_places(reading: SourceReading, spec: str, info: SourceInfo) -> list[Picture]:
    begin = float(reading.start_s or 0)
    length = float(reading.duration_s or (info.duration_s or 0.0) - begin)
    taken: list[Picture] = []
    for share in (*PLACES, 0):
        if taken and not share:
            break  # the stated duration is too long: use the beginning
        at = replace(reading, start_s=_exact(begin + share * length), duration_s=None)
        with suppress(DetectVideoError), at.open(spec) as source:
            taken += _first(source, FRAMES // len(PLACES))
    return taken


def _exact(seconds: float) -> Fraction:
    return Fraction(round(seconds * 1000), 1000)


def _first(source: Source, count: int) -> list[Picture]:
    return [frame.image.copy() for frame in _read(source, count)]


def _read(source: Source, count: int) -> Iterator[Frame]:
    for _ in range(count):
        if (frame := source.read()) is None:
            return
        yield frame
