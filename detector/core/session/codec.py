"""Read and write every JSON document of this program. A document is a tree of frozen dataclasses.
Its types define its schema (docs/schema)."""

from __future__ import annotations

import inspect
import json
import math
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from detector.core.errors import UsageError, parsing
from detector.core.errors.secrets import has_secrets, redact

SCHEMA = 1  # increased if a key is removed or gets another type, but not if a key is added
Document = TypeVar("Document")

# Limits of a document. A run of many hours writes some megabytes, nested five deep. Its largest
# numbers are times in nanoseconds.
MOST_BYTES = 64 << 20
MAX_DEPTH = 50
LARGEST = 2**63


def to_builtins(document: Any) -> Any:
    """Return the document as dicts, lists, text and numbers, without UNSET fields."""
    import msgspec

    return msgspec.to_builtins(document, enc_hook=_to_str)


def _to_str(value: Any) -> Any:
    """Convert a subclass of str (``types.Background``) to str. Raises TypeError for other types."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be in a document")


def to_json(document: Any, indent: int | None = 1) -> str:
    """Encode as ASCII. Infinities and NaN become null; secrets are hidden. ``indent``: spaces; None
    writes one line, in a tenth of the time."""
    content = to_builtins(document)
    if has_secrets():
        content = _redact_content(content)
    try:
        text = json.dumps(content, indent=indent, ensure_ascii=True, allow_nan=False)
    except ValueError:
        text = json.dumps(
            _replace_infinities(content), indent=indent, ensure_ascii=True, allow_nan=False
        )
    return text.replace("\x7f", "\\u007f") + "\n"


def _redact_content(content: Any) -> Any:
    """Hide secrets in values, and in keys too: in some tables, sources are keys."""
    if isinstance(content, dict):
        return {
            key if str(key).isidentifier() else redact(str(key)): _redact_content(value)
            for key, value in content.items()
        }
    if isinstance(content, list | tuple):
        return [_redact_content(value) for value in content]
    return redact(content) if isinstance(content, str) else content


def _replace_infinities(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _replace_infinities(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_replace_infinities(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def from_builtins(content: Any, kind: type[Document], origin: str | Path) -> Document:
    """Convert ``content`` to a document. Raises UsageError, which names ``origin`` and the key."""
    import msgspec

    try:
        return msgspec.convert(content, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: a key is not UTF-8
        raise UsageError(f"{origin}: damaged, or written by another version: {error}") from error


def from_json(text: str | bytes, kind: type[Document], origin: str | Path) -> Document:
    """Parse ``text`` as a document of ``kind``. Raises UsageError like ``from_builtins``."""
    return from_builtins(parse_json(text, origin), kind, origin)


def decode(text: bytes, kind: type[Document], origin: str | Path) -> Document:
    """Parse like ``from_json``, but ten times as fast if the document is valid."""
    import msgspec

    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return from_json(text, kind, origin)


def read_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a file of a session. Raises UsageError if it is not a regular file or too large."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for its writer
            raise UsageError(f"{path}: damaged: not a regular file")
        if status.st_size > most_bytes:
            raise UsageError(
                f"{path}: damaged: it has {status.st_size} bytes, but a run writes at most "
                f"{most_bytes}"
            )
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error


def parse_json(text: str | bytes, origin: str | Path) -> Any:
    """Parse ``text``. The UsageError for a bad value names ``origin`` and the value's key."""
    content = parsing.parse_json(text, origin, cure="it is damaged", surrogates=True)
    for key, reason in _find_impossible(content):
        raise UsageError(f"{origin}: damaged: {key} {reason}")
    return content


def _find_impossible(content: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, error) of values that no run writes. Uses no recursion, so any depth is safe."""
    pending = [("$", 0, content)]
    while pending:
        key, depth, container = pending.pop()
        if not isinstance(container, dict | list):
            continue
        if depth == MAX_DEPTH:
            yield key[:80], f"is nested more than {MAX_DEPTH} deep"
            return
        for name, value in (
            container.items() if isinstance(container, dict) else enumerate(container)
        ):
            if isinstance(value, dict | list):
                pending.append((_join_key(key, name), depth + 1, value))
            elif isinstance(value, int | float) and not -LARGEST < value < LARGEST:
                yield _join_key(key, name), "is not a number that a run writes"


def _join_key(above: str, name: str | int) -> str:
    """Return a key in msgspec's form, ``$.loop[0].batch``. Cut a long name."""
    return f"{above}[{name}]" if isinstance(name, int) else f"{above}.{name[:80]}"


def check_schema(content: Any, origin: str | Path) -> None:
    if not isinstance(content, dict) or "schema" not in content:
        raise UsageError(f"{origin}: damaged, or not written by this program: it has no 'schema'")
    if content["schema"] != SCHEMA:
        raise UsageError(
            f"{origin}: written in schema {parsing.quote(content['schema'])}, but this version "
            f"reads schema {SCHEMA}; read it with the version that wrote it"
        )


def json_schema(
    kind: type[Any], subtypes: Mapping[type[Any], Sequence[type[Any]]] | None = None
) -> dict[str, Any]:
    """Return a type's JSON Schema. ``subtypes``: base class -> classes that may replace it."""
    import msgspec

    subtypes = subtypes or {}
    kinds = [kind, *(each for container in subtypes.values() for each in container)]
    refs, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    dedent_descriptions(definitions)
    for base, container in subtypes.items():
        if base.__name__ in definitions:
            choices = [refs[kinds.index(each)] for each in container]
            definitions[base.__name__] = {"title": base.__name__, "anyOf": choices}
    return {**refs[0], "$defs": definitions}


def dedent_descriptions(schemas: dict[str, Any]) -> None:
    """Remove, in place, the indentation that Python up to 3.12 leaves in docstrings."""
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
