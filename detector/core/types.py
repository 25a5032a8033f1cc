"""The nouns that all rooms share.

A ``Frame`` comes from a source, which is described by ``SourceInfo``. Its picture is BGR, or
``Planes`` of YUV 4:2:0. A ``Letterbox`` maps between frame and network input. A head gives
``Candidates``, NMS turns them into ``Detections``. A ``LabelledPicture`` holds the truth that
detections are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Image = NDArray[np.uint8]  # [h, w, 3] BGR, or [B, H, W, 3] RGB for a request's slot
BACK_S = 1  # a larger step back is a clock that was set back; a smaller one is a wrong order
LONGEST_GAP_S = 10.0  # between two frames, where nothing more is known of the source's clock


@dataclass(slots=True)
class Arrival:
    """Where and when a picture of a camera came in, and the moments of its way through the loop.

    ``*_ns`` are of time.perf_counter_ns; 0 stands for a moment that is still to come.
    """

    camera: str
    epoch: int  # counted from 1; rises with each connection
    arrived_ns: int  # its first packet was received, as near as FFmpeg tells
    utc_s: float  # Unix time of that moment
    decoded_ns: int = 0
    captured_s: float | None = None  # Unix time by the camera's own clock, where it tells
    taken_ns: int = 0  # the loop took it
    began_ns: int = 0  # its inference began
    inferred_ns: int = 0  # its inference ended
    result_ns: int = 0  # its detections were known


class Colours(NamedTuple):
    """What the numbers of a YUV picture mean, as ITU-T H.273 numbers it; 2 says nothing.

    ``luma``: the shares of red and of blue in the brightness, which ``matrix`` stands for.
    """

    matrix: int
    primaries: int
    transfer: int
    full_range: bool  # 0 to 255; else black is 16, white 235
    luma: tuple[float, float]


@dataclass(slots=True, eq=False)
class Planes:
    """A picture in YUV 4:2:0, 8 bits: a brightness for each pixel, two colours for each 2x2.

    Height and width are even. The rows of a plane may lie apart in memory, its pixels not.
    ``to_bgr`` makes a new BGR picture of it.
    """

    y: NDArray[np.uint8]  # [h, w]
    u: NDArray[np.uint8]  # [h / 2, w / 2]
    v: NDArray[np.uint8]  # [h / 2, w / 2]
    colours: Colours
    convert: Callable[[Planes], Image] = field(repr=False)
    # PyAV's, whose memory this is. An encoder may read from it, and ``pts`` be set on it, where it
    # is our own and no decoder's: then ``y`` is writeable. None: the planes are numpy's.
    picture: Any = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        return self.y.nbytes + self.u.nbytes + self.v.nbytes

    def to_bgr(self) -> Image:
        """u8 BGR [h, w, 3], as the reader would have made it."""
        return self.convert(self)

    def copy(self) -> Planes:
        """The same in memory of its own."""
        return Planes(self.y.copy(), self.u.copy(), self.v.copy(), self.colours, self.convert)


Picture = Image | Planes


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """A picture decoded at a fraction of its size, where nobody needs more. Boxes are in pixels of
    the whole. ``pixels``: u8 BGR, each of ``factor`` x ``factor`` pixels; the last ones in a row or
    column may stand for fewer. ``width`` and ``height``: of the whole."""

    pixels: Image
    factor: int
    width: int
    height: int


AnyPicture = Picture | Reduced


@dataclass(slots=True)
class FrameTimes:
    """How long each stage had one frame, where somebody asked for it (--save-times, -v).

    ``ms``: stage -> milliseconds, of those that the frame has left. Frames of a batch are inferred
    together, and each has an equal share of that time: 1/``batch``. ``input``: height and width of
    the network's input.
    """

    input: tuple[int, int]
    batch: int = 1
    ms: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Frame:
    """One decoded picture.

    ``index`` is its number in the source, counted from 0 before ``--stride`` drops any. ``pts`` is
    in ticks of the source's time base, as stored (it need not start at 0); ``time_s`` = pts *
    time_base. Where the container's clock jumped, both go on from before: it states ``behind``
    ticks more, and was set back ``rewinds`` times. ``path`` is the picture's own file where the
    source is a folder or glob, else None. ``name`` is what outputs of the picture are called: its
    file's name, with folders in front where two pictures of a source share one. ``picture`` is BGR,
    or planes of YUV if the source was opened for them. ``image`` is BGR, converted from planes on
    first access; nobody may draw into them after that. ``source``: filled in by
    ``Detector.stream``. ``arrival``: of cameras alone; their ``index`` counts received pictures.
    ``reused``: nothing moved (--skip-still), so its detections are those of the last frame that was
    inferred. ``coasting``: its boxes are those of tracks, moved on (--infer-every). The network
    sees neither. ``cut``: whether another scene begins here; None until somebody has looked.
    ``reduced``: ``picture`` is a part of the pixels, if the source was opened so.
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
    taken: str | None = None  # when a photo was taken, by its EXIF: ISO 8601
    behind: int = 0
    rewinds: int = 0
    reduced: Reduced | None = None
    _made: tuple[Planes, Image] | None = field(default=None, init=False, repr=False)

    @property
    def image(self) -> Image:
        """u8 BGR [h, w, 3], after rotation."""
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
        """Whether the network sees it."""
        return not (self.reused or self.coasting)

    @property
    def decoded(self) -> AnyPicture:
        """What is preprocessed."""
        return self.reduced or self.picture

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels, of the whole. Nothing is made for it."""
        return size_of(self.decoded)

    @property
    def buffer(self) -> Image | None:
        """What the source may read another frame into; None for planes, which are the decoder's,
        and for pictures of files, whose sizes differ."""
        return None if isinstance(self.picture, Planes) or self.path else self.picture


def size_of(picture: AnyPicture) -> tuple[int, int]:
    """Height and width in pixels, of the whole."""
    if isinstance(picture, Reduced):
        return picture.height, picture.width
    pixels = picture.y if isinstance(picture, Planes) else picture
    return pixels.shape[0], pixels.shape[1]


class PipedTrack(Protocol):
    """A track of sound or subtitles of a source that can be read once only: its packets, while
    frames are read."""

    stream: Any  # PyAV's, of the source's container
    ended: bool  # no packet follows what ``take`` still has

    def want(self) -> None:
        """The packets will be taken. To be said before the first frame is read."""

    def take(self) -> Any:
        """The next packet of PyAV; None where there is none yet, and behind the last."""


@dataclass(slots=True)
class SourceInfo:
    """What a source says of itself before the first frame.

    Counts and durations are hints, because containers state wrong ones.
    """

    path: str
    kind: str  # "video" | "pictures" | "live"
    width: int  # displayed pixels, after rotation; of the first picture for kind "pictures"
    height: int
    fps: Fraction  # nominal frame rate, 1/s
    time_base: Fraction  # seconds per tick of pts
    start_pts: int = 0
    frames_declared: int | None = None
    duration_s: float | None = None
    counted: bool = False  # a raw stream: pts are not stored, but counted by the frame rate
    rotation: int = 0  # degrees, as the container states it; already applied to the frames
    mirrored: bool = False  # stored upside down, before it is turned; already undone too
    codec: str = ""
    sample_aspect_ratio: Fraction = Fraction(1)  # of the displayed picture
    stream: int | None = None  # number of its video among all streams of the container
    has_audio: bool = False
    has_subtitles: bool = False
    has_data: bool = False  # tracks of measurements and the like
    tags: dict[str, str] = field(default_factory=dict)  # of the container: title, location...
    longest_gap_s: float = (
        LONGEST_GAP_S  # between two frames, seconds; what is more is damage, not a pause
    )
    # Sound and subtitles, where the file cannot be opened once more for them.
    tracks: tuple[PipedTrack, ...] = field(default=(), compare=False, repr=False)


@dataclass(slots=True)
class ReadCounts:
    """What a source lost while it was read, and what was left out on purpose."""

    bad: int = 0  # packets or files that should have given a picture, and gave none
    corrupt: int = 0  # frames that came out, but damaged
    skipped: int = 0  # frames that --stride dropped
    ended_early: bool = False  # the file is cut off, or its container is damaged

    @property
    def damaged(self) -> bool:
        """Whether a part of the source was lost.

        The run finishes and exits with EXIT_DAMAGED (7).
        """
        return self.ended_early or self.bad > 0 or self.corrupt > 0


class Background(str):
    """A note for the user that says how a run was set up. It is news once; -v shows it."""

    __slots__ = ()


# How a picture is fitted into a network's input (stages/preprocess.py).
GEOMETRIES = ("centre", "top-left", "top-left-truncate", "stretch")


@dataclass(frozen=True, slots=True)
class Letterbox:
    """Where the picture lies in the network's input: per axis, network = source * scale + pad."""

    scale_x: float
    scale_y: float
    pad_x: float
    pad_y: float
    width: int  # of the source picture, pixels
    height: int

    def to_source(self, detections: Detections) -> Detections:
        """Detections with boxes in source pixels, clipped, from boxes in network pixels. Those
        without a box are returned as they are.
        """
        if not len(detections):
            return detections
        pad = np.array([self.pad_x, self.pad_y] * 2, np.float32)
        scale = np.array([self.scale_x, self.scale_y] * 2, np.float32)
        boxes = (detections.boxes - pad) / scale
        np.clip(boxes, 0, np.array([self.width, self.height] * 2, np.float32), out=boxes)
        return replace(detections, boxes=boxes)


