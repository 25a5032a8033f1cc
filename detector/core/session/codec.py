"""Read and write every JSON document of this program. A document is a tree of frozen dataclasses;
its type is its schema (docs/schema)."""

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

SCHEMA = 1  # raised when a key is removed or retyped, never when one is added
Document = TypeVar("Document")

# Limits of a document. A run of many hours writes some megabytes, nested five deep; its largest
# number is a time in nanoseconds.
MOST_BYTES = 64 << 20
DEEPEST = 50
LARGEST = 2**63


def to_builtins(document: Any) -> Any:
    """Return the document as dicts, lists, text and numbers, without UNSET fields."""
    import msgspec

    return msgspec.to_builtins(document, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """Turn a subclass of str (``types.Background``) into str. Raises TypeError otherwise."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be in a document")


def to_json(document: Any) -> str:
    """Encode as ASCII, indented by one. Infinities and NaN become null; secrets are hidden."""
    content = to_builtins(document)
    if has_secrets():
        content = _redacted(content)
    try:
        text = json.dumps(content, indent=1, ensure_ascii=True, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(content), indent=1, ensure_ascii=True, allow_nan=False)
    return text.replace("\x7f", "\\u007f") + "\n"


def _redacted(content: Any) -> Any:
    """Redact values, and keys of mappings too: some tables are keyed by source."""
    if isinstance(content, dict):
        return {
            key if str(key).isidentifier() else redact(str(key)): _redacted(value)
            for key, value in content.items()
        }
    if isinstance(content, list | tuple):
        return [_redacted(value) for value in content]
    return redact(content) if isinstance(content, str) else content


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def from_builtins(content: Any, kind: type[Document], origin: str | Path) -> Document:
    """Convert ``content`` to a document. Raises UsageError that names ``origin`` and the key."""
    import msgspec

    try:
        return msgspec.convert(content, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # a key that is not UTF-8
        raise UsageError(f"{origin}: damaged, or written by another version: {error}") from error


def from_json(text: str | bytes, kind: type[Document], origin: str | Path) -> Document:
    """Parse ``text`` as a document of ``kind``. Raises UsageError like ``from_builtins``."""
    return from_builtins(parse_json(text, origin), kind, origin)


def decode(text: bytes, kind: type[Document], origin: str | Path) -> Document:
    """Parse like ``from_json``, ten times faster: for many small, mostly valid documents."""
    import msgspec

    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return from_json(text, kind, origin)


def read_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a file of a session. Raises UsageError if it is not one, or too large."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for its writer
            raise UsageError(f"{path}: damaged: not a regular file")
        if found.st_size > most_bytes:
            raise UsageError(
                f"{path}: damaged: it has {found.st_size} bytes, but a run writes at most "
                f"{most_bytes}"
            )
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error


def parse_json(text: str | bytes, origin: str | Path) -> Any:
    """Parse ``text``. Raises UsageError that names ``origin`` and the key of a bad value."""
    content = parsing.parse_json(text, origin, cure="it is damaged", halves=True)
    for key, wrong in _impossible(content):
        raise UsageError(f"{origin}: damaged: {key} {wrong}")
    return content


def _impossible(content: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, error) of values that we never write. Not recursive: it may be deep."""
    places = [("$", 0, content)]
    while places:
        key, depth, group = places.pop()
        if not isinstance(group, dict | list):
            continue
        if depth == DEEPEST:
            yield key[:80], f"is nested more than {DEEPEST} deep"
            return
        for name, value in group.items() if isinstance(group, dict) else enumerate(group):
            if isinstance(value, dict | list):
                places.append((_key(key, name), depth + 1, value))
            elif isinstance(value, int | float) and not -LARGEST < value < LARGEST:
                yield _key(key, name), "is not a number that a run writes"


def _key(above: str, name: str | int) -> str:
    """Return ``$.loop[0].batch``, as msgspec names it, cut to fit into a line."""
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
    """Return the schema. ``subtypes``: base class -> classes that may appear in its place."""
    import msgspec

    subtypes = subtypes or {}
    kinds = [kind, *(each for group in subtypes.values() for each in group)]
    refs, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    dedent_descriptions(definitions)
    for base, group in subtypes.items():
        if base.__name__ in definitions:
            choices = [refs[kinds.index(each)] for each in group]
            definitions[base.__name__] = {"title": base.__name__, "anyOf": choices}
    return {**refs[0], "$defs": definitions}


def dedent_descriptions(schemas: dict[str, Any]) -> None:
    """Remove docstrings' indentation from descriptions, in place: Python up to 3.12 keeps it."""
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
