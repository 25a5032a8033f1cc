"""Command-line options made from the configuration tree."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any

import click

from detector.config import flag_of, options

F = typing.TypeVar("F", bound=Callable[..., Any])


def options_from_config(command: F) -> F:
    """Adds one option for every leaf of the tree. Not given = absent (None), so that lower layers show through."""
    return options_of()(command)


def options_of(*groups: str, only: Collection[str] | None = None, without: Collection[str] = ()) -> Callable[[F], F]:
    """The same for some groups of the tree, or for the leaves ``only`` of them, but for those ``without``."""

    def add(command: F) -> F:
        wanted = [leaf for group, leaf in options() if not groups or group in groups]
        return _with_options(
            command, [leaf for leaf in wanted if leaf.name not in without and (only is None or leaf.name in only)]
        )

    return add


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
