"""Decide what a run draws (boxes, labels, pixelation), in which style, and for which outputs.

``Drawing.of`` reads the options and opens the font, so that errors appear before a model loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.errors.guard import keep
from detector.core.errors.holding import fingerprint
from detector.core.errors.reading import check_regular, read_bytes
from detector.core.errors.text import join_list
from detector.core.run.limits import drawing_threads
from detector.core.run.selection import class_ids

if TYPE_CHECKING:
    from detector.core.models.base import Network
    from detector.core.sinks.base import Sink
    from detector.core.stages.annotate import Style
    from detector.core.stages.font import Font
    from detector.core.types import Detections, Frame

    Annotate = Callable[[Frame, Detections], None]

MEANINGLESS = "random weights: boxes are meaningless"
# The largest fonts are 130 MB: Noto and Source Han, with all languages and weights in one TTC.
FONT_BYTES = 256 << 20
INSTALL = "pip install 'detect-video[font]'"
NAMED = 3  # a note lists this many class names and counts the others


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a run draws. ``blur``: the classes of --blur as given; ``blurred``: their ids;
    ``remark``: a text for every picture. ``with_network`` sets ``blurred`` and ``remark``."""

    line_width: int | None
    font_scale: float
    labels: bool
    scores: bool
    font: Font | None
    blur: tuple[str, ...]
    smooth: bool
    blurred: frozenset[int] = frozenset()
    remark: str = ""

    @classmethod
    def of(cls, config: Config) -> Drawing:
        """Read options. Raises UsageError for an unreadable font, or --trails without --track."""
        given = config.drawing
        if config.value("trails", None) is not None and config.value("track") is None:
            raise UsageError("--trails needs --track")
        return cls(
            line_width=given.line_width,
            font_scale=given.font_scale,
            labels=not given.hide_labels,
            scores=not given.hide_scores,
            font=open_font(given.font),
            blur=tuple(given.blur or ()),
            smooth=config.value("smooth", False),
        )

    def with_network(self, network: Network, selected: tuple[int, ...] | None) -> Drawing:
        """Resolve the classes of --blur. ``selected``: ids of --classes; None: all. Raises
        UsageError if a class would not be pixelated."""
        names = network.names
        blurred = class_ids("--blur", self.blur or None, names) or ()
        if blurred and network.random_seed is not None:
            raise UsageError("--blur: random weights detect nothing, so nothing would be pixelated")
        missing = [names[i] for i in blurred if selected is not None and i not in selected]
        if missing:
            all_names = join_list([*(names[i] for i in selected or ()), *missing])
            raise UsageError(
                f"--blur {join_list(missing)}: not in --classes, so never detected; "
                f"use --classes '{all_names}'"
            )
        remark = MEANINGLESS if network.random_seed is not None else ""
        return replace(self, blurred=frozenset(blurred), remark=remark)

    @property
    def style(self) -> Style:
        from detector.core.stages.annotate import Style

        return Style(
            line_width=self.line_width,
            font_scale=self.font_scale,
            labels=self.labels,
            scores=self.scores,
            blurred=self.blurred,
            remark=self.remark,
            font=self.font,
        )

    def threads(self, sinks: Sequence[Sink], watched: Callable[[], bool] | None = None) -> int:
        """Return how many threads may draw at once; 0 if a viewer or sink needs frames in order."""
        in_order = watched is not None or any(sink.pictures == "plain" for sink in sinks)
        return 0 if in_order else drawing_threads()

    def annotation(
        self, sinks: Sequence[Sink], watched: Callable[[], bool] | None = None, threads: int = 0
    ) -> Annotate | None:
        """Return a function that draws into a frame before it is written; None: nothing is drawn.

        Sinks of plain pictures get the picture after pixelation, before boxes are drawn. If a sink
        needs BGR, boxes are drawn into BGR. YUV planes without boxes are not copied. ``watched`` is
        called before each frame and returns whether there is a viewer. ``threads``: number of
        concurrent callers.
        """
        from detector.core.sinks.base import DRAWN

        drawn = any(sink.pictures in DRAWN for sink in sinks)
        plain_sinks = [sink for sink in sinks if sink.pictures == "plain"]
        if not drawn and not plain_sinks and watched is None:
            return None
        from detector.core.sources._planes import Easel
        from detector.core.stages.annotate import annotate, pixelate
        from detector.core.types import Planes

        style = self.style
        unblurred = replace(style, blurred=frozenset())
        bgr = any(sink.pictures == "bgr" for sink in sinks)
        easel, keeps_planes = Easel(bgr=bgr, threads=threads), not (bgr or style.remark)

        def show_and_draw(frame: Frame, detections: Detections) -> None:
            is_watched = watched is not None and watched()  # ``watched`` expects a call per frame
            is_empty = not len(detections.shown) and detections.scene is None
            if keeps_planes and is_empty and isinstance(frame.picture, Planes):
                return
            if drawn or is_watched or (plain_sinks and style.blurred):
                easel.put(frame)
            elif not plain_sinks:
                return
            pixelate(frame.picture, detections, style.blurred)
            if plain_sinks and len(detections):
                picture = frame.picture  # ``frame.image`` would cache this picture without boxes
                plain = picture.to_bgr() if isinstance(picture, Planes) else picture
                for sink in plain_sinks:
                    sink.see(plain, detections)
            if drawn or is_watched:
                annotate(frame.picture, detections, unblurred)

        return show_and_draw

    def label_notes(
        self, names: Sequence[str], sinks: Sequence[Sink], class_ids: Iterable[int]
    ) -> list[str]:
        """Return notes on class names that labels cannot show, and on a --smooth without effect."""
        from detector.core.sinks.base import DRAWN

        if self.smooth and not any(s.pictures in DRAWN or "style" in s.options for s in sinks):
            return ["--smooth has no effect: no output shows boxes, and rows stay as detected"]
        if not self.labels or not any(sink.pictures in DRAWN for sink in sinks):
            return []
        return note_names(names, class_ids, self.font)


