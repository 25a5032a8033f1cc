"""Command-line options made from the configuration tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import click

from detector.core.cli.help import GroupedOption
from detector.core.config.schema import TITLES, choices_of, flag_of, help_of, options, short_of


def config_options(
    *groups: str,
    but: Collection[str] = (),
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> list[click.Option]:
    """Make options from the configuration. Options that are not given are None. ``groups``,
    ``but``: groups to include, exclude; ``only``, ``without``: options. ``defaults``: for help."""
    own = defaults or {}
    return [
        _click_option(TITLES[group], leaf, own.get(leaf.name, leaf.default))
        for group, leaf in options()
        if (not groups or group in groups)
        and group not in but
        and leaf.name not in without
        and (only is None or leaf.name in only)
    ]


def _click_option(title: str, leaf: dataclasses.Field[Any], default: Any) -> click.Option:
    meta = leaf.metadata
    names = list(meta.get("flags", (flag_of(leaf),)))
    text, hidden = _add_default(help_of(leaf), default), meta.get("hidden", False)
    shown = {"short": short_of(leaf), "common": meta.get("common", False)}
    if leaf.type not in ("bool", bool):
        return GroupedOption(
            [*names, leaf.name],
            default=None,
            metavar=meta["metavar"],
            help=text,
            hidden=hidden,
            group=title,
            words=lambda: choices_of(leaf),
            bare=meta.get("bare"),
            **shown,
        )
    # --no-sync undoes --sync of a lower level. An option named no_... has no such flag.
    if not leaf.name.startswith("no_"):
        names = [f"{names[0]}/--no-{names[0].removeprefix('--')}"]
    return GroupedOption(
        [*names, leaf.name],
        is_flag=True,
        default=None,
        help=text,
        hidden=hidden,
        group=title,
        **shown,
    )


def _add_default(text: str, default: Any) -> str:
    plain = default is None or isinstance(default, bool)
    return text if plain else f"{text}  [default: {default}]"
