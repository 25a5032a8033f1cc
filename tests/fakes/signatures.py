"""pybind11's signatures, as the API files hold them, bound to arguments: a wrong name, count or
type is a TypeError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

REQUIRED = object()


class Parameter(NamedTuple):
    name: str
    type: str
    default: Any


class Signature(NamedTuple):
    text: str
    parameters: tuple[Parameter, ...]  # without self
    result: str


@cache  # a machine is made for each test, of the same thousands
def parse(text: str) -> Signature:
    """``build(self: Builder, network:

    INetworkDefinition, flags: typing.SupportsInt = 0) -> IHostMemory``
    """
    opening, closing = (
        text.index("("),
        text.rindex(")", 0, text.rindex("->") if "->" in text else None),
    )
    parts = [part for part in _split(text[opening + 1 : closing]) if part]
    parameters = tuple(_parameter(part) for part in parts if not part.startswith("self"))
    return Signature(text, parameters, text[closing + 1 :].replace("->", "").strip())


def _split(text: str) -> list[str]:
    """By the commas outside of brackets."""
    parts, depth, last = [], 0, ""
    for character in text:
        depth += (character in "[<(") - (character in "]>)")
        if character == "," and depth == 0:
            parts.append(last.strip())
            last = ""
        else:
            last += character
    return [*parts, last.strip()]


def _parameter(text: str) -> Parameter:
    name, _, rest = text.partition(":")
    kind, found, default = rest.partition(" = ")
    return Parameter(name.strip(), kind.strip(), _default(default.strip()) if found else REQUIRED)


def _default(text: str) -> Any:
    if match := re.fullmatch(r"<(\w[\w.]*)\.(\w+): -?\d+>", text):
        return match  # an enum's member: whoever needs it looks it up
    return {"None": None, "True": True, "False": False}.get(
        text, int(text) if re.fullmatch(r"-?\d+", text) else text
    )


def bind(
    signatures: Sequence[Signature], args: tuple, kwargs: dict, fits: Callable[[str, Any], bool]
) -> dict[str, Any]:
    """Arguments by name, by the first overload that takes them.

    Raises TypeError as pybind11 does.
    """
    for signature in signatures:
        bound = _bind(signature, args, kwargs, fits)
        if bound is not None:
            return bound
    wanted = "; ".join(signature.text for signature in signatures)
    raise TypeError(
        f"incompatible function arguments. Supported: {wanted}. Invoked with: {args}, {kwargs}"
    )


def _bind(
    signature: Signature, args: tuple, kwargs: dict, fits: Callable[[str, Any], bool]
) -> dict[str, Any] | None:
    names = [parameter.name for parameter in signature.parameters]
    if len(args) > len(names) or not set(kwargs) <= set(names[len(args) :]):
        return None
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    bound = {}
    for parameter in signature.parameters:
        value = given.get(parameter.name, parameter.default)
        if value is REQUIRED:
            return None
        left_out = parameter.name not in given or (value is None and parameter.default is None)
        if not left_out and not fits(parameter.type, value):
            return None
        bound[parameter.name] = value
    return bound
