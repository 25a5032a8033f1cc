"""Find packets that need no decoding because no frame selected by the stride depends on them.

Between two key frames that isolate their pictures, packets are needed up to the last one of a
wanted frame. An H.264 picture that no other refers to (``nal_ref_idc`` 0, ITU-T H.264, 7.4.1) is
needed only if it is wanted itself.
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

MOST_DECODED = 0.9  # share of the frames from which the plan is not worth it


@dataclass(frozen=True, slots=True)
class Sparse:
    """A plan. ``shown``: pts, rising. ``fed``: packets to decode, as stored. ``decoded``:
    frames."""

    stride: int
    shown: Sequence[int]
    fed: NDArray[np.bool_]
    decoded: NDArray[np.bool_]

    @property
    def share(self) -> float:
        return float(self.decoded.mean())

    @property
    def note(self) -> str:
        return (
            f"--stride {self.stride}: {self.share:.0%} of the frames were decoded; the requested "
            "frames do not depend on the others"
        )


def plan_sparse(video: VideoInfo, stride: int) -> Sparse | None:
    """What is to be decoded for every ``stride``-th frame, 2 or more; None: everything."""
    try:
        return choose_packets(survey_packets(video), stride)
    except (DoubtError, av.error.FFmpegError):
        return None


def choose_packets(survey: Survey, stride: int) -> Sparse | None:
    stored = np.asarray(survey.stored, np.int64)
    if not len(stored) or survey.packets != len(stored):
        return None  # hidden pictures: only a decoder knows which of them are needed
    numbers = np.empty(len(stored), np.int64)  # frame number of each packet
    numbers[np.argsort(stored, kind="stable")] = np.arange(len(stored))
    wanted = numbers % stride == 0
    at = [key.at for key in survey.keys if key.promise is Promise.CLEAN]
    fed = np.zeros(len(stored), bool)
    for first, behind in zip([0, *at], [*at, len(stored)], strict=True):
        asked = numbers[first:behind][wanted[first:behind]]
        if len(asked):
            last = np.flatnonzero(numbers[first:behind] <= asked.max())[-1]
            fed[first : first + last + 1] = True
    fed &= wanted | ~np.frombuffer(survey.spare, bool)
    decoded = np.zeros(len(stored), bool)
    decoded[numbers[fed]] = True
    sparse = Sparse(stride, survey.shown, fed, decoded)
    return sparse if sparse.share <= MOST_DECODED else None
