"""Sheds load: decodes only part of a camera's stream if decoding takes time that detection needs.

Normally, --live latest decodes all pictures, so that the newest one is always ready. If the loop
takes few pictures, most of that CPU time is wasted. Then we decode only the first pictures of each
group, about three for each picture that the loop takes. The rest, up to the next key frame, is
skipped, because a picture depends on earlier pictures of its group.

Shedding makes results older, because there is no newer picture until the next key frame. So it
begins only if the cores are busy, much of this program's CPU time is decoding, and the loop takes
fewer than one picture in five. It ends as soon as there is time to decode more. It never applies to
cameras with rare key frames, which would have no picture for too long.

A *section* is a group of pictures, or several groups if they are short.
"""

from __future__ import annotations

from collections.abc import Callable

from detector.live.sources.cpu_load import LoadShares
from detector.live.sources.packets import Stamp

SECOND = 1_000_000_000  # ns

FEW = 5  # shedding begins if the loop takes fewer than one picture in this many
LEAST = 3  # at least this many pictures are decoded per section
MARGIN = 3  # pictures to decode for each picture taken
WASTED = 4  # decode fewer pictures if more than this many are decoded for each one that is taken
FULL = 0.9  # shedding begins above this load of the cores
ROOM = 0.75  # decode more pictures below this load of the cores
WORTH = 0.25  # shedding begins only if decoding takes more than this share of our CPU time
SHORTEST = 10  # a section has at least this many pictures
# Longest group for shedding. Key frames every two seconds are common; half a second is for jitter.
LONGEST_S = 2.5
REGULAR = 5  # shedding begins after this many consecutive groups that last LONGEST_S or less
# Shedding begins after BAD_SECTIONS consecutive sections that meet its conditions. Each time that
# shedding begins, the number doubles, up to MOST_BAD_SECTIONS.
BAD_SECTIONS, MOST_BAD_SECTIONS = 2, 32


class Shedding:
    """Decides which packets to decode. ``begin`` and ``arrive`` run in the receiving thread.
    ``taken`` returns how many pictures the loop took, ``needed`` whether all must be decoded."""

    def __init__(
        self,
        taken: Callable[[], int],
        use: Callable[[], LoadShares],
        needed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._taken, self._use, self._needed = taken, use, needed
        self.limit: int | None = None  # pictures to decode per section; None: all
        self._key_ns: int | None = None
        self._regular = 0  # consecutive groups that last LONGEST_S or less
        self._epoch = self._first = self._taken_before = self._offered = 0
        self._bad_sections = 0  # consecutive sections that met all conditions for shedding
        self._sections_needed = BAD_SECTIONS
        self._cut = False  # the rest of the last group was skipped
        # The pts of the last key frame, if the rest of the group before it was skipped.
        self._key_pts: int | None = None

    def begin(self) -> None:
        self._key_ns, self._regular = None, 0

    def arrive(self, arrived_ns: int, is_key: bool) -> None:
        if self._key_ns is not None and arrived_ns - self._key_ns > LONGEST_S * SECOND:
            self._regular = 0
        elif is_key and self._key_ns is not None:
            self._regular += 1
        if is_key:
            self._key_ns = arrived_ns

    def admits(self, stamp: Stamp, is_key: bool, pts: int | None = None) -> bool:
        if is_key:
            self._handle_key(stamp)
            if self.is_exhausted():
                return False
            self._key_pts, self._cut = pts if self._cut else None, False
            return True
        if self.is_exhausted():
            # The queue let a packet pass because no key frame came.
            self.limit, self._regular = None, 0
        # Pictures with an earlier pts than their key frame also depend on the skipped group.
        return self._key_pts is None or pts is None or pts >= self._key_pts

    def count_offered(self) -> None:
        self._offered += 1

    def is_exhausted(self) -> bool:
        return self.limit is not None and self._offered >= self.limit

    def cut(self) -> None:
        self._cut = True

    def _handle_key(self, stamp: Stamp) -> None:
        """Handle a key frame, which may end a section and begin the next."""
        arrived, taken = stamp.number - self._first, self._taken()
        if stamp.epoch != self._epoch:
            self.limit, self._bad_sections = None, 0
        elif arrived < SHORTEST:
            return
        elif self._needed() or self._regular < REGULAR:
            self.limit, self._bad_sections = None, 0
        elif self.limit is None:
            self._start(arrived, taken - self._taken_before)
        else:
            self._adjust(self.limit, arrived, taken - self._taken_before)
        self._epoch, self._first, self._taken_before = stamp.epoch, stamp.number, taken
        self._offered = 0

    def _start(self, arrived: int, taken: int) -> None:
        limit, use = max(LEAST, MARGIN * taken), self._use()
        is_bad = FEW * taken < arrived and limit < self._offered
        is_bad = is_bad and use.busy >= FULL and use.decoding >= WORTH
        self._bad_sections = self._bad_sections + 1 if is_bad else 0
        if self._bad_sections >= self._sections_needed:
            self.limit, self._bad_sections = limit, 0
            self._sections_needed = min(2 * self._sections_needed, MOST_BAD_SECTIONS)

    def _adjust(self, limit: int, arrived: int, taken: int) -> None:
        """Raise the limit if the load is low or most pictures were taken. Lower it if few were."""
        if 2 * taken > self._offered or self._use().busy < ROOM:
            limit += max(1, limit // 2)
            self.limit = None if limit >= arrived else limit
        elif WASTED * taken < self._offered:
            self.limit = max(LEAST, limit // 2, min(limit, MARGIN * taken))