class Fit(Protocol):
    """Where a frame lies in its inputs of the network: a ``Letterbox``, or of tiles a
    ``stages.tiles.TiledFit``."""

    def to_source(self, detections: Any, /) -> Detections:
        """From what ``Parts.nms`` gave."""


class Candidates(NamedTuple):
    """What a head hands to NMS: every box above the confidence threshold, in network pixels."""

    boxes: NDArray[np.float32]  # xyxy [M, 4]
    scores: NDArray[np.float32]  # [M], objectness x class score where the head has both
    class_ids: NDArray[np.int64]  # [M]


class ZoneEvent(NamedTuple):
    """What one object did at a line or a zone (--zones): it "crosses" a line, "enters", "leaves" or
    "stays" in a zone, "appears" or "ends" there. ``x``, ``y``: its point that counts, pixels.
    ``since_s``, ``until_s``: of its time in the zone, if that is over, or long."""

    time_s: float  # of the frame in which it is certain
    zone: str  # name of the line or zone
    event: str
    direction: str  # of a crossing, "in" or "out"; else ""
    class_name: str
    track: int
    x: float
    y: float
    since_s: float | None = None
    until_s: float | None = None
    side: str = ""  # what the line calls its direction, if it has a name


class ZoneCount(NamedTuple):
    """What a line or zone counted of one class in an interval. ``mean`` and ``most``: objects in a
    zone at once; None of a line."""

    from_s: float
    to_s: float
    zone: str
    class_name: str
    counts: Mapping[str, int]  # in, out; entered, left, appeared, ended
    mean: float | None
    most: int | None
    sides: tuple[str, str] = ("in", "out")  # what a line calls in and out


