"""The objects that a ``Detector`` finds in one picture: filter, draw or convert them."""

from __future__ import annotations

import importlib
import os
import weakref
from html import escape
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from detector.core import types
from detector.core.config.elsewhere import OF_STREAMS, AnswersAttributes
from detector.core.errors import DetectVideoError, UsageError

if TYPE_CHECKING:
    import pandas

    from detector.core.api.pictures import Picture
    from detector.core.types import Frame, Image

WIDEST = 1280  # pixels; a notebook stores every picture that it shows


class Detection(AnswersAttributes, types.Detection):
    """One object of a picture. Iterating over ``Detections`` yields ``Detection`` objects.

    ``box``: x1, y1, x2, y2 in pixels of the picture. ``score``: 0 to 1.

        >>> Detection((10.0, 20.0, 50.0, 90.0), 0.9, 0, "person").name
        'person'
    """

    __slots__ = ()


class Boxes(AnswersAttributes, np.ndarray[Any, np.dtype[np.float32]]):
    """Boxes as a plain array, xyxy [M, 4]."""


class Detections(AnswersAttributes, types.Detections):
    """The objects of one picture, best score first.

    ``boxes``: xyxy [M, 4] float32 in pixels of the picture; ``scores``: [M] float32; ``class_ids``:
    [M]; ``names``: class id -> name. ``track_ids``: [M]; None without ``track``. ``coasting``: [M],
    which boxes were not detected but moved by their tracks (``infer_every``); None if all were
    detected. ``scene``: this frame's events at lines and in zones; None without ``zones``.
    ``found[0]`` is a ``Detection``; ``found[mask]`` and ``of`` are subsets; ``==`` compares values.

        >>> boxes, scores = np.float32([[10, 20, 50, 90], [60, 20, 80, 90]]), np.float32([0.9, 0.6])
        >>> found = Detections(boxes, scores, np.array([0, 1]), ("person", "vehicle"))
        >>> found[found.scores > 0.5].of("vehicle").boxes.tolist()
        [[60.0, 20.0, 80.0, 90.0]]

    ``plot``, ``save`` and notebooks draw on the picture. ``Detections`` do not keep it alive: the
    caller must still hold it, or its file must exist.
    """

    __slots__ = ("_picture",)

    @classmethod
    def wrap(cls, found: types.Detections, picture: Picture | None = None) -> Detections:
        """Return an instance with the same arrays. ``picture``: the picture of these objects."""
        wrapped = cls(
            *(found.boxes.view(Boxes), found.scores, found.class_ids),
            *(found.names, found.cut, found.track_ids),
            coasting=found.coasting,
            scene=found.scene,
        )
        if isinstance(picture, (str, os.PathLike)):
            wrapped._picture = os.fspath(picture)
        elif picture is not None:
            wrapped._picture = weakref.ref(picture)
        return wrapped

    def __post_init__(self) -> None:
        super().__post_init__()
        self._picture: str | weakref.ref[Any] | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        """Return the values to pickle. A picture in memory is dropped, a file's path is kept."""
        path = self._picture if isinstance(self._picture, str) else None
        return (*(getattr(self, name) for name in self.__dataclass_fields__), path)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip((*self.__dataclass_fields__, "_picture"), state, strict=True):
            setattr(self, name, value)

    def only(self, rows: Any) -> Self:
        subset = super().only(rows)
        subset._picture = self._picture
        return subset

    def _one(self, i: int) -> Detection:
        return Detection(*super()._one(i))

    def to_dict(self) -> list[dict[str, Any]]:
        """Return plain values for JSON, as in the JSONL output: class, class_id, score, box."""
        from detector.core.sinks.jsonl import rows_of

        return rows_of(self)

    def to_df(self) -> pandas.DataFrame:
        """Return a table with the columns class, class_id, score, x1, y1, x2, y2. If objects are
        tracked, it also has track (<NA> without one). Raises ImportError without pandas."""
        pandas = _import("pandas", "to_df()")
        from detector.core.sinks._rows import plain_values
        from detector.core.sinks.csv import COLUMNS

        table = pandas.DataFrame(
            [(name, id, score, *box) for name, id, score, box in plain_values(self)],
            columns=COLUMNS[COLUMNS.index("class") :],
        )
        # An empty table needs these types for pandas.concat.
        numbers = dict.fromkeys(table.columns[2:], "float64")
        table = table.astype({"class": str, "class_id": "int64", **numbers})
        if self.track_ids is not None:
            table["track"] = pandas.array(self.track_list(), dtype="Int64")
        return table

    def to_supervision(self) -> Any:
        """Convert to ``supervision.Detections``, for its annotators and trackers. Raises
        ImportError without supervision (``pip install supervision``)."""
        supervision = _import("supervision", "to_supervision()")
        return supervision.Detections(
            xyxy=self.boxes.reshape(-1, 4).copy(),
            confidence=self.scores.copy(),
            class_id=self.class_ids.astype(int),
            tracker_id=None if self.track_ids is None else self.track_ids.astype(int),
            data={"class_name": np.array([self.name(i) for i in range(len(self))], dtype=str)},
        )

    def draw(
        self,
        image: Image | None = None,
        *,
        line_width: int | None = None,
        font_scale: float = 1.0,
        labels: bool = True,
        scores: bool = True,
        font: str | os.PathLike[str] | None = None,
    ) -> Image:
        """Return a copy of ``image``, u8 BGR [h, w, 3], with boxes and labels as in the command.

        ``image``: the default is the picture in which the objects were found. ``font``: a TTF, OTF
        or TTC file for the labels. Raises UsageError for any other file, or if the picture is gone.
        """
        from detector.core.run.drawing import open_font
        from detector.core.stages.annotate import Style, annotate

        opened = None if font is None else open_font(os.fspath(font))
        if image is None and (image := self._find_picture()) is None:
            raise UsageError("these Detections no longer have their picture; use found.plot(image)")
        drawn = np.ascontiguousarray(image).copy()
        annotate(drawn, self, Style(line_width, font_scale, labels, scores, font=opened))
        return drawn

    plot = draw  # ultralytics' name

    def save(self, path: str | os.PathLike[str], image: Image | None = None) -> None:
        """Write the picture that ``draw`` returns, in the format of ``path``'s suffix.

        A failure leaves no partial file. Raises OutputError, and the errors of ``draw``.
        """
        from pathlib import Path

        from detector.core.errors.writing import write_whole
        from detector.core.sinks.pictures import ENCODED, encode

        target = Path(path)
        if target.suffix.lower() not in ENCODED:
            raise UsageError(f"{path}: unknown suffix of a picture; known: {', '.join(ENCODED)}")
        _, content = encode(self.draw(image), target.suffix)
        write_whole(target, content, "choose another path")

    def _find_picture(self) -> Image | None:
        """Return the picture, u8 BGR, or None if it was released. A file is read again."""
        from detector.core.api.pictures import as_image

        known = self._picture
        picture = known() if isinstance(known, weakref.ref) else known
        return None if picture is None else as_image(picture)

    def _repr_png_(self) -> bytes | None:
        """Return a PNG with boxes, at most WIDEST pixels wide; None if the picture is gone."""
        import cv2

        from detector.core.sinks.pictures import encode

        try:
            picture = self._find_picture()
        except DetectVideoError:  # the file is gone or has changed
            return None
        if picture is None:
            return None
        drawn = self.draw(picture)
        if (share := WIDEST / drawn.shape[1]) < 1:
            drawn = cv2.resize(drawn, None, fx=share, fy=share, interpolation=cv2.INTER_AREA)
        return encode(drawn, ".png")[1]

    def _repr_html_(self) -> str | None:
        """Return a table if the picture is gone. Otherwise return None: notebooks show the PNG."""
        from detector.core.sinks._rows import plain_values

        if self._repr_png_() is not None:
            return None
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{score}</td><td>{box}</td></tr>"
            for name, _, score, box in plain_values(self)
        )
        return f"<table><tr><th>class</th><th>score</th><th>box</th></tr>{rows}</table>"


class Pair(AnswersAttributes, tuple["Frame", Detections]):
    """What a stream yields: a frame and its detections."""

    __slots__ = ()
    answers = OF_STREAMS


def _import(library: str, what: str) -> Any:
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        text = f"{what} needs {library}: pip install {library}"
        raise ModuleNotFoundError(text, name=library) from None
