"""Controls access to the page: the token, login sessions, and limits on wrong tokens."""

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
MOST_SESSIONS = 64  # above this, the least recently used session ends
TRIES = 5  # an address must wait after this many wrong tokens within ``TRIES_S``
TRIES_S = 60.0
# After this many wrong tokens from all addresses within ``GUESSES_S``, all tokens are refused. A
# token has at least 16 characters, so 876 million guesses a year find nothing.
MOST_GUESSES = 100_000
GUESSES_S = 3600.0
MOST_ADDRESSES = 1024  # addresses whose wrong tokens are remembered


class Access:
    """The token and the sessions. Not thread-safe. Without a token, everyone has access."""

    def __init__(self, token: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = None if token is None else token.encode()
        self._clock = clock
        self._sessions: OrderedDict[bytes, float] = OrderedDict()  # digest of id -> session end, s
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()  # address -> wrong tokens' times
        self._guesses, self._guesses_since = 0, clock()
        self.refused = 0  # refused tokens

    @property
    def needed(self) -> bool:
        return self._token is not None

    def wait_s(self, address: str) -> float:
        """Return for how many seconds wrong tokens from this address get status 429."""
        now = self._clock()
        if self._is_flooded(now):
            return GUESSES_S - (now - self._guesses_since)
        times = [one for one in self._wrong.get(to_block(address), ()) if now - one < TRIES_S]
        return 0.0 if len(times) < TRIES else TRIES_S - (now - times[0])

    def check_token(self, given: str, address: str) -> bool:
        """Compare in constant time, and count wrong tokens. The right token works even after
        ``TRIES`` wrong ones, because all clients of a proxy share an address."""
        if self._token is None:
            return True
        now = self._clock()
        if not self._is_flooded(now):
            if hmac.compare_digest(given.encode(errors="replace"), self._token):
                return True
            self._guesses += 1
        block = to_block(address)
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
        name = secrets.token_urlsafe(32)
        self._sessions[_digest(name)] = self._clock() + SESSION_S
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return name

    def has_session(self, name: str) -> bool:
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


def to_block(address: str) -> str:
    """Return the IPv4 address or IPv6 /64 network whose attempts are counted together."""
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
    # Sessions are looked up by digest, so that the timing reveals nothing about an id.
    return hashlib.sha256(name.encode(errors="replace")).digest()
