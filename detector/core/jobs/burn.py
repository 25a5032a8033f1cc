"""Draw the boxes of an overlay into its pictures by our own ``annotate``, so that the result does
not depend on a player. Frames without a row are omitted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core import sources
from detector.core.config.schema import Config
from detector.core.errors import OutputError, SourceError, UsageError
from detector.core.errors.guard import keep, refuse_kept
from detector.core.errors.holding import hold
from detector.core.errors.text import counted
from detector.core.errors.writing import is_null_device
from detector.core.run.drawing import open_font
from detector.core.run.outputs import choose_names, mark_settings
from detector.core.run.selection import class_ids
from detector.core.sources._forms import STANDARD_INPUT

if TYPE_CHECKING:
    from detector.core.sinks.overlay.carried import Overlay, OverlayHeader, OverlayRow
    from detector.core.stages.annotate import Style
    from detector.core.types import Frame

ENDING = "-burnt"
TOLERANCE_MS = 1  # between the times of a row and its picture, since both were rounded


@dataclass(frozen=True, slots=True)
class BurnResult:
    """``missing``: rows without a picture. ``damaged``: whether a part of the overlay was lost."""

    path: Path
    frames: int
    missing: int
    damaged: bool
    notes: tuple[str, ...]


def burn(spec: str, config: Config, taken: set[Path]) -> BurnResult:
    """Draw the overlay X.mkv into X-burnt.mp4, or into the file given with -o.

    Of ``config``, only output, drawing and input are used. Drawing options that are not given have
    the run's values. ``taken``: outputs that this command has written. Raises SourceError,
    UsageError and OutputError.
    """
    from detector.core.sinks.overlay.carried import Overlay

    if spec == STANDARD_INPUT:
        sources.refuse_pipe(spec, "burn reads an overlay twice")
    sources.check(spec)
    keep("the overlay", spec)
    with hold(spec), closing(Overlay(spec)) as overlay:
        style = _choose_style(config, overlay.description)
        target = _choose_target(spec, config, taken)
        taken.add(target)
        return _draw_frames(spec, config, overlay, style, target)


def _choose_style(config: Config, header: OverlayHeader) -> Style:
    """Return the run's drawing style, overridden by the options given now."""
    from detector.core.stages.annotate import Style

    drawing, used = config.drawing, header.drawing
    line = drawing.line_width if drawing.line_width is not None else used.get("line_width")
    scale = drawing.font_scale if drawing.font_scale != 1.0 else used.get("font_scale", 1.0)
    blurred = class_ids("--blur", drawing.blur, header.names)
    return Style(
        line_width=line if isinstance(line, int) and 1 <= line <= 256 else None,
        font_scale=float(scale) if isinstance(scale, int | float) and 0.1 <= scale <= 20 else 1.0,
        labels=not drawing.hide_labels and used.get("labels") is not False,
        scores=not drawing.hide_scores and used.get("scores") is not False,
        blurred=frozenset(blurred or ()),
        remark=header.remark,
        font=open_font(drawing.font),
    )


def _choose_target(spec: str, config: Config, taken: set[Path]) -> Path:
    """Return the file of -o, or a name in the folder of -o: free, or used with equal settings."""
    output = config.output.output
    if output is not None and _is_file_name(output):
        refuse_kept(output)
        return Path(output)
    folder = Path() if output is None else Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot create the output folder: {error.strerror}; choose another with -o"
        ) from error
    stem = f"{Path(spec).stem}{ENDING}"
    target = choose_names(
        lambda added: {"video": folder / f"{stem}{added}.mp4"}, taken, _hash_settings(spec, config)
    )["video"]
    refuse_kept(target)
    return target


def _is_file_name(output: str) -> bool:
    return not output.endswith(os.sep) and bool(Path(output).suffix) and not Path(output).is_dir()


