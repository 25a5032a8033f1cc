"""Access to the page: the token, its sessions, and limits on wrong tokens."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

COOKIE = "detect_video_session"
SESSION_S = 7 * 24 * 3600.0
MOST_SESSIONS = 64  # beyond it the least recently used one ends
TRIES = 5  # wrong tokens of one address within ``TRIES_S``, before it must wait
TRIES_S = 60.0
# Wrong tokens of all addresses within ``GUESSES_S``, before no token is compared any more. A token
# has at least 16 characters, so 876 million guesses a year find nothing.
MOST_GUESSES = 100_000
GUESSES_S = 3600.0
MOST_ADDRESSES = 1024  # remembered for wrong tokens


class Access:
    """The token and its sessions. ``token`` None: access for all. Only for the server's thread."""

    def __init__(self, token: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = None if token is None else token.encode()
        self._clock = clock
        self._sessions: OrderedDict[bytes, float] = OrderedDict()  # digest of the id -> end
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()  # address -> times
        self._guesses, self._guesses_since = 0, clock()
        self.refused = 0  # rejected attempts

    @property
    def needed(self) -> bool:
        return self._token is not None

    def wait_s(self, address: str) -> float:
        """Return the seconds that a wrong token from this address must wait; 0 if none."""
        now = self._clock()
        if self._is_flooded(now):
            return GUESSES_S - (now - self._guesses_since)
        times = [one for one in self._wrong.get(block_of(address), ()) if now - one < TRIES_S]
        return 0.0 if len(times) < TRIES else TRIES_S - (now - times[0])

    def token_is(self, given: str, address: str) -> bool:
        """Compare in constant time, and count a wrong token. The right one always passes, because
        all clients of a proxy share one address."""
        if self._token is None:
            return True
        now = self._clock()
        if not self._is_flooded(now):
            if hmac.compare_digest(given.encode(errors="replace"), self._token):
                return True
            self._guesses += 1
        block = block_of(address)
        times = [one for one in self._wrong.pop(block, []) if now - one < TRIES_S]
        self._wrong[block] = times if len(times) >= TRIES else [*times, now]
        while len(self._wrong) > MOST_ADDRESSES:
            self._wrong.popitem(last=False)
        self.refused += 1
        return False

    def _is_flooded(self, now: float) -> bool:
        if now - self._guesses_since >= GUESSES_S:
            self._guesses, self._guesses_since = 0, now
        return self._guesses >= MOST_GUESSES

    def open_session(self) -> str:
        """Return the id of a new session: random, not derived from the token."""
        name = secrets.token_urlsafe(32)
        self._sessions[_digest(name)] = self._clock() + SESSION_S
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return name

    def session_is(self, name: str) -> bool:
        digest = _digest(name)
        end = self._sessions.get(digest)
        if end is None:
            return False
        if self._clock() >= end:
            del self._sessions[digest]
            return False
        self._sessions.move_to_end(digest)
        return True

    def close_session(self, name: str) -> None:
        self._sessions.pop(_digest(name), None)


def block_of(address: str) -> str:
    """Return what attempts are counted by: an IPv4 address, or an IPv6 customer's /64."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def _digest(name: str) -> bytes:
    # Look-ups use the digest, so that their timing reveals nothing about an id.
    return hashlib.sha256(name.encode(errors="replace")).digest()
