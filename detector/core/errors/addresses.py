"""Hide the secrets in addresses: logins, values in queries, and keys in paths."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable
from urllib.parse import unquote, urlsplit

from detector.core.errors.secrets import HIDDEN, keep_secret

# A shorter value of a query ("main", "true") is hidden in its address only, not in other text.
MIN_VALUE = 6
_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_IN_TEXT = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)
# Secrets in paths: /user=admin&password=x, /cam;token=x. In queries, these names mark secrets too.
_IN_PATH = re.compile(
    r"(?P<name>user(?:name)?|login|pass(?:word|wd)?|pwd|token|key|secret|auth|sig(?:nature)?)"
    r"=(?P<value>[^&;/?#]+?)(?=$|[&;/?#]|_(?:channel|stream|password|pass|user)=)",
    re.IGNORECASE,
)
# Schemes of addresses whose path ends in a key.
_KEYED = ("rtmp", "rtmps", "rtmpt", "rtmpts", "rtmpe", "rtmpte")


class Address:
    """A stream's address. ``whole`` has its secrets. ``str`` returns ``shown``, which has none.
    ``hide_path``: the path is secret, too."""

    __slots__ = ("shown", "whole")

    def __init__(self, whole: str, hide_path: bool = False) -> None:
        self.whole = whole
        self.shown = _show(whole, hide_path)

    def __str__(self) -> str:
        return self.shown

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and other.whole == self.whole

    def __hash__(self) -> int:
        return hash(self.whole)


def keep_command_line(words: Iterable[str], secret_paths: Collection[str]) -> None:
    """Register a command line's secrets. ``secret_paths``: options whose URLs have secret paths."""
    option = ""
    for word in words:
        if word.startswith("--") and "=" in word:
            option, _, word = word.partition("=")
        hide_path = option in secret_paths
        for address in {word, *_IN_TEXT.findall(word)}:
            Address(address, hide_path)
        option = word if word.startswith("-") else ""


def _show(whole: str, hide_path: bool) -> str:
    """Register the secrets of an address, and return the address without them."""
    match = _ADDRESS.match(whole)
    if match is None:
        return whole
    scheme, rest = match["scheme"], match["rest"]
    end = min((rest.find(sign) for sign in "/?#" if sign in rest), default=len(rest))
    if "@" in rest and "@" not in rest[:end]:  # a password that contains an unescaped slash
        end = _end_of_host(rest)
    place, tail = rest[:end], rest[end:]
    info, at, host = place.rpartition("@")
    if at:
        _keep_login(info)
        host = f"{HIDDEN}@{host}"
    path, mark, query = tail.partition("?")
    fragment = ""
    if "#" in query or "#" in path:
        path, _, before = path.partition("#")
        query, _, fragment = query.partition("#")
        fragment = fragment or before
    path = _show_path(path, scheme.lower() in _KEYED, hide_path)
    shown = f"{scheme}://{host}{path}"
    if mark:
        shown += "?" + "&".join(map(_show_value, re.split("[&;]", query)))
    if fragment:
        keep_secret(fragment)
        shown += f"#{HIDDEN}"
    return shown


def _end_of_host(rest: str) -> int:
    """Return where the host ends in ``login@host/path``. The login may contain a slash, but an @
    after ``host:port/`` belongs to the path."""
    path = re.split(r"[?#]", rest)[0]
    at = path.rfind("@")
    if at < 0 or ":" not in path[:at] or re.match(r"[^/:]*:\d+/", path):  # host, port, path
        return min((rest.find(sign) for sign in "/?#" if sign in rest), default=len(rest))
    slash = path.find("/", at)
    return slash if slash >= 0 else len(path)


def _keep_login(info: str) -> None:
    keep_secret(info)
    user, colon, password = info.partition(":")
    if colon:
        keep_secret(password)
        plain = f"{unquote(user)}:{unquote(password)}"
        keep_secret(plain)
        keep_secret(base64.b64encode(plain.encode(errors="surrogateescape")).decode())
        keep_secret(base64.b64encode(info.encode(errors="surrogateescape")).decode())


def _show_path(path: str, keyed: bool, hidden: bool) -> str:
    if hidden and len(path) > 1:
        keep_secret(path)
        for part in path.split("/"):
            if len(part) >= MIN_VALUE:
                keep_secret(part)
        return f"/{HIDDEN}"
    folder, slash, key = path.rpartition("/")
    if keyed and slash and folder and key:
        keep_secret(key)
        return f"{folder}/{HIDDEN}"

    def hide(match: re.Match[str]) -> str:
        keep_secret(match["value"])
        return f"{match['name']}={HIDDEN}"

    return _IN_PATH.sub(hide, path)


def _show_value(part: str) -> str:
    name, equals, value = part.partition("=")
    if not equals:
        if len(name) >= MIN_VALUE:
            keep_secret(name)  # ?TOKEN
        return HIDDEN if name else ""
    if not value:
        return f"{name}="
    keep_secret(part)
    if len(value) >= MIN_VALUE or _IN_PATH.match(part):
        keep_secret(value)
    return f"{name}={HIDDEN}"


def host_of(address: Address) -> str:
    """Return the address's host, or "" if it has none. A camera may be named after the host."""
    try:
        return urlsplit(address.whole).hostname or ""
    except ValueError:
        return ""