def _hash_settings(spec: str, config: Config) -> str:
    status = os.stat(spec)
    document = [
        "burn",
        os.path.realpath(spec),
        status.st_size,
        status.st_mtime_ns,
        asdict(config.drawing),
        _encoding_options(config),
    ]
    return hashlib.sha256(json.dumps(document, default=str).encode()).hexdigest()[:32]


def _encoding_options(config: Config) -> dict[str, Any]:
    return {name: config.value(name) for name in ("quality", "preset", "crf", "encoder")}


def check_output(specs: Sequence[str], config: Config) -> None:
    """Raise UsageError for an -o that can never be written."""
    from detector.core.sinks.video import FORMATS, VideoSink

    output = config.output.output
    options = _encoding_options(config)
    if output == "-" or (output is not None and is_null_device(output)):
        raise UsageError(f"--output {output}: burn only writes a video; name a file")
    if output is None or not _is_file_name(output):
        VideoSink.check_options(".mp4", options)
        return
    if len(specs) > 1:
        folder = f"{Path(output).stem}{os.sep}"
        raise UsageError(f"--output {output}: {len(specs)} overlays need a folder: -o {folder}")
    if Path(output).suffix.lower() not in FORMATS:
        raise UsageError(f"--output {output}: end its name in {', '.join(FORMATS)}")
    VideoSink.check_options(Path(output).suffix, options)


def _draw_frames(
    spec: str, config: Config, overlay: Overlay, style: Style, target: Path
) -> BurnResult:
    from detector.core.sinks.video import VideoSink
    from detector.core.sources._planes import Easel
    from detector.core.stages.annotate import annotate

    header, frames, missing = overlay.description, 0, 0
    source = sources.open(spec, decoder=config.input.decoder, pixels="yuv420p")
    easel = Easel()
    sink = VideoSink(target, **_encoding_options(config))
    with source:
        # Timestamps and frame rate are those of the run's source.
        base = Fraction(*header.time_base)
        info = replace(source.info, time_base=base, fps=Fraction(*header.fps))
        try:
            sink.open(info)
            pairs = _match_rows(iter(source), overlay.rows(), header.shift, base)
            for frame, row in pairs:
                if frame is None:
                    missing += 1
                    continue
                easel.put(frame)
                annotate(frame.picture, row.detections, style)
                frame.index, frame.pts = row.index, row.pts - header.shift
                frame.time_s = float(frame.pts * base)
                sink.write(frame, row.detections)
                frames += 1
            if not frames:
                raise SourceError(
                    f"{spec}: no picture could be read; write it again with --save overlay"
                )
            sink.close()
        except BaseException:
            sink.abort()
            raise
        damaged = bool(missing or overlay.damaged or source.damaged)
        notes = [*source.notes, *sink.notes]
    if missing:
        notes.append(f"{counted(missing, 'picture', 'was')} detected but could not be read")
    if overlay.damaged:
        notes.append(f"{counted(overlay.damaged, 'row')} of the overlay could not be read")
    if target != Path(config.output.output or ""):
        mark_settings(target, _hash_settings(spec, config))
    return BurnResult(target, frames, missing, damaged, tuple(notes))


def _match_rows(
    frames: Iterator[Frame], rows: Iterator[OverlayRow], shift: int, base: Fraction
) -> Iterator[tuple[Frame | None, OverlayRow]]:
    """Yield each row with the picture of its time, or None. Pictures without a row are skipped."""
    from detector.core.sinks.overlay.packets import to_ms

    frame, ms = _read_next(frames)
    for row in rows:
        row_ms = to_ms(max(0, row.pts - shift), base)
        while frame is not None and ms < row_ms - TOLERANCE_MS:
            frame, ms = _read_next(frames)
        if frame is None or ms > row_ms + TOLERANCE_MS:
            yield None, row
            continue
        yield frame, row
        frame, ms = _read_next(frames)


def _read_next(frames: Iterator[Frame]) -> tuple[Any, int]:
    frame = next(frames, None)
    return frame, 0 if frame is None else round(frame.time_s * 1000)