class Outline(NamedTuple):
    """A line or zone as it is drawn, with what it counted so far."""

    strokes: tuple[NDArray[np.float32], ...]  # points [n, 2], pixels
    text: str
    x: float  # where the text stands
    y: float


class ZoneBook(Protocol):
    """Counts of one source or camera."""

    def shapes(self) -> Sequence[Any]:
        """Its lines and zones, as ``live.base.ZoneShape``, in the order of the file."""

    def finish(self) -> tuple[Sequence[ZoneEvent], Sequence[ZoneCount]]:
        """Ends all tracks and the last interval; the same at each call."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Lines and zones at one frame (--zones). ``counts``: of intervals that ended with it.
    ``book`` goes on counting; it is None in a copy and behind a pickle."""

    outlines: tuple[Outline, ...]
    events: tuple[ZoneEvent, ...]
    counts: tuple[ZoneCount, ...]
    book: ZoneBook | None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.outlines, self.events, self.counts, None)


class Detection(NamedTuple):
    """One object: ``box`` is x1, y1, x2, y2 in pixels of the picture."""

    box: tuple[float, float, float, float]
    score: float
    class_id: int
    name: str


@dataclass(slots=True, eq=False)
class Detections:
    """The objects of one frame, best score first. A loop gives ``Detection``; so does ``found[0]``.
    ``found[found.scores > 0.5]`` and ``found.of("person")`` keep some.

    ``boxes`` are x1, y1, x2, y2 in pixels of the displayed source frame, clipped to it; the origin
    is the outer corner of the first pixel. ``names`` maps a class id to its name. ``cut`` counts
    what ``--max-det`` dropped. ``track_ids``: of the tracks (--track), from 1; -1 for an object
    that has none yet; None where nothing is tracked. ``trails``: where each one's middle was
    lately, the oldest point first (--trails). ``scene``: lines and zones (--zones). ``coasting``:
    which boxes were not detected in this frame: their tracks say where the objects should be; None:
    none. ``drawn``: what pictures show instead (--smooth). ``holds_s``: how long the tracks can do
    without the network (--infer-every auto); None where nobody knows.
    """

    boxes: NDArray[np.float32]  # xyxy [M, 4]
    scores: NDArray[np.float32]  # [M]
    class_ids: NDArray[np.int64]  # [M]
    names: tuple[str, ...] = field(default=(), repr=False)
    cut: int = 0
    track_ids: NDArray[np.int64] | None = None  # [M]
    trails: tuple[NDArray[np.float32], ...] = field(default=(), repr=False)  # M times [n, 2]
    scene: Scene | None = field(default=None, repr=False)
    coasting: NDArray[np.bool_] | None = field(default=None, repr=False)  # [M]
    drawn: Detections | None = field(default=None, repr=False)
    holds_s: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        n = len(self.scores)
        if self.boxes.shape != (n, 4) or self.class_ids.shape != (n,):
            raise ValueError(
                f"boxes must be [M, 4], scores [M], class_ids [M]; got {self.boxes.shape}, "
                f"{self.scores.shape}, {self.class_ids.shape}"
            )
        if self.track_ids is not None and self.track_ids.shape != (n,):
            raise ValueError(f"track_ids must be [M]; got {self.track_ids.shape} for {n}")
        if self.coasting is not None and self.coasting.shape != (n,):
            raise ValueError(f"coasting must be [M]; got {self.coasting.shape} for {n}")

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[Detection]:
        return (self._one(i) for i in range(len(self)))

    @overload
    def __getitem__(self, key: int) -> Detection: ...

    @overload
    def __getitem__(self, key: slice | ArrayLike) -> Self: ...

    def __getitem__(self, key: Any) -> Detection | Self:
        """One by its number, or those of a slice, of a mask [M] or of a list of numbers."""
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
        """Those of these classes, given by name or id. Raises KeyError for an unknown name."""
        unknown = [one for one in classes if isinstance(one, str) and one not in self.names]
        if unknown:
            raise KeyError(f"unknown class {unknown[0]!r}; known: {', '.join(self.names)}")
        ids = [self.names.index(one) if isinstance(one, str) else one for one in classes]
        return self[np.isin(self.class_ids, ids)]

    @property
    def events(self) -> tuple[ZoneEvent, ...]:
        """What happened at lines and in zones in this frame (--zones)."""
        return () if self.scene is None else self.scene.events

    def __eq__(self, other: object) -> bool:
        """Whether all values are the same. Results of two engines seldom are to the last bit."""
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
        """Some of them, with all that is known of each: ``rows`` is a mask, numbers or a slice."""
        ids = None if self.track_ids is None else self.track_ids[rows]
        left = np.arange(len(self))[rows].tolist() if self.trails else []
        return replace(
            self,
            boxes=self.boxes[rows],
            scores=self.scores[rows],
            class_ids=self.class_ids[rows],
            track_ids=ids,
            trails=tuple(self.trails[i] for i in left),
            coasting=None if self.coasting is None else self.coasting[rows],
        )

    def inside(self, height: int, width: int) -> Detections:
        """Clipped to a picture of this size; those that lie outside are left out."""
        boxes = self.boxes.clip(0, np.array([width, height] * 2, np.float32))
        there = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        return replace(self, boxes=boxes).only(there)

    @property
    def shown(self) -> Detections:
        """What pictures show of them."""
        return self if self.drawn is None else self.drawn

    def found(self) -> Detections:
        """Those that were detected in this frame, without the ones that coast."""
        return self if self.coasting is None else self.only(~self.coasting)

    def track_list(self) -> list[int | None]:
        """The id of each one's track; None for one that has none."""
        ids = [-1] * len(self) if self.track_ids is None else self.track_ids.tolist()
        return [one if one >= 0 else None for one in ids]

    def name(self, i: int) -> str:
        """Class name of detection i; the id as text where the model has no name for it."""
        class_id = int(self.class_ids[i])
        return self.names[class_id] if class_id < len(self.names) else str(class_id)


