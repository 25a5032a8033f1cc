"""Seal the documents of built files with this account's key, and create the key if there is none.
proof.py checks the seals."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from detector.core.engines._built import proof
from detector.core.errors.private import FILE_MODE, make_private_folder, who_else_may_write
from detector.core.errors.writing import HIDDEN, sync_folder

_not_stored: dict[str, str] = {}  # path -> why this process's key is not stored there


def seal(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with its proof, which covers the file's ``name`` so that files cannot
    be swapped."""
    plain = json.loads(json.dumps(proof.without_proof(document)))
    return {**plain, proof.FIELD: proof.sign(proof.find_key() or _make_key(), name, plain)}


def why_key_not_stored() -> str | None:
    return _not_stored.get(str(proof.key_path()))


def _make_key() -> bytes:
    """Create and store a key. If it cannot be stored, it is valid in this process only."""
    path, key = proof.key_path(), secrets.token_bytes(proof.KEY_BYTES)
    try:
        key = _keep(path, key)
    except OSError as error:
        _not_stored[str(path)] = error.strerror or str(error)
    proof.keys[str(path)] = key
    return key


def _keep(path: Path, key: bytes) -> bytes:
    make_private_folder(path.parent)
    if (others := who_else_may_write(path.parent)) is not None:
        raise OSError(f"{path.parent}: {others}")
    if os.path.lexists(path):
        if (first := proof.read_key(path)) is not None:
            return first  # another run has created it since ``proof.find_key`` found none
        _refuse_foreign(path)
        path.unlink()  # it is truncated, a link, or other accounts can read it
    temporary = path.with_name(f"{HIDDEN}{secrets.token_hex(8)}")
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(file, "wb") as opened:
            opened.write(key)
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(temporary, path)  # a rename would replace a key that another run has stored
        except FileExistsError:
            return proof.read_key(path) or key
        except OSError:  # a file system without hard links
            os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return key


def _refuse_foreign(path: Path) -> None:
    owner = path.lstat().st_uid
    if owner != os.geteuid():  # under sudo, HOME may be the user's; that user's key must stay
        raise OSError(f"{path}: belongs to another account")
