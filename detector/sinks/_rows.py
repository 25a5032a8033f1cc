"""What the sinks of rows share: whole blocks of lines straight to the file, nothing kept in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from detector.sinks.base import Partial, Sink, output_errors
from detector.types import Detections, Frame, SourceInfo


class RowsSink(Sink):
    """A text file to which each frame adds its whole lines in one system call.

    So a killed process leaves whole lines: nothing waits in a buffer of ours. (The kernel may cut a single write of
    many pages when a kill hits just then; such a line lacks its newline.) The call costs 3 us for a line of 930
    bytes with ten objects, making the line 44 us.
    """

    header: str = ""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._partial: Partial | None = None
        self._whole_bytes = 0  # up to the end of the last whole line

    def open(self, info: SourceInfo) -> None:
        self._info = info
        self._partial = Partial(self.path, info.path)
        with output_errors(self.path):
            os.ftruncate(self._partial.fd, 0)
        self._append(self.header)

    def rows(self, frame: Frame, detections: Detections) -> str:
        """The whole lines of one frame, each with its line end; "" for none."""
        raise NotImplementedError

    def write(self, frame: Frame, detections: Detections) -> None:
        self._append(self.rows(frame, detections))

    def _append(self, lines: str) -> None:
        assert self._partial is not None, "write before open"
        # A file name of undecodable bytes holds lone surrogates, which UTF-8 has not: \udc80 is what JSON writes.
        data = lines.encode("utf-8", "backslashreplace")
        wanted = self._whole_bytes + len(data)
        with output_errors(self.path):
            while data:  # a full disk takes a part first, and refuses the rest
                data = data[os.write(self._partial.fd, data) :]
        self._whole_bytes = wanted

    def close(self) -> Path:
        if self._partial is not None:
            self._partial.commit()
            self._partial = None
        return self.path

    def abort(self) -> Path | None:
        partial, self._partial = self._partial, None
        if partial is None:
            return None
        if self._whole_bytes <= len(self.header):
            partial.discard()
            return None
        try:
            os.ftruncate(partial.fd, self._whole_bytes)
        except OSError:
            partial.discard()
            return None
        partial.release()
        return partial.path


def plain(detections: Detections) -> Iterator[tuple[str, int, float, list[float]]]:
    """Class name, class id, score, [x1, y1, x2, y2] of each, rounded, as plain Python values.

    float32 becomes a Python float before it is rounded: 0.91, not 0.9100000262.
    """
    boxes, scores, ids = detections.boxes.tolist(), detections.scores.tolist(), detections.class_ids.tolist()
    for i, box in enumerate(boxes):
        rounded = [round(value, 2) + 0.0 for value in box]  # + 0.0: no -0.0
        yield detections.name(i), ids[i], round(scores[i], 4), rounded
