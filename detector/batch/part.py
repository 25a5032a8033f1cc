"""Process one part of a long file, in a process that has a model open.

The folder of a part gets rows with the part's detections, and the part's annotated video without
sound. ``part.json`` is written last, and describes these files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from detector.batch.split import Part, chosen_sinks
from detector.core.config.schema import Config
from detector.core.errors.writing import write_whole
from detector.core.session import codec
from detector.core.sinks._partial import output_errors
from detector.core.types import Detections, Frame, size_of

if TYPE_CHECKING:
    from detector.core.run.loading import LoadedModel
    from detector.core.session.outcome import SourceRun
    from detector.core.sources.base import Source
    from detector.core.sources.video._part import PartSource

ROWS, RESULT = "rows.bin", "part.json"
# The head of a row: the frame's number and pts, the number of detections that --max-det removed,
# and the number M of those that remain. Their int64 class ids [M], float32 scores [M] and float32
# boxes [M, 4] follow. All are little-endian.
HEAD = struct.Struct("<qqqq")
BYTES_EACH = 28  # bytes of one detection


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """The facts of a finished part. ``first_digest``: digest of its first picture;
    ``behind_digest``: digest of the next picture after the part. ``bad``, ``corrupt`` and
    ``ended_early``: see ``types.ReadCounts``. ``by_class``: pairs of class id and count."""

    number: int
    of: int
    frames: int
    width: int
    height: int
    first_digest: str
    behind_digest: str
    video: str | None
    names: tuple[str, ...]
    remark: str
    blurred: tuple[int, ...]
    decoder: str
    bad: int
    corrupt: int
    ended_early: bool
    by_class: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]

    @property
    def damaged(self) -> bool:
        return bool(self.bad or self.corrupt or self.ended_early)


def read_result(folder: Path) -> PartResult:
    path = folder / RESULT
    return codec.from_json(codec.read_file(path), PartResult, path)


def detect_part(
    spec: str,
    config: Config,
    loaded: LoadedModel,
    part: Part,
    folder: Path,
    watch: Callable[[int], None] = lambda frames: None,
) -> tuple[PartResult, SourceRun]:
    """Process a part of ``spec``. Create ``folder``, and write to it. ``config``: that of the
    whole file. ``watch`` gets the number of finished frames. Raises DetectVideoError."""
    from detector.core.run.detect import Hooks, run_opened
    from detector.core.run.plan import PlanDraft
    from detector.core.sources.video._part import PartSource

    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).unlink(missing_ok=True)
    plan = PlanDraft.of(_config_of_a_part(config)).complete(loaded)
    # Use the pixel format of a run over the whole file: results from YUV and BGR differ slightly.
    pixels = "bgr" if any(sink.pictures == "bgr" for sink in chosen_sinks(config)) else "yuv420p"
    opened: list[PartSource] = []
    sizes: list[tuple[int, int]] = []

    def open_stretch(spec: str) -> Source:
        source = plan.reading.open(spec, pixels)
        try:
            opened.append(PartSource(source, part.stretch))
        except BaseException:
            source.close()
            raise
        opened[0].info.has_audio = False  # the sound is copied once, when the parts are joined
        return opened[0]

    with RowsFile(folder / ROWS) as rows:

        def take(frame: Frame, detections: Detections) -> None:
            if not sizes:
                sizes.append(size_of(frame.picture))
            rows.add(frame, detections)
            watch(rows.frames)

        run = run_opened(spec, plan, folder, Hooks(source=open_stretch, detected=take))
        if run.error is not None:
            raise run.error
    (source,), ((height, width),) = opened, sizes
    counts = run.counts
    result = PartResult(
        number=part.number,
        of=part.of,
        frames=run.written,
        width=width,
        height=height,
        first_digest=source.first_digest,
        behind_digest=source.behind_digest,
        video=os.path.relpath(run.outputs["video"], folder) if "video" in run.outputs else None,
        names=tuple(loaded.network.names),
        remark=plan.drawing.remark,
        blurred=tuple(sorted(plan.drawing.blurred)),
        decoder=run.decoder,
        bad=counts.bad,
        corrupt=counts.corrupt,
        ended_early=counts.ended_early,
        by_class=tuple(sorted(run.by_class.items())),
        notes=tuple(run.notes),
    )
    write_whole(folder / RESULT, codec.to_json(result).encode(), ours=True)
    return result, run


def _config_of_a_part(config: Config) -> Config:
    """Return the configuration without a range of frames and without outputs that the join adds."""
    return replace(
        config,
        input=replace(config.input, start=None, duration=None, frames=None),
        output=replace(
            config.output,
            save=("video",) if any(sink.name == "video" for sink in chosen_sinks(config)) else (),
            output=None,
            no_video=False,
            save_conf=False,
            only_detections=False,
            lead=None,
        ),
    )


class RowsFile:
    def __init__(self, path: Path) -> None:
        self.frames = 0
        self._path = path
        with output_errors(path):
            self._file = path.open("wb")

    def add(self, frame: Frame, detections: Detections) -> None:
        head = HEAD.pack(frame.index, frame.pts, detections.cut, len(detections))
        with output_errors(self._path):
            self._file.write(
                head
                + detections.class_ids.astype("<i8").tobytes()
                + detections.scores.astype("<f4").tobytes()
                + detections.boxes.astype("<f4").tobytes()
            )
        self.frames += 1

    def __enter__(self) -> RowsFile:
        return self

    def __exit__(self, *_: Any) -> None:
        with output_errors(self._path):
            self._file.close()


class CutOffError(Exception):
    """The rows of a part are truncated."""


class PartRow(NamedTuple):
    number: int
    pts: int
    detections: Detections


def read_rows(path: Path, names: tuple[str, ...]) -> Iterator[PartRow]:
    with path.open("rb") as file:
        while head := file.read(HEAD.size):
            if len(head) < HEAD.size:
                raise CutOffError
            number, pts, cut, count = HEAD.unpack(head)
            data = file.read(count * BYTES_EACH)
            if len(data) < count * BYTES_EACH:
                raise CutOffError
            ids = np.frombuffer(data, "<i8", count).astype(np.int64)
            scores = np.frombuffer(data, "<f4", count, 8 * count).astype(np.float32)
            boxes = np.frombuffer(data, "<f4", 4 * count, 12 * count).astype(np.float32)
            yield PartRow(number, pts, Detections(boxes.reshape(-1, 4), scores, ids, names, cut))
