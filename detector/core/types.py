"""The data types that all packages share.

A source is described by ``SourceInfo`` and yields ``Frame`` objects, whose picture is BGR or YUV
4:2:0 ``Planes``. A ``Letterbox`` maps between frame and network input. A head returns
``Candidates``, which NMS reduces to ``Detections``. A ``LabelledPicture`` holds the ground truth
that detections are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Image = NDArray[np.uint8]  # [h, w, 3] BGR; [B, H, W, 3] RGB in a request's slot
BACK_S = 1  # if pts fall by more, the clock was set back; if by less, frames are reordered
LONGEST_GAP_S = 10.0  # default for the longest pause between two frames


@dataclass(slots=True)
class Arrival:
    """When a camera's picture arrived, and when it passed each step of the loop. ``*_ns`` are
    values of time.perf_counter_ns; 0 means not reached yet."""

    camera: str
    epoch: int  # number of the connection, from 1
    arrived_ns: int  # when its first packet was received, as far as FFmpeg reports that
    utc_s: float  # Unix time at ``arrived_ns``
    decoded_ns: int = 0
    captured_s: float | None = None  # Unix time by the camera's own clock, if it sends one
    taken_ns: int = 0  # when the loop took it
    began_ns: int = 0  # when its inference began
    inferred_ns: int = 0  # when its inference ended
    result_ns: int = 0  # when its detections were known


class Colours(NamedTuple):
    """How to interpret the numbers of a YUV picture, in the codes of ITU-T H.273; 2 is unspecified.
    ``luma``: the weights of red and blue in the brightness, as defined by ``matrix``."""

    matrix: int
    primaries: int
    transfer: int
    full_range: bool  # 0 to 255; otherwise black is 16, white 235
    luma: tuple[float, float]


@dataclass(slots=True, eq=False)
class Planes:
    """A picture in YUV 4:2:0 with 8 bits: a Y value per pixel, a U and a V value per 2x2 pixels.
    Height and width are even. Rows may be padded in memory; the pixels of a row are contiguous."""

    y: NDArray[np.uint8]  # [h, w]
    u: NDArray[np.uint8]  # [h / 2, w / 2]
    v: NDArray[np.uint8]  # [h / 2, w / 2]
    colours: Colours
    convert: Callable[[Planes], Image] = field(repr=False)
    # The PyAV frame that owns this memory; None if numpy does. If we allocated the frame, ``y`` is
    # writeable, and an encoder may read from the frame and set its ``pts``.
    picture: Any = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        return self.y.nbytes + self.u.nbytes + self.v.nbytes

    def to_bgr(self) -> Image:
        """Convert to a new picture, u8 BGR [h, w, 3], as if the source had decoded to BGR."""
        return self.convert(self)

    def copy(self) -> Planes:
        return Planes(self.y.copy(), self.u.copy(), self.v.copy(), self.colours, self.convert)


Picture = Image | Planes


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """A picture decoded at a fraction of its size, because no output needs more. Boxes are in
    pixels of the whole picture. ``pixels``: u8 BGR, each from ``factor`` x ``factor`` pixels (fewer
    at the right and bottom edges). ``width`` and ``height``: of the whole picture."""

    pixels: Image
    factor: int
    width: int
    height: int


AnyPicture = Picture | Reduced


@dataclass(slots=True)
class FrameTimes:
    """How long each stage took for one frame, if requested (--save-times, -v).

    ``ms``: finished stage -> milliseconds. Frames of a batch are inferred together, so 1/``batch``
    of the inference's time is counted for each. ``input``: height and width of the network's input.
    """

    input: tuple[int, int]
    batch: int = 1
    ms: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Frame:
    """One decoded picture.

    ``index``: its number in the source, from 0 (``--stride`` leaves gaps); for a camera,
    its number among received pictures. ``pts``: in ticks of the source's time base, as stored (it
    need not start at 0); ``time_s`` = pts * time_base. Both omit jumps of the container's clock.
    ``behind``: how many ticks ``pts`` is behind that clock. ``rewinds``: how often that clock was
    set back. ``path``: the picture's file if the source is a folder or glob, else None. ``name``:
    what outputs call the picture: its file name, with folders in front if that is not unique.
    ``picture``: BGR, or planes of YUV if the source was opened for them. ``image`` is always BGR:
    the first access converts the planes, and later changes of them do not show. ``source``: set by
    ``Detector.stream``. ``arrival``: for cameras only. ``reused``: nothing moved (--skip-still), so
    the frame has the detections of the last inferred one. ``coasting``: its boxes come from tracks
    (--infer-every). ``cut``: whether a scene begins with this frame; None if not checked.
    ``reduced``: the picture, if the source was opened to decode a fraction of its pixels.

        >>> frame = Frame(index=0, pts=0, time_s=0.0, picture=np.zeros((720, 1280, 3), np.uint8))
        >>> frame.size, frame.inferred
        ((720, 1280), True)
    """

    index: int
    pts: int
    time_s: float
    picture: Picture  # after rotation; u8 BGR [h, w, 3], or planes
    path: str | None = None
    source: SourceInfo | None = None
    name: str | None = None  # "a.jpg", "left/a.jpg"; None for frames of a video
    arrival: Arrival | None = None
    reused: bool = False
    times: FrameTimes | None = None
    coasting: bool = False
    cut: bool | None = None
    taken: str | None = None  # EXIF time of a photo, ISO 8601
    behind: int = 0
    rewinds: int = 0
    reduced: Reduced | None = None
    _made: tuple[Planes, Image] | None = field(default=None, init=False, repr=False)

    @property
    def image(self) -> Image:
        """The picture as u8 BGR [h, w, 3], after rotation."""
        if not isinstance(self.picture, Planes):
            return self.picture
        if self._made is None or self._made[0] is not self.picture:
            self._made = self.picture, self.picture.to_bgr()
        return self._made[1]

    @image.setter
    def image(self, image: Image) -> None:
        self.picture = image

    @property
    def inferred(self) -> bool:
        """Whether the network runs on this frame."""
        return not (self.reused or self.coasting)

    @property
    def decoded(self) -> AnyPicture:
        """The picture to preprocess."""
        return self.reduced or self.picture

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels of the whole picture, without converting it."""
        return size_of(self.decoded)

    @property
    def buffer(self) -> Image | None:
        """The array that the source may reuse for another frame; None for planes, which belong to
        the decoder, and for picture files, whose sizes differ."""
        return None if isinstance(self.picture, Planes) or self.path else self.picture


