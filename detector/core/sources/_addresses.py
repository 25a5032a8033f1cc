"""Parse addresses of objects in stores and on web servers, and say which credentials they need."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from detector.core.errors import UsageError
from detector.core.errors.addresses import Address

STORES = ("s3", "gs")  # stores map keys to objects, and can be listed and written
WEB = ("http", "https")  # web servers return single files
SCHEMES = (*STORES, *WEB)
FILE = "file://"
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_ANY = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")
MAGIC = re.compile(r"[*?[]")


class Addressed(Protocol):
    """A resource at an address. Its ``str`` contains no secrets."""

    @property
    def scheme(self) -> str: ...


class Location(NamedTuple):
    """A parsed address. ``host``: a bucket, or server and port. ``key``: all that follows."""

    scheme: str
    host: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}/{self.key}"

    @property
    def path(self) -> str:
        """Host and key as a relative path, percent-decoded for web servers."""
        key = unquote(self.key) if self.scheme in WEB else self.key
        return f"{self.host}/{key}"


def is_address(text: str) -> bool:
    """Return whether ``text`` has a scheme, or a chain of schemes (``a::b://``)."""
    return _ANY.match(text) is not None


def local_path(text: str) -> str:
    """Turn ``file:///a/b`` into ``/a/b``; keep other texts. Raises UsageError for file://HOST."""
    if not text.lower().startswith(FILE):
        return text
    path = text[len(FILE) :]
    if not path.startswith("/") or "::" in path:
        raise UsageError(f"{text}: write file:///PATH, or the path alone")
    return path


def parse_address(text: str) -> Location:
    """Parse an address. Raises UsageError for an unknown scheme, a chain or a secret."""
    match = _SCHEME.fullmatch(text)
    scheme = match["scheme"].lower() if match else ""
    shown = Address(text).shown  # ``Address`` registers secrets, so that messages hide them
    if match is None or scheme not in SCHEMES:
        raise UsageError(
            f"{shown}: a batch job reads only files, s3://, gs://, http:// and https://; mount the "
            "store, or copy its files to a folder"
        )
    rest = match["rest"]
    host, _, key = rest.partition("/")
    if "::" in rest:
        raise UsageError(
            f"{shown}: chained addresses (::) are not supported; give the plain address"
        )
    if "@" in host:
        raise UsageError(
            f"{shown}: a login in an address would be stored with the results; {_remedy(scheme)}"
        )
    if scheme in WEB and ("?" in rest or "#" in rest):
        raise UsageError(
            f'{shown}: the part after "?" or "#" may hold a signature or token, which would be '
            f"stored with the results and expire; omit that part, and {_remedy(scheme)}"
        )
    if not host or (scheme in STORES and MAGIC.search(host)):
        what = "server" if scheme in WEB else "bucket"
        raise UsageError(f"{shown}: names no {what}; write {scheme}://{what.upper()}/PATH")
    if not rest.isprintable() or "\\" in rest:
        raise UsageError(f"{shown}: holds control characters or a backslash; rename the object")
    if "?versionId=" in key:
        raise UsageError(f"{shown}: object versions are not supported; omit ?versionId=")
    return Location(scheme, host, key)


def _remedy(scheme: str) -> str:
    if scheme in WEB:
        return "put the login into ~/.netrc, or use s3:// and its credentials"
    return f"{credentials_of(scheme)}, in the environment of each worker"


def credentials_of(scheme: str) -> str:
    """Return a hint for a store that denies access: which credentials to set."""
    if scheme == "s3":
        return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if scheme == "gs":
        return "set GOOGLE_APPLICATION_CREDENTIALS to the file with the credentials"
    return "put the login into ~/.netrc"


class StoredVideo(str):
    """The address of a video to read by byte ranges. ``StoredSource`` claims only this type."""

    __slots__ = ()
