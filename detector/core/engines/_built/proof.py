"""Prove that a run of this account wrote a document, with a digest keyed by the account's secret
``~/.cache/detect-video/cache.key`` (mode 0600). Without a key, an account that can write a built
file could also forge its manifest. If the key is lost, everything is built again."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from detector.core.errors import UsageError
from detector.core.errors.parsing import parse_json
from detector.core.errors.private import (
    FILE_MODE,
    is_roots,
    make_private_folder,
    open_own,
    read_own,
    user_cache,
    who_else_may_write,
)
from detector.core.errors.writing import HIDDEN, sync_folder

FIELD = "proof"
KEY = "cache.key"
KEY_BYTES = 32
NAME_DIGITS = 12  # length of the part of a digest that is in a file name
DOCUMENT_BYTES = 16 << 20  # larger than any manifest or list of measurements


_keys: dict[str, bytes] = {}  # path -> key; the path may change with the environment
_not_stored: dict[str, str] = {}  # path -> why this process's key is not stored there


def why_not(path: Path, manifest: Mapping[str, Any]) -> str | None:
    """Return why a built file must not be used, to be shown after "FILE: "; None if this account
    built it. Root's file in root's folder needs no proof."""
    document = path.with_suffix(".json")
    if not manifest:
        return "it has no readable manifest"
    if (reason := why_not_document(document, manifest)) is not None:
        return reason
    digest, key = manifest.get("file_sha256"), manifest.get("key")
    name = key_digest(key) if isinstance(key, dict) else digest
    if not isinstance(name, str) or not path.stem.endswith(f"-{name[:NAME_DIGITS]}"):
        return "its manifest belongs to another file"
    if (reason := why_not_content(path, digest)) is not None:
        return reason
    if (apart := manifest.get("apart")) is None:
        return None
    if not isinstance(apart, dict) or not isinstance(apart.get("file"), str):
        return "its manifest is damaged"
    weights = path.with_name(Path(apart["file"]).name)
    reason = why_not_content(weights, apart.get("sha256"))
    return None if reason is None else f"its weights, {weights.name}: {reason}"


def why_not_document(path: Path, document: Mapping[str, Any]) -> str | None:
    if path.is_symlink():
        return f"{path.name} is a link"
    if (others := who_else_may_write(path)) is not None:
        return f"{path.name}: {others}"
    if is_sealed(path.name, document):
        return None
    if os.geteuid() and document and is_roots(path) and is_roots(path.parent):
        return None
    return f"{path.name} lacks proof that this account wrote it"


def why_not_content(path: Path, digest: object) -> str | None:
    if path.is_symlink():
        return "it is a link"
    if (others := who_else_may_write(path)) is not None:
        return others
    try:
        return None if file_digest(path) == digest else "its content does not match its manifest"
    except OSError as error:
        return describe_error(error)


def describe_error(error: OSError) -> str:
    return f"it cannot be read ({error.strerror or error})"


def key_digest(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def as_object(content: bytes, path: Path) -> dict[str, Any]:
    try:
        document = parse_json(content, path)
    except UsageError:
        return {}
    return document if isinstance(document, dict) else {}


def file_digest(path: Path) -> str:
    with os.fdopen(open_own(path), "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- The key, and signing


def key_path() -> Path:
    return user_cache() / KEY


def seal(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with its proof, which covers the file's ``name`` so that files cannot
    be swapped."""
    plain = json.loads(json.dumps(without_proof(document)))
    return {**plain, FIELD: _sign(_find_key() or _make_key(), name, plain)}


def is_sealed(name: str, document: Mapping[str, Any]) -> bool:
    """Return whether a run of this account sealed exactly this document under this name."""
    key, proof = _find_key(), document.get(FIELD)
    if key is None or not isinstance(proof, str) or not proof.isascii():
        return False
    return hmac.compare_digest(proof, _sign(key, name, without_proof(document)))


def without_proof(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != FIELD}


def why_key_not_stored() -> str | None:
    return _not_stored.get(str(key_path()))


def _sign(key: bytes, name: str, document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, os.fsencode(name) + b"\0" + text.encode(), hashlib.sha256).hexdigest()


def _find_key() -> bytes | None:
    path = key_path()
    if str(path) not in _keys and (key := _read(path)) is not None:
        _keys[str(path)] = key
    return _keys.get(str(path))


def _make_key() -> bytes:
    """Create and store a key. If it cannot be stored, it is valid in this process only."""
    path, key = key_path(), secrets.token_bytes(KEY_BYTES)
    try:
        key = _keep(path, key)
    except OSError as error:
        _not_stored[str(path)] = error.strerror or str(error)
    _keys[str(path)] = key
    return key


def _keep(path: Path, key: bytes) -> bytes:
    make_private_folder(path.parent)
    if (others := who_else_may_write(path.parent)) is not None:
        raise OSError(f"{path.parent}: {others}")
    if os.path.lexists(path):
        if (first := _read(path)) is not None:
            return first  # created since ``_find_key``
        _refuse_foreign(path)
        path.unlink()  # other accounts can read it, it is truncated, or a link
    temporary = path.with_name(f"{HIDDEN}{secrets.token_hex(8)}")
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(file, "wb") as opened:
            opened.write(key)
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, it fails if another run has stored a key
        except FileExistsError:
            return _read(path) or key
        except OSError:  # a file system without hard links
            os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return key


def _refuse_foreign(path: Path) -> None:
    owner = path.lstat().st_uid
    if owner != os.geteuid():  # under sudo, which may keep HOME, the user's key must stay
        raise OSError(f"{path}: belongs to another account")


def _read(path: Path) -> bytes | None:
    try:
        stat = path.lstat()
        if stat.st_uid != os.geteuid() or stat.st_mode & 0o077 or who_else_may_write(path.parent):
            return None
        key = read_own(path, KEY_BYTES)
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None
