"""Find packets that need no decoding because no frame selected by the stride depends on them.

Between two clean key frames (``_keys.Promise``), no packet after the last selected frame is needed.
An H.264 picture to which no other refers (``nal_ref_idc`` 0, ITU-T H.264, 7.4.1) is only needed if
it is selected itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import av
import numpy as np
from numpy.typing import NDArray

from detector.core.sources.video._keys import Promise
from detector.core.sources.video._seek import DoubtError, Survey, survey_packets

if TYPE_CHECKING:
    from detector.core.sources.video._container import VideoInfo

WORTHWHILE_SHARE = 0.9  # a plan must not decode a larger share of the frames


@dataclass(frozen=True, slots=True)
class Sparse:
    """A plan. ``shown``: the frames' pts. ``packet_mask``: the packets to decode, in stored order.
    ``frame_mask``: the frames in those packets."""

    stride: int
    shown: Sequence[int]
    packet_mask: NDArray[np.bool_]
    frame_mask: NDArray[np.bool_]

    @property
    def share(self) -> float:
        return float(self.frame_mask.mean())

    @property
    def note(self) -> str:
        return (
            f"--stride {self.stride}: {self.share:.0%} of the frames were decoded; the requested "
            "frames do not depend on the others"
        )


def plan_sparse(video: VideoInfo, stride: int) -> Sparse | None:
    """Return what to decode for every ``stride``-th frame; None to decode everything."""
    try:
        return choose_packets(survey_packets(video), stride)
    except (DoubtError, av.error.FFmpegError):
        return None


def choose_packets(survey: Survey, stride: int) -> Sparse | None:
    stored = np.asarray(survey.stored, np.int64)
    if not len(stored) or survey.packets != len(stored):
        return None  # some pictures are hidden; only a decoder knows which are needed
    numbers = np.empty(len(stored), np.int64)  # frame number of each packet
    numbers[np.argsort(stored, kind="stable")] = np.arange(len(stored))
    selected = numbers % stride == 0
    at = [key.at for key in survey.keys if key.promise is Promise.CLEAN]
    packet_mask = np.zeros(len(stored), bool)
    for first, stop in zip([0, *at], [*at, len(stored)], strict=True):
        targets = numbers[first:stop][selected[first:stop]]
        if len(targets):
            last = np.flatnonzero(numbers[first:stop] <= targets.max())[-1]
            packet_mask[first : first + last + 1] = True
    packet_mask &= selected | ~np.frombuffer(survey.unreferenced, bool)
    frame_mask = np.zeros(len(stored), bool)
    frame_mask[numbers[packet_mask]] = True
    sparse = Sparse(stride, survey.shown, packet_mask, frame_mask)
    return sparse if sparse.share <= WORTHWHILE_SHARE else None
