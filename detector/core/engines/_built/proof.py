"""Prove with an HMAC that a run of this account wrote a document. The account's secret key is in
``~/.cache/detect-video/cache.key`` (mode 0600). Without a key, an account that can write a built
file could also forge its manifest. If the key is lost, all files are built again."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detector.core.errors import UsageError
from detector.core.errors.parsing import parse_json
from detector.core.errors.private import (
    is_roots,
    open_own,
    read_own,
    user_cache,
    who_else_may_write,
)

FIELD = "proof"
KEY = "cache.key"
KEY_BYTES = 32
NAME_DIGITS = 12  # a file name contains this many digits of a digest
DOCUMENT_BYTES = 16 << 20  # larger than any manifest or list of measurements


keys: dict[str, bytes] = {}  # path of a key -> key; the environment may change the path


def why_not(path: Path, manifest: Mapping[str, Any]) -> str | None:
    """Return why a built file must not be used, or None if this account built it. A file that root
    owns in a folder that root owns needs no proof."""
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


def key_path() -> Path:
    return user_cache() / KEY


def is_sealed(name: str, document: Mapping[str, Any]) -> bool:
    """Return whether a run of this account sealed exactly this document under this name."""
    key, proof = find_key(), document.get(FIELD)
    if key is None or not isinstance(proof, str) or not proof.isascii():
        return False
    return hmac.compare_digest(proof, sign(key, name, without_proof(document)))


def without_proof(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != FIELD}


def sign(key: bytes, name: str, document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, os.fsencode(name) + b"\0" + text.encode(), hashlib.sha256).hexdigest()


def find_key() -> bytes | None:
    path = key_path()
    if str(path) not in keys and (key := read_key(path)) is not None:
        keys[str(path)] = key
    return keys.get(str(path))


def read_key(path: Path) -> bytes | None:
    try:
        stat = path.lstat()
        if stat.st_uid != os.geteuid() or stat.st_mode & 0o077 or who_else_may_write(path.parent):
            return None
        key = read_own(path, KEY_BYTES)
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None