def size_of(picture: AnyPicture) -> tuple[int, int]:
    """Return height and width in pixels of the whole picture."""
    if isinstance(picture, Reduced):
        return picture.height, picture.width
    pixels = picture.y if isinstance(picture, Planes) else picture
    return pixels.shape[0], pixels.shape[1]


class PipedTrack(Protocol):
    """A sound, subtitle or data track. The source can be read only once, so the track's packets
    arrive while frames are read."""

    stream: Any  # the PyAV stream in the source's container
    ended: bool  # all packets have arrived; ``take`` returns the rest
    requested: bool  # set it to True before the first frame is read, to get the packets

    def take(self) -> Any:
        """Return the next PyAV packet; None if none has arrived yet, or at the end."""


@dataclass(slots=True)
class SourceInfo:
    """What is known about a source before its first frame. Counts and durations are hints, because
    containers may state wrong values."""

    path: str
    kind: str  # "video" | "pictures" | "live"
    width: int  # displayed pixels, after rotation; of the first picture for kind "pictures"
    height: int
    fps: Fraction  # nominal frame rate, 1/s
    time_base: Fraction  # seconds per tick of pts
    start_pts: int = 0
    frames_declared: int | None = None
    duration_s: float | None = None
    has_computed_pts: bool = False  # computed from the frame rate: a raw stream has no pts
    rotation: int = 0  # degrees, as the container states it; already applied to the frames
    mirrored: bool = False  # stored mirrored (before rotation); already undone in the frames
    codec: str = ""
    sample_aspect_ratio: Fraction = Fraction(1)  # of the picture as displayed
    stream: int | None = None  # index of its video stream among all streams of the container
    has_audio: bool = False
    has_subtitles: bool = False
    has_data: bool = False  # the container has data tracks, such as measurements
    tags: dict[str, str] = field(default_factory=dict)  # the container's tags: title, location...
    # longest pause between two frames; a longer one counts as damage
    longest_gap_s: float = LONGEST_GAP_S
    # Sound, subtitle and data tracks, if the file cannot be opened a second time to read them.
    tracks: tuple[PipedTrack, ...] = field(default=(), compare=False, repr=False)


@dataclass(slots=True)
class ReadCounts:
    """What was lost while a source was read, and what was omitted on purpose."""

    bad: int = 0  # packets or files that should have yielded a picture but did not
    corrupt: int = 0  # frames that were decoded, but damaged
    skipped: int = 0  # frames dropped by --stride
    ended_early: bool = False  # the file is truncated, or its container is damaged

    @property
    def damaged(self) -> bool:
        """Whether a part of the source was lost. The run then exits with EXIT_DAMAGED (7)."""
        return self.ended_early or self.bad > 0 or self.corrupt > 0


class Background(str):
    """A note for the user about how a run was set up. The brief summary omits it; -v shows it."""

    __slots__ = ()


# How a picture is fitted into a network's input (stages/preprocess.py).
GEOMETRIES = ("centre", "top-left", "top-left-truncate", "stretch")


