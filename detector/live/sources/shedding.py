"""Sheds load: decides how much of a camera's stream is decoded if decoding leaves no time to
detect.

Under ``latest`` all pictures are decoded, so that the newest is at hand. If the loop takes few of
them, most of that CPU time is wasted, and detection lacks it. Then only the first pictures of each
group are decoded, about three for each one that the loop takes; the rest up to the next key frame
is skipped, because a picture needs those before it.

That makes results older: until the next key frame there is no newer picture. So it begins only if
the cores are full, much of this program's time goes into decoding, and the loop takes fewer than
one picture in five; it ends as soon as there is time again. Cameras with rare key frames are left
alone: they would see nothing for as long.
"""

from __future__ import annotations

from collections.abc import Callable

from detector.live.sources.burden import Use
from detector.live.sources.packets import Stamp

SECOND = 1_000_000_000  # ns

FEW = 5  # begin if fewer than one in this many arrived pictures was taken
LEAST = 3  # pictures per section that are always decoded
MARGIN = 3  # pictures to decode per taken one
WASTED = 4  # decoded pictures per taken one that are too many
FULL = 0.9  # busy share of the cores above which it may begin
ROOM = 0.75  # busy share below which there is time to decode more
WORTH = 0.25  # least share of our CPU time in decoding for which it is worth the age
# Pictures in a section at least: one group, or several short ones.
SHORTEST = 10
LONGEST_S = 2.5  # of a group; key frames every two seconds are common, and arrive with jitter
REGULAR = 5  # groups in a row within LONGEST_S before it may begin
# Bad sections in a row before it begins: doubled each time that it begins.
PATIENCE, MOST_PATIENCE = 2, 32


class Shedding:
    """Decides for one camera which packets are decoded. ``begin`` and ``arrive`` run in the
    receiving thread. ``taken``: pictures that the loop took."""

    def __init__(
        self,
        taken: Callable[[], int],
        use: Callable[[], Use],
        needed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._taken, self._use, self._needed = taken, use, needed
        self.limit: int | None = None  # pictures to decode per section; None: all
        self._key_ns: int | None = None
        self._regular = 0  # groups in a row within LONGEST_S
        self._epoch = self._first = self._taken_before = self._offered = 0
        self._late = 0  # bad sections in a row
        self._patience = PATIENCE
        self._cut = False  # packets before the last key frame were skipped
        self._leads_to: int | None = None  # pts of the key frame after a cut

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
        """Return whether to decode this packet, the next one."""
        if is_key:
            self._key(stamp)
            if self.is_exhausted():
                return False
            self._leads_to, self._cut = pts if self._cut else None, False
            return True
        if self.is_exhausted():
            # The queue gave up waiting for a key frame.
            self.limit, self._regular = None, 0
        # Pictures shown before their key frame also need the skipped group.
        return self._leads_to is None or pts is None or pts >= self._leads_to

    def offer(self) -> None:
        self._offered += 1

    def is_exhausted(self) -> bool:
        return self.limit is not None and self._offered >= self.limit

    def cut(self) -> None:
        self._cut = True

    def _key(self, stamp: Stamp) -> None:
        """Handle a key frame, which may end a section and begin the next."""
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
        """Raise the limit if most were taken or there is time; lower it if too few were."""
        if 2 * taken > self._offered or self._use().busy < ROOM:
            limit += max(1, limit // 2)
            self.limit = None if limit >= arrived else limit
        elif WASTED * taken < self._offered:
            self.limit = max(LEAST, limit // 2, min(limit, MARGIN * taken))
