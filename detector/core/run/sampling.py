"""Sample a few frames of a source before its run, to decide settings for the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING

from detector.core.errors import DetectVideoError
from detector.core.sources._forms import STANDARD_INPUT

if TYPE_CHECKING:
    from detector.core.run.reading import SourceReading
    from detector.core.sources.base import Source
    from detector.core.types import Picture, SourceInfo

FRAMES = 12
PLACES = (0.1, 0.5, 0.9)  # positions of the frames, as shares of the video


@dataclass(frozen=True, slots=True)
class SourceSample:
    """Sampled frames. ``pictures``: copies, of any size. ``info``: facts about their source."""

    pictures: list[Picture]
    info: SourceInfo


def sample(reading: SourceReading, specs: Sequence[str]) -> SourceSample | None:
    """Sample up to ``FRAMES`` frames of the first readable source. Skips standard input."""
    for spec in specs:
        if spec == STANDARD_INPUT:
            continue
        with suppress(DetectVideoError):
            with reading.open(spec) as source:
                info = source.info
                seeks = info.kind == "video" and bool(info.duration_s)
                pictures = [] if seeks else _read_first(source, FRAMES)
            if seeks:
                pictures = _read_places(reading, spec, info)
            if pictures:
                return SourceSample(pictures, info)
    return None


@dataclass(frozen=True, slots=True)
class Ahead:
    """The sources that a run will read. Network addresses are not opened ahead of the run."""

    reading: SourceReading
    specs: Sequence[str]

    @property
    def _files(self) -> list[str]:
        return [spec for spec in self.specs if "://" not in spec]

    def sample(self) -> SourceSample | None:
        return sample(self.reading, self._files)

    def count_frames(self) -> int | None:
        """Estimate how many frames all sources have, if each has as many as the first file that can
        be opened. Return 0 if there is no such file, None if its number is unknown."""
        for spec in self._files:
            with suppress(DetectVideoError), self.reading.open(spec) as source:
                frames = self.reading.frames_ahead(source.info)
                return None if frames is None else frames * len(self.specs)
        return 0


def _read_places(reading: SourceReading, spec: str, info: SourceInfo) -> list[Picture]:
    begin = float(reading.start_s or 0)
    length = float(reading.duration_s or (info.duration_s or 0.0) - begin)
    pictures: list[Picture] = []
    for share in (*PLACES, 0):
        if pictures and not share:
            break  # read the first frames only if no frame could be read at ``PLACES``
        start_s = Fraction(round((begin + share * length) * 1000), 1000)
        at = replace(reading, start_s=start_s, duration_s=None)
        with suppress(DetectVideoError), at.open(spec) as source:
            pictures += _read_first(source, FRAMES // len(PLACES))
    return pictures


def _read_first(source: Source, count: int) -> list[Picture]:
    return [frame.image.copy() for frame in islice(iter(source.read, None), count)]
