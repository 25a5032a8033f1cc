"""Command-line options made from the configuration tree."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click

from detector.config.schema import flag_of, options

F = typing.TypeVar("F", bound=Callable[..., Any])


def options_from_config(command: F) -> F:
    """Adds one option for every leaf of the tree. Not given = absent (None), so that lower layers show through."""
    return options_but()(command)


def options_but(
    without: Collection[str] = (), defaults: Mapping[str, Any] | None = None
) -> Callable[[F], F]:
    """The same for a command to which some options mean nothing, or that has ``defaults`` of its own for some."""

    def add(command: F) -> F:
        for _, leaf in reversed(list(options())):
            if leaf.name not in without:
                command = _added(command, leaf, (defaults or {}).get(leaf.name, leaf.default))
        return command

    return add


def options_of(
    *groups: str, only: Collection[str] | None = None, without: Collection[str] = ()
) -> Callable[[F], F]:
    """The same for some groups of the tree, or for the leaves ``only`` of them, but for those ``without``."""

    def add(command: F) -> F:
        for group, leaf in reversed(list(options())):
            if group in groups and leaf.name not in without and (only is None or leaf.name in only):
                command = _added(command, leaf, leaf.default)
        return command

    return add


def _added(command: F, leaf: Any, default: Any) -> F:
    meta = leaf.metadata
    names = meta.get("flags", (flag_of(leaf),))
    if leaf.type in ("bool", bool):
        # A flag in a lower layer can be taken back: --no-sync. A name that is a negation already stands alone.
        declaration = names[0] if leaf.name.startswith("no_") else f"{names[0]}/--no-{names[0][2:]}"
        kind: dict[str, Any] = {"is_flag": True, "default": None}
        names = (declaration,)
    else:
        kind = {"default": None, "metavar": meta["metavar"]}
    return click.option(
        *names, leaf.name, help=_help(leaf, default), hidden=meta.get("hidden", False), **kind
    )(command)


def _help(leaf: Any, default: Any) -> str:
    text: str = leaf.metadata["help"]
    if default is None or isinstance(default, bool) or "auto" in text.lower() or ":" in text:
        return text
    return f"{text}  [default: {default}]"


# ----------------------------------------------------------------------
# ``--track NAME`` of profile and report.

NAMES = ("mlflow", "tensorboard")  # those of report/trackers, without importing it for --help


def tracked(command: F) -> F:
    return click.option(
        "--track",
        "trackers",
        type=click.Choice(NAMES),
        multiple=True,
        help="Log figures, tables and the report with this run tracker; may stand several times.",
    )(command)


def check(trackers: Sequence[str]) -> None:
    """Raises UsageError for one whose library is absent."""
    if trackers:
        from detector.report.trackers import ready

        for name in trackers:
            ready(name)


def log_to(trackers: Sequence[str], session: Any) -> None:
    """Says where on stderr: stdout may be a document."""
    check(trackers)
    if trackers:
        from detector.report.trackers import track

        for name in trackers:
            click.echo(track(name, session), err=True)
