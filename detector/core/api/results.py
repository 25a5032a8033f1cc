"""What a ``Detector`` finds in one picture: easy to loop over, to filter, to draw, to convert."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from detector.core import types

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from detector.core.types import Image


class Detection(NamedTuple):
    """One object: ``box`` is x1, y1, x2, y2 in pixels of the picture."""

    box: tuple[float, float, float, float]
    score: float
    class_id: int
    name: str


class Detections(types.Detections):
    """The objects of one picture, best score first.

    ``boxes`` xyxy [M, 4] float32, ``scores`` [M] float32, ``class_ids`` [M], ``names``: class id ->
    name, ``track_ids`` [M] or None, ``coasting`` [M] or None: not detected in this frame, but moved
    by its track (``infer_every``). A loop gives ``Detection``; so does ``found[0]``.
    ``found[found.scores > 0.5]`` and ``found.of("person")`` keep some.
    """

    __slots__ = ()

    @classmethod
    def wrap(cls, found: types.Detections) -> Detections:
        """The same arrays, with the methods of this class."""
        return cls(
            *(found.boxes, found.scores, found.class_ids, found.names, found.cut, found.track_ids),
            coasting=found.coasting,
        )

    def __iter__(self) -> Iterator[Detection]:
        return (self._one(i) for i in range(len(self)))

    @overload
    def __getitem__(self, key: int) -> Detection: ...

    @overload
    def __getitem__(self, key: slice | ArrayLike) -> Detections: ...

    def __getitem__(self, key: Any) -> Detection | Detections:
        """One by its number, or those of a slice, of a mask [M] or of a list of numbers."""
        if isinstance(key, int | np.integer):
            if not -len(self) <= key < len(self):
                raise IndexError(f"detection {key} of {len(self)}")
            return self._one(int(key) % len(self))
        rows = key if isinstance(key, slice) else np.asarray(key)
        if not isinstance(rows, slice) and rows.size == 0 and rows.dtype != np.bool_:
            rows = rows.astype(np.int64)
        return Detections.wrap(self.only(rows))

    def _one(self, i: int) -> Detection:
        x1, y1, x2, y2 = self.boxes[i].tolist()
        class_id = int(self.class_ids[i])
        return Detection((x1, y1, x2, y2), float(self.scores[i]), class_id, self.name(i))

    def of(self, *classes: str | int) -> Detections:
        """Those of these classes, given by name or id. Raises KeyError for an unknown name."""
        unknown = [one for one in classes if isinstance(one, str) and one not in self.names]
        if unknown:
            raise KeyError(f"{unknown[0]!r} is no class of {', '.join(self.names)}")
        ids = [self.names.index(one) if isinstance(one, str) else one for one in classes]
        return self[np.isin(self.class_ids, ids)]

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain values for JSON, as in a line of the JSONL output: class, class_id, score, box."""
        from detector.core.sinks.jsonl import rows_of

        return rows_of(self)

    def to_supervision(self) -> Any:
        """The same as ``supervision.Detections``, for its annotators and trackers.

        Raises ImportError where supervision is not installed (``pip install supervision``).
        """
        import supervision

        return supervision.Detections(
            xyxy=self.boxes.reshape(-1, 4).copy(),
            confidence=self.scores.copy(),
            class_id=self.class_ids.astype(int),
            tracker_id=None if self.track_ids is None else self.track_ids.astype(int),
            data={"class_name": np.array([self.name(i) for i in range(len(self))], dtype=str)},
        )

    def draw(
        self,
        image: Image,
        *,
        line_width: int | None = None,
        font_scale: float = 1.0,
        labels: bool = True,
        scores: bool = True,
        font: str | os.PathLike[str] | None = None,
    ) -> Image:
        """A copy of ``image``, u8 BGR [h, w, 3], with boxes and labels as the command draws.

        ``font``: a TTF, OTF or TTC file for the labels. Raises UsageError where it is none.
        """
        from detector.core.run.fonts import open_font
        from detector.core.stages.annotate import Style, annotate

        opened = None if font is None else open_font(os.fspath(font))
        drawn = np.ascontiguousarray(image).copy()
        annotate(drawn, self, Style(line_width, font_scale, labels, scores, font=opened))
        return drawn
