"""Divide a long file into parts. Several processes then give the same results as a single run.

A decoder starts at a key frame at or before a part. The part's first frame also begins a batch in a
single run. The file stays whole if the packets do not prove that the pictures are the same, or if
an option carries state from frame to frame. The plan then gives the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import av

from detector.batch.pieces import LEAST_S, PLAN
from detector.core import __version__, sinks, sources
from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.errors.text import counted
from detector.core.errors.writing import write_whole
from detector.core.run.reading import SourceReading
from detector.core.session import codec
from detector.core.sources.video._container import probe
from detector.core.sources.video._keys import Promise
from detector.core.sources.video._part import Stretch
from detector.core.sources.video._seek import DoubtError, Landing, Survey, survey_packets

if TYPE_CHECKING:
    from detector.core.sinks.base import Sink
    from detector.core.types import SourceInfo

JOINED_ENCODERS = (None, "x264", "svtav1")
KEYS_BEFORE = 3  # key frames to store before each part's start; more would make plan.json large


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file, with the facts that a worker needs to process it.

    ``number`` counts from 0. ``first``: number of its first frame; ``frames``: number of frames.
    Times are ticks of the source's time base; ``end_pts``: time of the first frame after the part,
    None at the end of the file. ``landing``: where decoding starts; None: at the beginning.
    """

    number: int
    of: int
    first: int
    frames: int
    start_pts: int
    end_pts: int | None
    landing: Landing | None

    @property
    def stretch(self) -> Stretch:
        return Stretch(self.start_pts, self.end_pts, self.landing)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The parts of a file; none if the file stays whole. ``is_short``: it is too short to split."""

    parts: tuple[Part, ...]
    why_whole: str = ""
    is_short: bool = False


def plan_parts(
    spec: str,
    config: Config,
    most: int,
    *,
    least_s: float = LEAST_S,
    watch: Callable[[], None] = lambda: None,
) -> SplitPlan:
    """Divide a source into up to ``most`` parts of at least ``least_s`` seconds. Reads all packets,
    and calls ``watch`` for each. ``config``: without any ``auto``. Raises SourceError."""
    if reason := why_whole(spec, config):
        return SplitPlan((), reason)
    try:
        for sink in chosen_sinks(config):
            sink.check_source(spec)
    except UsageError as error:
        return SplitPlan((), f"it cannot be processed: {error}")
    video = probe(spec, SourceReading.of(config).choice)
    lengths = (video.info.duration_s, SourceReading.of(config).duration_s)
    if min((length for length in lengths if length is not None), default=inf) < 2 * least_s:
        return _too_short(least_s)
    try:
        survey = survey_packets(video, watch=watch)
    except DoubtError as doubt:
        return SplitPlan((), str(doubt))
    except av.error.FFmpegError as error:
        return SplitPlan((), f"it cannot be read to the end ({error.strerror})")
    return divide(survey, video.info, config, most, least_s)


def _too_short(least_s: float) -> SplitPlan:
    return SplitPlan((), f"it is shorter than two parts of {least_s:g} s", is_short=True)


def why_whole(spec: str, config: Config) -> str:
    """Return why these options or this kind of source prevent a split, or "". Opens no file."""
    from detector.core.sources.video import VideoSource

    if config.value("repeat", False) or sources.find_claiming(spec) is not VideoSource:
        return "only video files can be split"
    if config.input.skip_still is not None:
        return "--skip-still compares each frame with the last inferred one"
    if config.value("track", None) is not None:
        return "--track needs all frames in order"
    if config.output.output == "-":
        return "rows go to standard output"
    if config.output.save_times:
        return "--save-times needs a single run"
    for sink in chosen_sinks(config):
        if reason := _why_not_joined(sink, config):
            return reason
    return ""


def chosen_sinks(config: Config) -> list[type[Sink]]:
    from detector.core.sinks.base import DRAWN

    output = config.output
    chosen = sinks.defaults("video") if output.save is None else sinks.in_order(output.save)
    return [sink for sink in chosen if not (output.no_video and sink.pictures in DRAWN)]


def _why_not_joined(sink: type[Sink], config: Config) -> str:
    from detector.core.sinks.video.joined import SUFFIXES

    if sink.pictures == "none":
        return ""  # the join writes this output from the detections of all parts
    if sink.name != "video":
        return f"--save {sink.name} writes pictures into one folder, which needs a single run"
    if config.output.only_detections:
        return "--only-detections keeps frames that depend on detections before and after them"
    if config.output.encoder not in JOINED_ENCODERS:
        return f"--encoder {config.output.encoder}: joining its parts is untested"
    suffix = os.path.splitext(config.output.output or "")[1].lower()
    if suffix and suffix not in SUFFIXES:
        return f"parts of a {suffix} cannot be joined; write a .mp4"
    return ""


@dataclass(frozen=True, slots=True)
class _FrameRange:
    """Frames ``first``, ``first + stride``, ... To get them, we read ``begin`` to ``end`` - 1."""

    begin: int
    end: int
    first: int
    stride: int
    count: int

    def number(self, place: int) -> int:
        return self.first + place * self.stride


def divide(
    survey: Survey, info: SourceInfo, config: Config, most: int, least_s: float = LEAST_S
) -> SplitPlan:
    if not survey.shown:
        return SplitPlan((), "it contains no frame")
    wanted = _find_wanted(survey, info, config)
    if wanted is None:
        return SplitPlan((), "none of its frames are requested")
    least = max(1, round(least_s * float(info.fps) / wanted.stride))
    if wanted.count < 2 * least or most < 2:
        return _too_short(least_s)
    joints = _find_joints(survey, wanted, config.runtime.batch)
    chosen = _choose(joints, wanted.count, most, least)
    if not chosen:
        return SplitPlan((), _why_no_joint(survey))
    ends, parts = [*chosen, wanted.count], []
    for at, (place, end) in enumerate(zip([0, *chosen], ends, strict=True)):
        start = survey.shown[wanted.number(place) if at else wanted.begin]
        behind = wanted.number(end) if at + 1 < len(ends) else wanted.end
        parts.append(
            Part(
                number=at,
                of=len(ends),
                first=wanted.number(place),
                frames=end - place,
                start_pts=start,
                end_pts=survey.shown[behind] if behind < len(survey.shown) else None,
                landing=survey.find_landing(start, KEYS_BEFORE),
            )
        )
    return SplitPlan(tuple(parts))


def _find_wanted(survey: Survey, info: SourceInfo, config: Config) -> _FrameRange | None:
    """Return the frames selected by --start, --duration, --frames and --stride; None if none."""
    reading = SourceReading.of(config)
    start_s, duration_s = reading.start_s, reading.duration_s
    shown, base, stride = survey.shown, info.time_base, reading.stride
    begin, end = 0, len(shown)
    if start_s is not None:
        start_s += info.start_pts * base  # --start counts from the first timestamp
        begin = survey.number(_ceil(start_s / base))
    if duration_s is not None and begin < end:
        start_s = shown[begin] * base if start_s is None else start_s
        end = survey.number(_ceil((start_s + duration_s) / base))
    first = -(-begin // stride) * stride
    count = len(range(first, end, stride))
    if config.input.frames is not None and config.input.frames <= count:
        count = config.input.frames
        end = first + (count - 1) * stride + 1
    return _FrameRange(begin, end, first, stride, count) if count > 0 else None


def _ceil(number: Fraction) -> int:
    return -int(-number // 1)


def _find_joints(survey: Survey, wanted: _FrameRange, batch: int) -> list[int]:
    usable = [key for key in survey.keys if key.promise is not Promise.NONE]
    joints = set()
    for at, key in enumerate(usable):
        # Skip key frames from which a part would be decoded from the beginning of the file. For an
        # open GOP, decoding starts one GOP earlier.
        if at < (2 if key.promise is Promise.OPEN else 1):
            continue
        place = -(-(survey.number(key.pts) - wanted.first) // wanted.stride)
        place = -(-place // batch) * batch
        if 0 < place < wanted.count:
            joints.add(place)
    return sorted(joints)


def _choose(joints: Sequence[int], count: int, most: int, least: int) -> list[int]:
    """Return the joints that divide the file most equally; no part is shorter than ``least``."""
    chosen: list[int] = []
    for number in range(1, most):
        before = chosen[-1] if chosen else 0
        fitting = [place for place in joints if before + least <= place <= count - least]
        if not fitting:
            break
        # Divide the remaining frames equally, so that no long GOP makes the parts after it short.
        target = before + (count - before) / (most - number + 1)
        chosen.append(min(fitting, key=lambda place: abs(place - target)))
    return chosen


def _why_no_joint(survey: Survey) -> str:
    usable = [key for key in survey.keys if key.promise is not Promise.NONE]
    if len(usable) < len(survey.keys):
        return (
            f"a decoder can start at {len(usable)} of its {counted(len(survey.keys), 'key frame')} "
            "(the others refresh the picture gradually, or give no guarantee)"
        )
    return f"it has {counted(len(usable), 'key frame')}, and none where a part could start"


# The stored plan. All workers use it, and so does a job that is continued later.


@dataclass(frozen=True, slots=True)
class _KeptPlan:
    key: str
    program: str
    parts: tuple[Part, ...]


def keep_plan(folder: Path, key: str, parts: tuple[Part, ...]) -> None:
    """Store the plan. Raises OutputError."""
    kept = _KeptPlan(key, __version__, parts)
    write_whole(folder / PLAN, codec.to_json(kept).encode(), ours=True)


def read_plan(folder: Path, key: str) -> tuple[Part, ...]:
    """Return the stored parts of an item, or none if no plan has this key and our version."""
    try:
        path = folder / PLAN
        kept = codec.from_json(codec.read_file(path), _KeptPlan, path)
    except UsageError:
        return ()
    return kept.parts if (kept.key, kept.program) == (key, __version__) else ()
