"""The nouns that cross rooms: Frame, SourceInfo, Letterbox, Candidates, Detections,
LabelledPicture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]  # [h, w, 3] BGR, or [B, H, W, 3] RGB for a request's slot
LONGEST_GAP_S = 10.0  # between two frames, where nothing more is known of the source's clock


@dataclass(slots=True)
class Frame:
    """One decoded picture.

    ``index`` is its number in the source, counted from 0 before ``--stride`` drops any. ``pts`` is
    in ticks of the source's time base, as stored (it need not start at 0); ``time_s`` = pts *
    time_base. ``path`` is the picture's own file where the source is a folder or glob, else None.
    """

    index: int
    pts: int
    time_s: float
    image: Image  # u8 BGR [h, w, 3], after rotation
    path: str | None = None


@dataclass(slots=True)
class SourceInfo:
    """What a source says of itself before the first frame. Counts and durations are hints:
    containers lie.
    """

    path: str
    kind: str  # "video" | "pictures"
    width: int  # displayed pixels, after rotation; of the first picture for kind "pictures"
    height: int
    fps: Fraction  # nominal frame rate, 1/s
    time_base: Fraction  # seconds per tick of pts
    start_pts: int = 0
    frames_declared: int | None = None
    duration_s: float | None = None
    rotation: int = 0  # degrees, as the container states it; already applied to the frames
    mirrored: bool = False  # stored upside down, before it is turned; already undone too
    codec: str = ""
    sample_aspect_ratio: Fraction = Fraction(1)  # of the displayed picture
    has_audio: bool = False
    longest_gap_s: float = (
        LONGEST_GAP_S  # between two frames, seconds; what is more is damage, not a pause
    )


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
        """Boxes from network pixels to source pixels, clipped to the picture. Returns a new
        Detections.
        """
        pad = np.array([self.pad_x, self.pad_y] * 2, np.float32)
        scale = np.array([self.scale_x, self.scale_y] * 2, np.float32)
        boxes = (detections.boxes - pad) / scale
        np.clip(boxes, 0, np.array([self.width, self.height] * 2, np.float32), out=boxes)
        return Detections(
            boxes, detections.scores, detections.class_ids, detections.names, detections.cut
        )


class Candidates(NamedTuple):
    """What a head hands to NMS: every box above the confidence threshold, in network pixels."""

    boxes: NDArray[np.float32]  # xyxy [M, 4]
    scores: NDArray[np.float32]  # [M], objectness x class score where the head has both
    class_ids: NDArray[np.int64]  # [M]


@dataclass(slots=True)
class Detections:
    """The objects of one frame, best score first.

    ``boxes`` are x1, y1, x2, y2 in pixels of the displayed source frame, origin at the outer corner
    of the first pixel, clipped to the frame. ``names`` maps a class id to its name. ``cut`` counts
    what ``--max-det`` dropped.
    """

    boxes: NDArray[np.float32]  # xyxy [M, 4]
    scores: NDArray[np.float32]  # [M]
    class_ids: NDArray[np.int64]  # [M]
    names: tuple[str, ...] = field(default=(), repr=False)
    cut: int = 0

    def __post_init__(self) -> None:
        n = len(self.scores)
        if self.boxes.shape != (n, 4) or self.class_ids.shape != (n,):
            raise ValueError(
                f"boxes must be [M, 4], scores [M], class_ids [M]; got {self.boxes.shape}, "
                f"{self.scores.shape}, {self.class_ids.shape}"
            )

    def __len__(self) -> int:
        return len(self.scores)

    @staticmethod
    def empty(names: tuple[str, ...] = ()) -> Detections:
        return Detections(
            np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), names
        )

    def name(self, i: int) -> str:
        """Class name of detection i; the id as text where the model has no name for it."""
        class_id = int(self.class_ids[i])
        return self.names[class_id] if class_id < len(self.names) else str(class_id)


@dataclass(slots=True)
class LabelledPicture:
    """One picture, or one frame of a video, with what somebody found in it: the truth that
    detections are held to.

    ``path`` is the picture's file, None for a frame of a video; ``frame`` its number there, counted
    from 0 (None: the picture has none). Two kinds of boxes are no targets: ``ignored`` is matched
    once, by IoU, and is then neither right nor wrong; ``crowd`` takes any number of detections, by
    the share of the detection that lies in it (COCO's iscrowd). ``labelled`` holds the class ids
    that were looked for; other classes may be there, without a box, and nothing found of them
    counts. None: all were.
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
    path: str | None = None
    frame: int | None = None
    subset: str = ""  # part of the dataset that it belongs to; "" where there are no parts
