"""Stores as file systems of fsspec, each opened once per process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from detector.core.errors import DetectVideoError, EngineError, SourceError
from detector.core.errors.secrets import keep_secret
from detector.core.sources._addresses import STORES, Location, credentials_of

CONNECT_S, SILENT_S = 20.0, 30.0  # to connect; without a byte
# Retries by the libraries. With ours (_ranges.py), a silent server is given up before the watchdog
# ends the worker (300 s), so that the error names it.
TRIES = 2
# Names of errors, so that neither botocore nor google.auth is imported for them.
NOT_LET_IN = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
    "SSOTokenLoadError",
    "DefaultCredentialsError",
    "RefreshError",
)
# Amazon's codes for an expired token; a HEAD request only gets 400.
RUN_OUT = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "400")
NO_RETRIES = " (reached max retries: 0)"  # s3fs retries, not botocore
SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class ObjectInfo(NamedTuple):
    """Facts about an object. ``version``: size and ETag, generation or date: its identity."""

    size: int
    version: str


class Trouble(NamedTuple):
    """The meaning of a store's error. ``passes``: a retry may succeed."""

    text: str
    passes: bool


def open_store(place: Location) -> Any:
    """Return the file system (fsspec) of ``place``. Raises EngineError if a package is missing."""
    return _open(place.scheme)


@cache
def _open(scheme: str) -> Any:
    for name in SECRETS:
        if value := os.environ.get(name):
            keep_secret(value)
    try:
        import fsspec

        store = fsspec.filesystem(scheme, skip_instance_cache=True, **_settings(scheme))
        store.retries = TRIES  # of s3fs, which retries for minutes by default
        return store
    except ImportError as error:
        package = {"s3": "s3fs", "gs": "gcsfs"}[scheme]
        raise EngineError(
            f"{scheme}:// needs {package}; install it with: pip install 'detect-video[{scheme}]'"
        ) from error
    except Exception as error:
        trouble = explain(error, scheme)
        raise SourceError(f"{scheme}://: {trouble.text}") from error


def _settings(scheme: str) -> dict[str, Any]:
    if scheme == "s3":
        retries = {"mode": "standard", "total_max_attempts": 1}  # s3fs retries around it
        timeouts = {"connect_timeout": CONNECT_S, "read_timeout": SILENT_S, "retries": retries}
        session = _session_of_aws()
        return {"use_listings_cache": False, "config_kwargs": timeouts, "session": session}
    return {"use_listings_cache": False}


def _session_of_aws() -> Any:
    """Return a session that parses dates fast: each key of a listing has one."""
    from aiobotocore.session import AioSession
    from botocore.utils import parse_timestamp

    def parse(value: Any) -> datetime:
        try:
            found = datetime.fromisoformat(value)
        except (TypeError, ValueError):  # other services use other formats
            return parse_timestamp(value)  # type: ignore[no-any-return]
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

    session = AioSession()
    factory = session.get_component("response_parser_factory")
    factory.set_parser_defaults(timestamp_parser=parse)
    return session


def forget_stores() -> None:
    """Close the stores; the next opening reads the environment again."""
    _open.cache_clear()


def path_in_store(place: Location) -> str:
    return f"{place.host}/{place.key}"


def about_of(info: Mapping[str, Any]) -> ObjectInfo:
    """Convert a file system's description of an object. Raises SourceError if it lacks a size."""
    size = info.get("size")
    if size is None:
        raise SourceError("the server states no length, so byte ranges cannot be read")
    for name in ("generation", "ETag", "etag", "Last-Modified", "LastModified", "mtime", "created"):
        if value := info.get(name):
            return ObjectInfo(int(size), f"{int(size)}-{_bare(value)}")
    return ObjectInfo(int(size), f"{int(size)}-")


def _bare(value: object) -> str:
    return str(value).removeprefix("W/").strip('"')


def look(place: Location) -> ObjectInfo:
    """Describe one object. Raises SourceError, one line with the remedy."""
    store = open_store(place)
    with store_errors(place):
        info = store.info(path_in_store(place))
        if info.get("type") == "directory":
            raise SourceError(f"{place}: no such object; check the address")
        return about_of(info)


@contextmanager
def store_errors(place: Location) -> Iterator[None]:
    """Turn errors of a library in the block into a SourceError."""
    try:
        yield
    except DetectVideoError:
        raise
    except Exception as error:
        raise SourceError(f"{place}: {explain(error, place.scheme).text}") from error


def explain(error: BaseException, scheme: str) -> Trouble:
    status, name = _status(error), type(error).__name__
    if _code(error) == "RequestTimeTooSkewed":
        return Trouble("the store refuses this machine's clock; set it right", False)
    let_in = status not in (401, 403) and name not in NOT_LET_IN and _code(error) not in RUN_OUT
    if not let_in or isinstance(error, PermissionError):
        return Trouble(
            f"no permission, or wrong credentials ({_words(error)}); {credentials_of(scheme)}",
            False,
        )
    if status in (404, 410) or (isinstance(error, FileNotFoundError) and status is None):
        what = "bucket or object" if scheme in STORES else "file"
        return Trouble(f"no such {what}; check the address", False)
    if status == 412 or name in ("FileExpired", "ChangedError"):
        return Trouble("changed while it was read; run the job again", False)
    cure = "check the address and the network" + (" and AWS_ENDPOINT_URL" if scheme == "s3" else "")
    passes = status is None or status >= 500 or status in (408, 429)
    return Trouble(f"the connection failed ({_words(error)}); {cure}", passes)


def _status(error: BaseException | None) -> int | None:
    while error is not None:
        response = getattr(error, "response", None)
        of_boto = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        found = of_boto.get("HTTPStatusCode")
        for name in ("status", "code"):  # of aiohttp, of gcsfs
            found = getattr(error, name, None) if found is None else found
        if isinstance(found, int) and 300 <= found < 600:
            return found
        error = error.__cause__
    return None


def _code(error: BaseException | None) -> str:
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and (code := response.get("Error", {}).get("Code")):
            return str(code)
        error = error.__cause__
    return ""


def _words(error: BaseException) -> str:
    """Return the innermost reason, in one line."""
    while error.__cause__ is not None and not str(error.__cause__).isspace():
        error = error.__cause__
    text = " ".join(str(error).replace(NO_RETRIES, "").split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
