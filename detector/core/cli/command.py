"""The decorator that makes a command, and options made from the configuration tree."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from detector.core.cli.exits import exit_codes
from detector.core.cli.help import Files, GroupedOption, HelpfulCommand
from detector.core.cli.printing import check_standard_output, keep_others_out, print_json
from detector.core.config.schema import (
    choices_of,
    flag_of,
    help_of,
    option_groups,
    options,
    short_of,
)
from detector.core.errors import DetectVideoError
from detector.core.errors.guard import guarded
from detector.core.run.limits import blas_threads, check_threads
from detector.core.run.signals import Stopped

CONTEXT = {"help_option_names": ["-h", "--help"]}


def subcommand(
    *,
    options: Sequence[click.Option] = (),
    config_file: bool = False,
    json: str | None = None,
    quiet: str | None = None,
    interrupted: str = "stopped",
    light: bool = False,
    examples: Sequence[str] = (),
    cls: type[HelpfulCommand] = HelpfulCommand,
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Turn a function that returns an exit code (None: 0) into a command. A DetectVideoError
    becomes one line on stderr and its exit code (exits.py).

    ``options``: configuration options of the command. ``config_file`` adds --config. ``json``
    adds --json; its text names what is printed. ``quiet`` adds --quiet with this help text.
    ``interrupted``: the message if a signal ends the command. ``light``: the command imports no
    numpy and starts no threads. ``examples``: command lines for --help.
    """
    shared = list(options)
    if config_file:
        text = "YAML file of options. Flags on the command line override it."
        shared.append(
            click.Option(["--config", "config_file"], type=Files(), metavar="FILE", help=text)
        )
    if json is not None:
        text = f"Print {json} as one JSON document."
        shared.append(click.Option(["--json", "as_json"], is_flag=True, help=text))
    if quiet is not None:
        shared.append(click.Option(["--quiet", "-q"], is_flag=True, help=quiet))

    def make(body: Callable[..., int | None]) -> click.Command:
        @functools.wraps(body)
        def run(**given: Any) -> None:
            with exit_codes(interrupted), guarded():
                if not light:
                    check_threads(blas_threads())
                if given.get("as_json"):
                    check_standard_output({"--json": True})
                    keep_others_out()
                sys.exit(body(**given))

        command: HelpfulCommand = click.command(cls=cls, context_settings=CONTEXT)(run)
        command.params += shared
        command.examples = examples
        return command

    return make


@contextmanager
def errors_as_documents(as_json: bool) -> Iterator[None]:
    """If an error ends the block and --json is given, also print the error as a JSON document."""
    try:
        yield
    except (DetectVideoError, Stopped) as error:
        if as_json:
            reason = error.word if isinstance(error, Stopped) else str(error)
            print_json({"schema": 1, "exit": {"code": error.exit_code, "reason": reason}})
        raise


def config_options(
    *groups: str,
    but: Collection[str] = (),
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> list[click.Option]:
    """Make click options for options of the configuration. ``groups``: groups to include (none:
    all); ``but``: groups to exclude. ``only`` and ``without``: the same for single options. An
    option that the user does not give is None. ``defaults``: values that only the help shows."""
    own = defaults or {}
    return [
        _click_option(option_groups()[group].title, leaf, own.get(leaf.name, leaf.default))
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
    # --no-sync undoes ``sync: true`` of a file. An option named no_... has no such flag.
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
