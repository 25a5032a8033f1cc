"""The one reader and the one writer of every JSON document that this program leaves.

A document is a tree of frozen dataclasses (or ``msgspec.Struct(frozen=True)`` where a JSON key is
no Python name). Its type is its schema: reading checks it, and docs/schema holds it as JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from detector.errors import UsageError

SCHEMA = 1  # raised when a key is removed or retyped, never when one is added
Document = TypeVar("Document")


def to_builtins(document: Any) -> Any:
    """The document as dicts, lists, text and numbers. UNSET fields are left out."""
    import msgspec

    return msgspec.to_builtins(document)


def to_json(document: Any) -> str:
    """The document as text, indented by one, ASCII only, with a line end."""
    return json.dumps(to_builtins(document), indent=1, ensure_ascii=True) + "\n"


def from_builtins(content: Any, kind: type[Document], origin: str | Path) -> Document:
    """``content`` as a document of ``kind``. Unknown keys are ignored.

    Raises UsageError that names ``origin`` (the file) and the key that is missing or wrong.
    """
    import msgspec

    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{origin}: damaged, or written by another version: {error}") from error


def from_json(text: str | bytes, kind: type[Document], origin: str | Path) -> Document:
    """``text`` as a document of ``kind``. Raises UsageError as ``from_builtins`` does."""
    return from_builtins(parse_json(text, origin), kind, origin)


def parse_json(text: str | bytes, origin: str | Path) -> Any:
    """The content of ``text``. Raises UsageError that names ``origin`` where it is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        line = " ".join(str(error).split())[:120]
        raise UsageError(f"{origin}: damaged: it is not JSON ({line})") from error


def check_schema(content: Any, origin: str | Path) -> None:
    """Raises UsageError where ``content`` is no document of the schema that this version reads."""
    if not isinstance(content, dict) or "schema" not in content:
        raise UsageError(f"{origin}: damaged, or not written by this program: it has no 'schema'")
    if content["schema"] != SCHEMA:
        raise UsageError(
            f"{origin}: written in schema {content['schema']!r}, but this version reads schema "
            f"{SCHEMA}; read it with the version that wrote it"
        )


def json_schema(
    kind: type[Any], subtypes: Mapping[type[Any], Sequence[type[Any]]] | None = None
) -> dict[str, Any]:
    """The JSON Schema of a document type. ``subtypes``: base class -> the classes that stand where
    the document has that base."""
    import msgspec

    subtypes = subtypes or {}
    kinds = [kind, *(each for group in subtypes.values() for each in group)]
    refs, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for base, group in subtypes.items():
        if base.__name__ in definitions:
            choices = [refs[kinds.index(each)] for each in group]
            definitions[base.__name__] = {"title": base.__name__, "anyOf": choices}
    return {**refs[0], "$defs": definitions}


def _refuse_constant(text: str) -> float:
    """NaN and Infinity are not JSON, and this program never writes them."""
    raise ValueError(f"{text} is not a JSON number")
