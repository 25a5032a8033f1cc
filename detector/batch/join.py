"""Join the parts of a file into the outputs of a single run.

Detections go through the same sinks as in a single run, frame by frame. So rows, datasets and
overlays equal those of a single run byte for byte. The video is made from the packets of the parts
(``sinks/video/joined.py``), with the source's sound. Outputs get their final names only if every
frame occurs once and in order, and adjacent parts decoded the same picture at the joint.
"""

from __future__ import annotations

import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detector.batch.part import ROWS, CutOffError, PartResult, read_result, read_rows
from detector.batch.split import Part
from detector.core.config.schema import Config
from detector.core.errors.text import counted
from detector.core.types import Frame

if TYPE_CHECKING:
    from detector.core.sinks.base import Sink
    from detector.core.sinks.video.joined import JoinedVideoSink
    from detector.core.types import SourceInfo


class NotExactError(Exception):
    """The parts cannot be joined, so the file needs a single run. The message gives the reason."""


@dataclass(slots=True)
class Joined:
    outputs: dict[str, Path]
    frames: int = 0
    by_class: Counter[int] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def join_parts(
    spec: str,
    config: Config,
    parts: Sequence[Part],
    folders: Sequence[Path],
    paths: Mapping[str, Path],
    watch: Callable[[], None] = lambda: None,
) -> Joined:
    """Write ``paths`` (name of the sink -> file), each complete or not at all. ``folders``: one
    for each part, in order. Raises NotExactError, DetectVideoError."""
    from detector.core.run.plan import PlanDraft, open_sinks
    from detector.core.sinks.video.joined import UnjoinableError

    results = [read_result(folder) for folder in folders]
    _check(parts, results)
    asked = PlanDraft.of(config)
    with asked.reading.whole.open(spec) as source:
        info = source.info
    first = results[0]
    drawing = replace(asked.drawing, remark=first.remark, blurred=frozenset(first.blurred))
    rows = {name: path for name, path in paths.items() if name != "video"}
    opened = open_sinks(rows, info, asked.writing, drawing)
    video = None
    try:
        if "video" in paths:
            video = _open_video(paths["video"], info, config)
            opened.append(video)
        frames = _replay(config, parts, results, folders, info, opened, watch)
        if video is not None:
            stretches = [
                folder / str(one.video) for folder, one in zip(folders, results, strict=True)
            ]
            video.join(stretches, frames, (first.height, first.width), watch)
        outputs = {sink.name: path for sink in opened if (path := sink.close()) is not None}
    except BaseException as error:
        for sink in opened:
            _remove(sink.abort())  # no partial output is kept: the parts still exist
        if isinstance(error, UnjoinableError):
            raise NotExactError(str(error)) from error
        raise
    joined = Joined(outputs, frames=len(frames))
    for result in results:
        joined.by_class.update(dict(result.by_class))
        joined.notes += result.notes
    joined.notes += [note for sink in opened for note in sink.notes]
    joined.notes = list(dict.fromkeys(joined.notes))
    return joined


def _remove(left: Path | None) -> None:
    if left is None:
        return
    if left.is_dir():
        shutil.rmtree(left, ignore_errors=True)
    else:
        with suppress(OSError):
            left.unlink()


def _check(parts: Sequence[Part], results: Sequence[PartResult]) -> None:
    if not parts or len(parts) != parts[0].of or len(results) != len(parts):
        raise NotExactError(f"{len(results)} of {parts[0].of if parts else 0} parts exist")
    for part, result in zip(parts, results, strict=True):
        where = f"part {part.number + 1} of {part.of}"
        if (result.number, result.of) != (part.number, part.of):
            raise NotExactError(f"{where} is stored as part {result.number + 1} of {result.of}")
        if result.damaged:
            raise NotExactError(f"{where} is damaged, so the item needs a single run")
        if result.frames != part.frames:
            raise NotExactError(f"{where} gave {counted(result.frames, 'frame')} of {part.frames}")
        same = ("names", "remark", "blurred", "width", "height")
        if any(getattr(result, name) != getattr(results[0], name) for name in same):
            raise NotExactError(f"{where} has another model, or another frame size, than part 1")
    for before, after in pairwise(results):
        if not before.behind_digest or before.behind_digest != after.first_digest:
            raise NotExactError(
                f"parts {before.number + 1} and {after.number + 1} decoded the first frame of part "
                f"{after.number + 1} differently"
            )


def _open_video(path: Path, info: SourceInfo, config: Config) -> JoinedVideoSink:
    from detector.core.sinks.video.joined import JoinedVideoSink

    output = config.output
    video = JoinedVideoSink(
        path, quality=output.quality, preset=output.preset, crf=output.crf, encoder=output.encoder
    )
    video.open(info)
    return video


def _replay(
    config: Config,
    parts: Sequence[Part],
    results: Sequence[PartResult],
    folders: Sequence[Path],
    info: SourceInfo,
    opened: Sequence[Sink],
    watch: Callable[[], None],
) -> np.ndarray:
    """Write each frame to all sinks except the video's. Return (number, pts) rows, int64 [n, 2]."""
    from detector.core.sinks.video.joined import JoinedVideoSink

    writing = [sink for sink in opened if not isinstance(sink, JoinedVideoSink)]
    size = (results[0].height, results[0].width, 3)
    blank = np.broadcast_to(np.uint8(0), size)  # these sinks read only its size
    frames, stride = array("q"), config.input.stride
    for part, result, folder in zip(parts, results, folders, strict=True):
        where, expected = f"part {part.number + 1} of {part.of}", part.first
        try:
            for number, pts, detections in read_rows(folder / ROWS, result.names):
                if number != expected or (frames and pts <= frames[-1]):
                    raise NotExactError(f"{where} has frame {number} instead of {expected}")
                watch()
                expected += stride
                frames.extend((number, pts))
                frame = Frame(number, pts, float(pts * info.time_base), blank)
                for sink in writing:
                    sink.write(frame, detections)
        except CutOffError as error:
            raise NotExactError(f"the rows of {where} are truncated") from error
        if expected != part.first + part.frames * stride:
            raise NotExactError(f"{where} lacks some of its rows")
    return np.frombuffer(frames, np.int64).reshape(-1, 2)
