"""Open stores as fsspec file systems, once per process, and explain their errors."""

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

CONNECT_S, SILENT_S = 20.0, 30.0  # timeouts: for connecting, and while no byte arrives
# How often a library tries a request. With our own retries (_ranges.py), all tries take less than
# the 300 s after which the watchdog stops a worker. So the worker can report a silent server.
TRIES = 2
# Errors by name, so that botocore and google.auth need not be imported.
CREDENTIAL_ERRORS = (
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
# Amazon's codes for an expired token. The answer to a HEAD request only has the code 400.
EXPIRED_CODES = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "400")
NO_RETRIES = " (reached max retries: 0)"  # in botocore's errors; misleading, since s3fs retries
SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class ObjectInfo(NamedTuple):
    """An object's size, and a ``version`` that changes with its content."""

    size: int
    version: str


class StoreFailure(NamedTuple):
    """The meaning of a store's error. ``is_transient``: a retry may succeed."""

    text: str
    is_transient: bool


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

        store = fsspec.filesystem(scheme, skip_instance_cache=True, **_choose_settings(scheme))
        store.retries = TRIES  # s3fs retries for minutes by default
        return store
    except ImportError as error:
        package = {"s3": "s3fs", "gs": "gcsfs"}[scheme]
        raise EngineError(
            f"{scheme}:// needs {package}; install it with: pip install 'detect-video[{scheme}]'"
        ) from error
    except Exception as error:
        meaning = explain(error, scheme)
        raise SourceError(f"{scheme}://: {meaning.text}") from error


def _choose_settings(scheme: str) -> dict[str, Any]:
    if scheme == "s3":
        retries = {"mode": "standard", "total_max_attempts": 1}  # no retries, because s3fs retries
        timeouts = {"connect_timeout": CONNECT_S, "read_timeout": SILENT_S, "retries": retries}
        session = _create_aws_session()
        return {"use_listings_cache": False, "config_kwargs": timeouts, "session": session}
    return {"use_listings_cache": False}


def _create_aws_session() -> Any:
    """Return a session that parses dates fast, because every key in a listing has a date."""
    from aiobotocore.session import AioSession
    from botocore.utils import parse_timestamp

    def parse(value: Any) -> datetime:
        try:
            date = datetime.fromisoformat(value)
        except (TypeError, ValueError):  # other services write dates in other formats
            return parse_timestamp(value)  # type: ignore[no-any-return]
        return date if date.tzinfo is not None else date.replace(tzinfo=UTC)

    session = AioSession()
    factory = session.get_component("response_parser_factory")
    factory.set_parser_defaults(timestamp_parser=parse)
    return session


def path_in_store(place: Location) -> str:
    return f"{place.host}/{place.key}"


def to_info(info: Mapping[str, Any]) -> ObjectInfo:
    """Convert fsspec's description of an object. Raises SourceError if it states no size."""
    size = info.get("size")
    if size is None:
        raise SourceError("the server states no length, so byte ranges cannot be read")
    for name in ("generation", "ETag", "etag", "Last-Modified", "LastModified", "mtime", "created"):
        if value := info.get(name):
            tag = str(value).removeprefix("W/").strip('"')
            return ObjectInfo(int(size), f"{int(size)}-{tag}")
    return ObjectInfo(int(size), f"{int(size)}-")


def read_info(place: Location) -> ObjectInfo:
    """Return an object's size and version. Raises SourceError with a remedy in one line."""
    store = open_store(place)
    with store_errors(place):
        info = store.info(path_in_store(place))
        if info.get("type") == "directory":
            raise SourceError(f"{place}: no such object; check the address")
        return to_info(info)


@contextmanager
def store_errors(place: Location) -> Iterator[None]:
    """Convert a library's errors in the block to SourceError."""
    try:
        yield
    except DetectVideoError:
        raise
    except Exception as error:
        raise SourceError(f"{place}: {explain(error, place.scheme).text}") from error


def explain(error: BaseException, scheme: str) -> StoreFailure:
    status, code, name = _read_status(error), _read_code(error), type(error).__name__
    if code == "RequestTimeTooSkewed":
        return StoreFailure("the store refuses this machine's clock; set it right", False)
    is_denied = status in (401, 403) or name in CREDENTIAL_ERRORS or code in EXPIRED_CODES
    if is_denied or isinstance(error, PermissionError):
        return StoreFailure(
            f"no permission, or wrong credentials ({_reason(error)}); {credentials_of(scheme)}",
            False,
        )
    if status in (404, 410) or (isinstance(error, FileNotFoundError) and status is None):
        what = "bucket or object" if scheme in STORES else "file"
        return StoreFailure(f"no such {what}; check the address", False)
    if status == 412 or name in ("FileExpired", "ChangedError"):
        return StoreFailure("changed while it was read; run the job again", False)
    remedy = "check the address and the network"
    remedy += " and AWS_ENDPOINT_URL" if scheme == "s3" else ""
    is_transient = status is None or status >= 500 or status in (408, 429)
    return StoreFailure(f"the connection failed ({_reason(error)}); {remedy}", is_transient)


def _read_status(error: BaseException | None) -> int | None:
    while error is not None:
        response = getattr(error, "response", None)
        metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        status = metadata.get("HTTPStatusCode")  # botocore
        for name in ("status", "code"):  # aiohttp, gcsfs
            status = getattr(error, name, None) if status is None else status
        if isinstance(status, int) and 300 <= status < 600:
            return status
        error = error.__cause__
    return None


def _read_code(error: BaseException | None) -> str:
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and (code := response.get("Error", {}).get("Code")):
            return str(code)
        error = error.__cause__
    return ""


def _reason(error: BaseException) -> str:
    """Return the innermost reason, in one line."""
    while error.__cause__ is not None and not str(error.__cause__).isspace():
        error = error.__cause__
    text = " ".join(str(error).replace(NO_RETRIES, "").split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