@dataclass(frozen=True, slots=True)
class Letterbox:
    """The picture's position in the network's input: per axis, network = source * scale + pad."""

    scale_x: float
    scale_y: float
    pad_x: float
    pad_y: float
    width: int  # pixels of the source picture
    height: int

    def to_source(self, detections: Detections) -> Detections:
        """Map boxes from network pixels to source pixels and clip them. Returns ``detections``
        itself if it is empty."""
        if not len(detections):
            return detections
        pad = np.array([self.pad_x, self.pad_y] * 2, np.float32)
        scale = np.array([self.scale_x, self.scale_y] * 2, np.float32)
        boxes = (detections.boxes - pad) / scale
        np.clip(boxes, 0, np.array([self.width, self.height] * 2, np.float32), out=boxes)
        return replace(detections, boxes=boxes)


class Fit(Protocol):
    """The mapping from inputs to a frame: a ``Letterbox``, or a ``stages.tiles.TiledFit``."""

    def to_source(self, detections: Any, /) -> Detections:
        """Map the result of ``Parts.nms`` to the frame."""


class Candidates(NamedTuple):
    """What a head passes to NMS: every box above the confidence threshold, in network pixels."""

    boxes: NDArray[np.float32]  # xyxy [M, 4]
    scores: NDArray[np.float32]  # [M], objectness x class score if the head has both
    class_ids: NDArray[np.int64]  # [M]


class Outline(NamedTuple):
    """Lines and a text that a stage wants drawn."""

    strokes: tuple[NDArray[np.float32], ...]  # points [n, 2], pixels
    text: str
    x: float  # position of the text
    y: float


class Detection(NamedTuple):
    """One object: ``box`` is x1, y1, x2, y2 in pixels of the picture; ``score`` is from 0 to 1.

    >>> Detection((10.0, 20.0, 50.0, 90.0), 0.9, 0, "person").name
    'person'
    """

    box: tuple[float, float, float, float]
    score: float
    class_id: int
    name: str


