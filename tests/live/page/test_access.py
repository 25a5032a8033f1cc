"""Test the token, sessions and login attempts, on a clock that the test moves."""

import pytest

from detector.live.page.access import (
    GUESSES_S,
    MOST_ADDRESSES,
    MOST_SESSIONS,
    TRIES,
    TRIES_S,
    Access,
    to_block,
)

TOKEN = "a" * 32


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_login_attempts_are_limited_per_address():
    clock = Clock()
    access = Access(TOKEN, clock)
    for _ in range(TRIES):
        assert access.wait_s("10.0.0.1") == 0
        assert not access.check_token("wrong", "10.0.0.1")
        clock.now_s += 1
    assert access.wait_s("10.0.0.1") == TRIES_S - TRIES
    assert access.wait_s("10.0.0.2") == 0
    assert access.check_token(TOKEN, "10.0.0.2")
    clock.now_s += TRIES_S - TRIES
    assert access.wait_s("10.0.0.1") == 0  # the first attempt was a minute ago
    assert access.refused == TRIES


def test_wrong_logins_from_all_addresses_together_are_limited(monkeypatch):
    monkeypatch.setattr("detector.live.page.access.MOST_GUESSES", 50)
    clock = Clock()
    access = Access(TOKEN, clock)
    for number in range(50):
        assert access.check_token(TOKEN, "10.1.0.1")
        assert not access.check_token("wrong", f"10.0.0.{number}")
    assert not access.check_token(TOKEN, "10.1.0.1")  # even the right token is refused now
    assert access.wait_s("10.1.0.1") == GUESSES_S
    clock.now_s += GUESSES_S
    assert access.check_token(TOKEN, "10.1.0.1")


def test_number_of_stored_addresses_and_sessions_is_bounded():
    access = Access(TOKEN)
    for number in range(MOST_ADDRESSES + 50):
        access.check_token("wrong", f"10.{number >> 8}.{number & 255}.1")
    assert len(access._wrong) == MOST_ADDRESSES
    names = [access.open_session() for _ in range(MOST_SESSIONS + 1)]
    assert len(set(names)) == MOST_SESSIONS + 1
    assert not access.has_session(names[0])
    assert access.has_session(names[1])  # which makes it the most recently used session
    access.open_session()
    assert [access.has_session(name) for name in names[1:4]] == [True, False, True]


def test_session_ends_at_logout_or_after_a_week():
    clock = Clock()
    access = Access(TOKEN, clock)
    name, other = access.open_session(), access.open_session()
    assert TOKEN not in name
    access.close_session(other)
    assert not access.has_session(other)
    clock.now_s += 7 * 24 * 3600 - 1
    assert access.has_session(name)
    clock.now_s += 1
    assert not access.has_session(name)


@pytest.mark.parametrize(
    "token", ["", "A" * 32, "a" * 31, "a" * 33, "ä" * 32, "\udc80", "a" * 9999]
)
def test_wrong_token_is_refused(token):
    assert not Access(TOKEN).check_token(token, "::1")


def test_page_that_has_no_token_accepts_any_login():
    assert not Access(None).needed
    assert Access(None).check_token("anything", "::1")


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),  # one customer gets a whole /64
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_addresses_of_one_network_share_a_block(address, block):
    assert to_block(address) == block
