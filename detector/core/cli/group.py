"""The click group of all commands of the core and the wings. ``detect`` is the default command."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from detector.core import __version__, wings
from detector.core.cli.help import ALL, FLAGS, TOPIC, HelpfulCommand, complete_files, widen
from detector.core.cli.printing import echo
from detector.core.errors import EXIT_USAGE
from detector.core.run.limits import blas_threads, check_threads

DEFAULT = "detect"
EXAMPLES = 6  # number of examples of detect that --help shows without a topic
HELP = "help"  # `help compare` means `compare --help`; --help does not list it as a command


def command_names() -> list[str]:
    """Return the names of all commands: ``commands/NAME.py`` of the core or a wing is ``NAME``."""
    return sorted(wings.commands())


class DefaultGroup(click.Group):
    """A group with a default: ``detect-video in.mp4`` means ``detect-video detect in.mp4``. A file
    with the name of a command must be given with a path, as ``./build``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return command_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in command_names():
            return None
        command: click.Command = wings.load(f"{wings.commands()[cmd_name]}:command")
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        widen(ctx)
        if ctx.resilient_parsing:  # a shell completes a word, so print nothing and raise no error
            return super().parse_args(ctx, _words_before(args))
        if not args:
            from detector.core.cli.help_text import SUMMARY

            for line in SUMMARY.splitlines():
                echo(line, err=True)
            ctx.exit(EXIT_USAGE)
        if args[0] == HELP and not os.path.lexists(HELP):
            of_command = args[1:2] and args[1] in command_names()
            args = [*args[1:], "--help"] if of_command else ["--help", *args[1:]]
        if args[0] in FLAGS:
            args = self._detect().take_topic(ctx, args)
        is_there = bool(args) and os.path.lexists(args[0])
        if args and not (is_there or args[0] in command_names() or args[0].startswith("-")):
            from detector.core.cli.habits import answer_habits

            args[0] = answer_habits(args, ctx, self._options_of(ctx)) or args[0]
        if args and args[0] not in command_names() and args[0] not in (*FLAGS, "--version"):
            check_threads(blas_threads())  # the following code imports numpy
            if not is_there:
                from detector.core.cli.habits import refuse_model_name

                _refuse_misspelt(args[0], ctx)
                refuse_model_name(args[0], ctx)
            args.insert(0, DEFAULT)
        if args[0] == DEFAULT and any("=" in word for word in args[1:]):
            from detector.core.cli.habits import refuse_assignments

            refuse_assignments(args[1:], ctx, self._options_of(ctx))
        return super().parse_args(ctx, args)

    def _options_of(self, ctx: click.Context) -> Callable[[str], dict[str, bool]]:
        """Return a function that imports the command of a given name and returns its options."""
        from detector.core.cli.habits import list_options

        def known(name: str) -> dict[str, bool]:
            command = self.get_command(ctx, name)
            return {} if command is None else list_options(command)

        return known

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete words. List files first, because bash drops what is listed before them."""
        detect = self._detect()
        items = super().shell_complete(ctx, incomplete)
        items += detect.shell_complete(click.Context(detect), incomplete)
        words = list({item.value: item for item in items}.values())
        return words if incomplete.startswith("-") else [*complete_files(incomplete), *words]

    def _detect(self) -> HelpfulCommand:
        detect = self.get_command(click.Context(self), DEFAULT)
        assert isinstance(detect, HelpfulCommand)
        return detect

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(TOPIC, ALL) == ALL:
            super().format_help(ctx, formatter)
        else:
            self.format_usage(ctx, formatter)
            self._detect().format_options(ctx, formatter)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[COMMAND] [OPTIONS] SOURCE...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the options of ``detect``, which most users look for, then the commands."""
        from detector.core.cli.help_text import write_examples

        detect, has_topic = self._detect(), TOPIC in ctx.meta
        write_examples(detect.examples if has_topic else detect.examples[:EXAMPLES], formatter)
        detect.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if TOPIC not in ctx.meta:
            return
        with formatter.section("Exit codes"):
            formatter.write_text(
                "0 done; 1 internal error; 2 usage; 3 source; 4 model or weights; 5 engine; "
                "6 output; 7 finished, but frames were bad, the file ended early, or items of a "
                "batch failed; 8 a gate failed; 129 hung up; 130 interrupted; 143 terminated."
            )


def _words_before(args: list[str]) -> list[str]:
    """Return the words before the completed one, beginning with the command that they imply."""
    from detector.core.config.elsewhere import WORDS

    if not args or args[0] in (*FLAGS, "--version"):
        return args
    if args[0] in command_names():
        return args
    ours = WORDS.get(args[0], "")
    return [ours, *args[1:]] if ours in command_names() else [DEFAULT, *args]


def _refuse_misspelt(word: str, ctx: click.Context) -> None:
    """Raise UsageError for a mistyped command such as ``profle``, but not for ``profle.mp4``."""
    close = difflib.get_close_matches(word, command_names(), n=1, cutoff=0.75)
    if close and word.isidentifier():
        raise click.UsageError(f"No such command or file '{word}'. Did you mean '{close[0]}'?", ctx)


def _print_version(ctx: click.Context, _option: click.Parameter, is_given: bool) -> None:
    if is_given:
        from detector.core.run.environment import find_commit

        commit = find_commit()
        echo(f"detect-video, version {__version__}" + (f", commit {commit}" if commit else ""))
        ctx.exit()


@click.group(cls=DefaultGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
def cli(**_: Any) -> None:
    """Find objects in videos, and see where each millisecond goes.

    SOURCE: file, folder, glob, - (stdin), rtsp://..., 0 (webcam), cameras.yaml.
    """