@dataclass(slots=True, eq=False)
class Detections:
    """The objects of one frame, best score first. An item (``found[0]``) is a ``Detection``;
    ``found[found.scores > 0.5]`` and ``found.of("person")`` return subsets.

    ``boxes`` are x1, y1, x2, y2 in pixels of the displayed source frame, clipped to it; the origin
    is the outer corner of the first pixel. ``names`` maps a class id to its name. ``cut``: number
    of objects that ``--max-det`` dropped. ``track_ids``: ids of their tracks (--track), from 1; -1
    for an object without a track yet; None without --track. ``trails``: recent centres of each
    object, oldest first (--trails). ``scene``: what a stage adds to the frame (--zones):
    ``outlines`` to draw, ``events``, and data for the sinks of its wing. ``coasting``: which boxes
    were not detected in this frame but predicted by their tracks; None if all were detected.
    ``drawn``: smoothed boxes, which pictures show instead of ``boxes`` (--smooth).
    """

    boxes: NDArray[np.float32]  # xyxy [M, 4]
    scores: NDArray[np.float32]  # [M]
    class_ids: NDArray[np.int64]  # [M]
    names: tuple[str, ...] = field(default=(), repr=False)
    cut: int = 0
    track_ids: NDArray[np.int64] | None = None  # [M]
    trails: tuple[NDArray[np.float32], ...] = field(default=(), repr=False)  # M times [n, 2]
    scene: Any = field(default=None, repr=False)
    coasting: NDArray[np.bool_] | None = field(default=None, repr=False)  # [M]
    drawn: Detections | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        n = len(self.scores)
        if self.boxes.shape != (n, 4) or self.class_ids.shape != (n,):
            raise ValueError(
                f"boxes must be [M, 4], scores [M], class_ids [M]; got {self.boxes.shape}, "
                f"{self.scores.shape}, {self.class_ids.shape}"
            )
        if self.track_ids is not None and self.track_ids.shape != (n,):
            raise ValueError(f"track_ids must be [M]; got {self.track_ids.shape} for M={n}")
        if self.coasting is not None and self.coasting.shape != (n,):
            raise ValueError(f"coasting must be [M]; got {self.coasting.shape} for M={n}")

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[Detection]:
        return (self._one(i) for i in range(len(self)))

    @overload
    def __getitem__(self, key: int) -> Detection: ...

    @overload
    def __getitem__(self, key: slice | ArrayLike) -> Self: ...

    def __getitem__(self, key: Any) -> Detection | Self:
        """Return one detection for an index; a subset for a slice, mask [M] or indexes."""
        if isinstance(key, int | np.integer):
            if not -len(self) <= key < len(self):
                raise IndexError(f"no detection {key}; there are {len(self)}")
            return self._one(int(key) % len(self))
        rows = key if isinstance(key, slice) else np.asarray(key)
        if not isinstance(rows, slice) and rows.size == 0 and rows.dtype != np.bool_:
            rows = rows.astype(np.int64)
        return self.only(rows)

    def _one(self, i: int) -> Detection:
        x1, y1, x2, y2 = self.boxes[i].tolist()
        class_id = int(self.class_ids[i])
        return Detection((x1, y1, x2, y2), float(self.scores[i]), class_id, self.name(i))

    def of(self, *classes: str | int) -> Self:
        """Return the objects of these classes (names or ids). Raises KeyError for unknown names."""
        unknown = [name for name in classes if isinstance(name, str) and name not in self.names]
        if unknown:
            raise KeyError(f"unknown class {unknown[0]!r}; known: {', '.join(self.names)}")
        ids = [self.names.index(each) if isinstance(each, str) else each for each in classes]
        return self[np.isin(self.class_ids, ids)]

    @property
    def events(self) -> tuple[Any, ...]:
        """What happened at lines and in zones in this frame (--zones)."""
        return () if self.scene is None else self.scene.events

    def __eq__(self, other: object) -> bool:
        """Return whether all values are equal. Two engines rarely agree to the last bit."""
        if not isinstance(other, Detections):
            return NotImplemented
        mine, theirs = (
            (one.boxes, one.scores, one.class_ids, one.track_ids, *one.trails)
            for one in (self, other)
        )
        return (
            (self.names, self.cut, len(mine)) == (other.names, other.cut, len(theirs))
            and (self.track_ids is None) is (other.track_ids is None)
            and all(np.array_equal(*pair) for pair in zip(mine, theirs, strict=True))  # type: ignore[arg-type]
        )

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def empty(names: tuple[str, ...] = ()) -> Detections:
        return Detections(
            np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), names
        )

    def only(self, rows: Any) -> Self:
        """Return a subset with all attributes: ``rows`` is a mask, indexes or a slice."""
        ids = None if self.track_ids is None else self.track_ids[rows]
        indexes = np.arange(len(self))[rows].tolist() if self.trails else []
        return replace(
            self,
            boxes=self.boxes[rows],
            scores=self.scores[rows],
            class_ids=self.class_ids[rows],
            track_ids=ids,
            trails=tuple(self.trails[i] for i in indexes),
            coasting=None if self.coasting is None else self.coasting[rows],
        )

    def inside(self, height: int, width: int) -> Detections:
        """Return the boxes clipped to a picture of this size, without those outside it."""
        boxes = self.boxes.clip(0, np.array([width, height] * 2, np.float32))
        visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        return replace(self, boxes=boxes).only(visible)

    @property
    def shown(self) -> Detections:
        """The boxes that pictures show."""
        return self if self.drawn is None else self.drawn

    def found(self) -> Detections:
        """Return the objects detected in this frame, without those predicted by tracks."""
        return self if self.coasting is None else self.only(~self.coasting)

    def track_list(self) -> list[int | None]:
        """Return the track id of each object; None for one without a track."""
        ids = [-1] * len(self) if self.track_ids is None else self.track_ids.tolist()
        return [track if track >= 0 else None for track in ids]

    def name(self, i: int) -> str:
        """Return the class name of detection i; the id as text if the model has no name for it."""
        class_id = int(self.class_ids[i])
        return self.names[class_id] if class_id < len(self.names) else str(class_id)


@dataclass(slots=True)
class LabelledPicture:
    """The labelled objects of one picture or one video frame.

    Two kinds of boxes are not targets: a detection that matches such a box counts neither as right
    nor as wrong. An ``ignored`` box matches one detection, by IoU. A ``crowd`` (COCO's iscrowd)
    matches any number of detections, by the share of each detection that is inside the crowd.
    ``labelled``: the annotated classes; None means all. Detections of other classes do not count,
    as their objects may lack a box. ``track_ids``: boxes of one object share an id; None: no ids.
    """

    id: int  # its id in the label file or, without ids there, its index in the list
    name: str
    width: int  # pixels
    height: int
    boxes: NDArray[np.float64]  # xyxy [n, 4]
    class_ids: NDArray[np.int64]  # [n]
    ignored: NDArray[np.bool_]  # [n]
    crowd: NDArray[np.bool_]  # [n]
    areas: NDArray[np.float64]  # [n] object area in pixels, which decides "small" and "large"
    labelled: frozenset[int] | None = None
    path: str | None = None  # the picture's file; None for a frame of a video
    frame: int | None = None  # frame number in the video, from 0; None for a picture
    subset: str = ""  # subset of the dataset; "" if there are no subsets
    track_ids: NDArray[np.int64] | None = None  # [n]
