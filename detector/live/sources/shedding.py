"""How much of a camera's stream is decoded where decoding leaves no time to detect.

Under ``latest`` all pictures are decoded, so that the newest is at hand. Where the loop takes few
of them, most of that is for nothing, and it is CPU time that detection lacks. Then the first
pictures of each group alone are decoded, about three for each one that the loop takes. The rest of
the group stays out up to the next key frame, since a picture needs those before it.

That costs age: until the next key frame there is no newer picture. So it begins only where the
cores are full, a good part of this program's time goes into decoding, and the loop takes fewer than
one picture in five; and it ends as soon as there is time again. Cameras whose key frames are far
apart are left alone: they would be blind for as long.
"""

from __future__ import annotations

from collections.abc import Callable

from detector.live.sources.burden import Use
from detector.live.sources.packets import Stamp

SECOND = 1_000_000_000  # ns

FEW = 5  # it begins where fewer than one in so many of the pictures that arrived was taken
LEAST = 3  # pictures of a section that are decoded in any case
MARGIN = 3  # decoded for each one that is taken
WASTED = 4  # decoded for each one that is taken: so many are too many
FULL = 0.9  # busy share of the cores from which it may begin
ROOM = 0.75  # below it there is time to decode more
WORTH = 0.25  # of this program's CPU time goes into decoding: less is not worth the age
# A section is judged at once: a group, or as many short ones as hold so many pictures.
SHORTEST = 10
LONGEST_S = 2.5  # of a group. Key frames every two seconds are common, and arrive with jitter
REGULAR = 5  # so many groups in a row that were no longer, of this connection
# Sections in a row that must be bad before it begins: twice as many each time that it begins.
PATIENCE, MOST_PATIENCE = 2, 32


class Shedding:
    """Decide for one camera which packets are decoded, without clock or stream. ``begin`` and
    ``arrive`` run in the receiving thread. ``taken``: pictures that the loop took."""

    def __init__(
        self,
        taken: Callable[[], int],
        use: Callable[[], Use],
        needed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._taken, self._use, self._needed = taken, use, needed
        self.limit: int | None = None  # pictures of a section that are decoded; None: all
        # Of the receiving thread.
        self._key_ns: int | None = None
        self._regular = 0  # groups in a row that were short enough
        # Of the section.
        self._epoch = self._first = self._taken_before = self._offered = 0
        self._late = 0  # sections in a row that were bad enough
        self._patience = PATIENCE
        self._cut = False  # what came before the last key frame was not decoded
        self._leads_to: int | None = None  # pts of a key frame behind such a cut

    # The receiving thread.

    def begin(self) -> None:
        self._key_ns, self._regular = None, 0

    def arrive(self, arrived_ns: int, is_key: bool) -> None:
        if self._key_ns is not None and arrived_ns - self._key_ns > LONGEST_S * SECOND:
            self._regular = 0
        elif is_key and self._key_ns is not None:
            self._regular += 1
        if is_key:
            self._key_ns = arrived_ns

    # The decoding thread.

    def admits(self, stamp: Stamp, is_key: bool, pts: int | None = None) -> bool:
        """Whether this packet, which is the next, is decoded."""
        if is_key:
            self._key(stamp)
            if self.is_spent():
                return False
            self._leads_to, self._cut = pts if self._cut else None, False
            return True
        if self.is_spent():
            # The queue waited for a key frame until its patience ended.
            self.limit, self._regular = None, 0
        # Pictures that are shown before their key frame need the group before, too.
        return self._leads_to is None or pts is None or pts >= self._leads_to

    def offer(self) -> None:
        self._offered += 1

    def is_spent(self) -> bool:
        return self.limit is not None and self._offered >= self.limit

    def cut(self) -> None:
        self._cut = True

    def _key(self, stamp: Stamp) -> None:
        """A key frame: perhaps a section ends with it, and the next one begins."""
        arrived, taken = stamp.number - self._first, self._taken()
        if stamp.epoch != self._epoch:
            self.limit, self._late = None, 0
        elif arrived < SHORTEST:
            return
        elif self._needed() or self._regular < REGULAR:
            self.limit, self._late = None, 0
        elif self.limit is None:
            self._start(arrived, taken - self._taken_before)
        else:
            self._adjust(self.limit, arrived, taken - self._taken_before)
        self._epoch, self._first, self._taken_before = stamp.epoch, stamp.number, taken
        self._offered = 0

    def _start(self, arrived: int, taken: int) -> None:
        limit, use = max(LEAST, MARGIN * taken), self._use()
        is_late = FEW * taken < arrived and limit < self._offered
        is_late = is_late and use.busy >= FULL and use.decoding >= WORTH
        self._late = self._late + 1 if is_late else 0
        if self._late >= self._patience:
            self.limit, self._late = limit, 0
            self._patience = min(2 * self._patience, MOST_PATIENCE)

    def _adjust(self, limit: int, arrived: int, taken: int) -> None:
        """More by half if most were taken or there is time; down to half if too many were not."""
        if 2 * taken > self._offered or self._use().busy < ROOM:
            limit += max(1, limit // 2)
            self.limit = None if limit >= arrived else limit
        elif WASTED * taken < self._offered:
            self.limit = max(LEAST, limit // 2, min(limit, MARGIN * taken))
