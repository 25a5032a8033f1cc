"""Store the exact detections in an overlay, for programs that read its subtitles.

The first subtitle line of a picture begins with a comment, which players ignore:

    {detect-video 1 FRAME PTS CUT BASE64}

FRAME and PTS are the source's. CUT is the number of detections that ``--max-det`` discarded. BASE64
encodes little-endian int32 class ids [M], float32 scores [M] and float32 boxes [M, 4]. They are not
in an attachment, because Matroska stores those at the beginning, before anything is detected. Facts
about the whole file are in an attachment, the JSON document ``NAME``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from detector.core.errors import SourceError
from detector.core.errors.holding import bad_tags, name_to_open
from detector.core.sinks._about import is_overlay_track
from detector.core.types import Detections

NAME = "detect-video.json"
SCHEMA = 1
LARGEST_HEADER = 1 << 24  # bytes of the document
LONGEST_ROW = 1 << 24  # characters; --max-det allows 100,000 boxes of 32 characters
LARGEST_SIDE = 1 << 16  # pixels
LARGEST_TICKS = 1 << 62
BYTES_EACH = 24  # per detection
ROW = re.compile(rb"\{detect-video 1 (\d{1,18}) (-?\d{1,18}) (\d{1,9}) ([A-Za-z0-9+/=]*)\}")
FIELDS_BEFORE = 8  # before a line's text: ReadOrder, Layer, Style, Name, three margins, Effect


@dataclass(frozen=True, slots=True)
class OverlayHeader:
    """Facts about the whole file. ``shift``: ticks subtracted from the source's times. ``drawing``:
    fields of the run's ``Style``."""

    source: str
    time_base: tuple[int, int]
    fps: tuple[int, int]
    shift: int
    width: int
    height: int
    names: tuple[str, ...]
    remark: str
    drawing: dict[str, Any]

    def encode(self, program: str) -> bytes:
        document = {"schema": SCHEMA, "program": program, **asdict(self)}
        return json.dumps(document, ensure_ascii=False, indent=1).encode(errors="replace")


@dataclass(frozen=True, slots=True)
class OverlayRow:
    """The detections of one picture. ``ms``: its time in the overlay."""

    ms: int
    index: int
    pts: int
    detections: Detections


def encode_row(index: int, pts: int, detections: Detections) -> str:
    arrays = (
        detections.class_ids.astype("<i4"),
        detections.scores.astype("<f4"),
        detections.boxes.astype("<f4"),
    )
    packed = base64.b64encode(b"".join(array.tobytes() for array in arrays)).decode()
    return f"{{detect-video 1 {index} {pts} {detections.cut} {packed}}}"


def decode_row(line: bytes, ms: int, names: tuple[str, ...]) -> OverlayRow | None:
    """Return the row in a Matroska subtitle line, or None. Raises ValueError if it is damaged."""
    text = line.split(b",", FIELDS_BEFORE)[-1]
    if not text.startswith(b"{detect-video ") or len(text) > LONGEST_ROW:
        return None
    if (match := ROW.match(text)) is None:
        raise ValueError("the row is cut off, or of a later version")
    index, pts, cut = (int(number) for number in match.group(1, 2, 3))
    try:
        packed = base64.b64decode(match[4], validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    count, rest = divmod(len(packed), BYTES_EACH)
    if rest:
        raise ValueError("an incomplete detection")
    ids = np.frombuffer(packed, "<i4", count).astype(np.int64)
    scores = np.frombuffer(packed, "<f4", count, 4 * count).astype(np.float32)
    boxes = np.frombuffer(packed, "<f4", 4 * count, 8 * count).astype(np.float32).reshape(-1, 4)
    if not (np.isfinite(boxes).all() and np.isfinite(scores).all() and (ids >= 0).all()):
        raise ValueError("invalid numbers")
    if count and not 0 <= boxes.min() <= boxes.max() <= LARGEST_SIDE:
        raise ValueError("a box outside the picture")
    return OverlayRow(ms, index, pts, Detections(boxes, scores, ids, names, cut))


class Overlay:
    """An open overlay. ``damaged`` counts unreadable rows. Raises SourceError for other files."""

    def __init__(self, path: str | Path) -> None:
        import av

        self.path = str(path)
        self.damaged = 0
        try:
            self._container = av.open(name_to_open(self.path), **bad_tags())
        except (av.FFmpegError, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SourceError(f"{path}: cannot be read as a video ({reason})") from error
        try:
            self.description = self._read_description()
            self._stream = self._find_track()
        except BaseException:
            self.close()
            raise

    def _explain_refusal(self, why: str) -> SourceError:
        return SourceError(f"{self.path}: {why}; make one with: detect-video in.mp4 --save overlay")

    def _read_description(self) -> OverlayHeader:
        attachments = [
            stream
            for stream in self._container.streams
            if stream.type == "attachment" and stream.metadata.get("filename") == NAME
        ]
        if not attachments:
            raise self._explain_refusal("is not an overlay of detect-video: it has no detections")
        try:
            data = bytes(attachments[0].data or b"")
            if len(data) > LARGEST_HEADER:
                raise ValueError("it is too long")
            return _parse_header(json.loads(data))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._explain_refusal(f"its {NAME} is damaged ({error})") from error

    def _find_track(self) -> Any:
        for stream in self._container.streams.subtitles:
            if is_overlay_track(stream):
                return stream
        raise self._explain_refusal("its track of detections is missing")

    def rows(self) -> Iterator[OverlayRow]:
        """Yield all readable rows in order of time."""
        import av

        names, base = self.description.names, Fraction(self._stream.time_base)
        try:
            for packet in self._container.demux(self._stream):
                if not packet.size or packet.pts is None:
                    continue
                try:
                    row = decode_row(bytes(packet), round(packet.pts * base * 1000), names)
                except ValueError:
                    self.damaged += 1
                    continue
                if row is not None:
                    yield row
        except av.FFmpegError:
            self.damaged += 1

    def close(self) -> None:
        self._container.close()


def _parse_header(document: Any) -> OverlayHeader:
    """Parse the document. Raises ValueError, TypeError or KeyError if it is invalid."""
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']}, but this version reads {SCHEMA}")
    names, drawing = document["names"], document["drawing"]
    if not all(isinstance(name, str) for name in names) or not isinstance(drawing, dict):
        raise ValueError("the names or the drawing have a wrong type")
    size, shift = (int(document["width"]), int(document["height"])), int(document["shift"])
    if not 0 < min(size) <= max(size) <= LARGEST_SIDE or abs(shift) > LARGEST_TICKS:
        raise ValueError("its size or its times are invalid")
    return OverlayHeader(
        source=str(document["source"]),
        time_base=_parse_ratio(document["time_base"]),
        fps=_parse_ratio(document["fps"]),
        shift=shift,
        width=size[0],
        height=size[1],
        names=tuple(names),
        remark=str(document["remark"]),
        drawing=drawing,
    )


def _parse_ratio(pair: Any) -> tuple[int, int]:
    numerator, denominator = (int(number) for number in pair)
    if not 0 < min(numerator, denominator) <= max(numerator, denominator) < 1 << 31:
        raise ValueError(f"{numerator}/{denominator} is not a frame rate")
    return numerator, denominator