@dataclass(slots=True)
class LabelledPicture:
    """The true objects of one picture or one frame of a video, as somebody labelled them.

    Two kinds of boxes are no targets. A box that is ``ignored`` is matched once, by IoU, and is
    then neither right nor wrong. A ``crowd`` takes any number of detections, by the share of the
    detection that lies in it (COCO's iscrowd). ``labelled`` holds the class ids that were looked
    for: objects of other classes may be there without a box, so detections of them do not count.
    None means all. ``track_ids``: boxes with one number are one object, where the labels tell.
    """

    id: int  # as the labels' own file numbers it, else the place in the list
    name: str
    width: int  # pixels
    height: int
    boxes: NDArray[np.float64]  # xyxy [n, 4]
    class_ids: NDArray[np.int64]  # [n]
    ignored: NDArray[np.bool_]  # [n]
    crowd: NDArray[np.bool_]  # [n]
    areas: NDArray[np.float64]  # [n] of the object, pixels: what "small" and "large" are told by
    labelled: frozenset[int] | None = None
    path: str | None = None  # the picture's file; None for a frame of a video
    frame: int | None = None  # its number in the video, from 0; None for a picture
    subset: str = ""  # part of the dataset that it belongs to; "" where there are no parts
    track_ids: NDArray[np.int64] | None = None  # [n]
