"""Command-line options made from the configuration tree."""

from __future__ import annotations

import typing
from collections.abc import Callable, Container, Sequence
from typing import Any

import click

from detector.config import flag_of, options

F = typing.TypeVar("F", bound=Callable[..., Any])


def options_from_config(command: F) -> F:
    """Adds one option for every leaf of the tree. Not given = absent (None), so that lower layers show through."""
    return options_but()(command)


def options_but(*absent: str, groups: Container[str] | None = None) -> Callable[[F], F]:
    """The same without some leaves, or of some groups only: for commands to which the others mean nothing."""
    chosen = [
        leaf for group, leaf in options() if leaf.name not in absent and (groups is None or group in groups)
    ]  # fmt: skip
    return lambda command: _with_options(command, chosen)


def _with_options(command: F, leaves: Sequence[Any]) -> F:
    for leaf in reversed(leaves):
        meta = leaf.metadata
        names = meta.get("flags", (flag_of(leaf),))
        if leaf.type in ("bool", bool):
            # A flag in a lower layer can be taken back: --no-sync. A name that is a negation already stands alone.
            declaration = names[0] if leaf.name.startswith("no_") else f"{names[0]}/--no-{names[0][2:]}"
            kind: dict[str, Any] = {"is_flag": True, "default": None}
            names = (declaration,)
        else:
            kind = {"default": None, "metavar": meta["metavar"]}
        command = click.option(*names, leaf.name, help=_help(leaf), hidden=meta.get("hidden", False), **kind)(command)
    return command


def _help(leaf: Any) -> str:
    text: str = leaf.metadata["help"]
    if leaf.default is None or isinstance(leaf.default, bool) or "auto" in text.lower() or ":" in text:
        return text
    return f"{text}  [default: {leaf.default}]"