def open_font(path: str | None) -> Font | None:
    """Read the user's font. Raises UsageError if it is unusable, or if Pillow is missing."""
    if path is None:
        return None
    keep("the font", path)
    check_regular(path, "a font file", UsageError)
    return _read_font(path, fingerprint(path))


@lru_cache(maxsize=2)  # `compare` and the Python API open the same font again
def _read_font(path: str, state: tuple[int, ...] | None) -> Font:
    data = read_bytes(path, "a font file", limit=FONT_BYTES, cure="give --font FILE")
    try:
        from detector.core.stages.font import Font
    except ImportError as error:
        raise UsageError(
            f"--font {path}: Pillow, which draws it, cannot be imported ({error}); {INSTALL}"
        ) from error
    try:
        return Font(data)
    # FreeType raises OSError if it rejects a font. Damaged tables cause the other errors.
    except (OSError, ValueError, ArithmeticError, MemoryError) as error:
        raise UsageError(
            f"{path}: not a usable font ({error}); give --font a TTF, OTF or TTC file"
        ) from error


def note_names(names: Sequence[str], class_ids: Iterable[int], font: Font | None) -> list[str]:
    """Return notes on classes that get numbers as labels because their names cannot be drawn."""
    from detector.core.stages.labels import reason_against

    by_reason: dict[str, list[str]] = {}
    for class_id in sorted(class_ids):
        if class_id < len(names) and (reason := reason_against(names[class_id], font)):
            by_reason.setdefault(reason, []).append(f"{names[class_id]} (#{class_id})")
    cures = {
        "letters": f"give --font {'a file' if font is None else 'another file'} with these letters",
        "order": "joined or right-to-left letters need FriBidi: apt install libfribidi0",
    }
    return [
        f"labels show numbers instead of class names that cannot be drawn: {_list_few(affected)}; "
        f"{cures[reason]}"
        for reason, affected in by_reason.items()
    ]


def _list_few(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
