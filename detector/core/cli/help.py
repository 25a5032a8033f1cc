"""What --help shows: options in groups, examples; and what a shell completes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from detector.core.cli.habits import answer_option, refuse_split_lists

SUMMARY = """\
detect-video SOURCE...         find objects: writes SOURCE-detected.mp4 and .jsonl
detect-video profile SOURCE    where every millisecond goes, and what to change first
detect-video compare SOURCE    engines and precisions in turn, on the same frames
detect-video eval DATASET      how right a model is, against labels
detect-video doctor            what can run on this machine
detect-video --help            every option and command, with examples"""


class GroupedOption(click.Option):
    """An option that --help lists under ``group``. A shell completes its value from ``words``."""

    def __init__(
        self,
        *given: Any,
        group: str = "",
        words: Callable[[], Sequence[str]] | None = None,
        bare: str | None = None,
        **more: Any,
    ) -> None:
        """``bare``: the value where none of ``words`` follows the flag."""
        super().__init__(*given, **more)
        self.group, self.words, self.bare = group, words, bare

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if self.words is None or not (words := self.words()):
            return complete_files(incomplete)
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + word) for word in words if word.startswith(last)]


def complete_files(incomplete: str) -> list[CompletionItem]:
    """Leaves the word to the shell, which knows its own way to write a path."""
    return [CompletionItem(incomplete, type="file")]


class Files(click.types.StringParamType):
    """Text that is a path, most of the time: a shell completes files."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return complete_files(incomplete)


class Models(Files):
    """A file, or the name of a known model."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from detector.core.models.catalogue import known

        names = [CompletionItem(name) for name in known() if name.startswith(incomplete)]
        return complete_files(incomplete) + names


class HelpfulCommand(click.Command):
    """A command whose --help has groups and examples, and which knows other programs' options."""

    examples: Sequence[str] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = self._with_bare(ctx, args)
        try:
            rest = super().parse_args(ctx, [*args])
        except click.NoSuchOption as error:
            if answer := answer_option(error.option_name, args, ctx):
                raise click.UsageError(answer, ctx) from None
            raise
        if not ctx.resilient_parsing:
            refuse_split_lists(args, ctx.params.get("sources") or (), ctx)
        return rest

    def _with_bare(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        """With the value of each flag that may stand without one."""
        bare = {
            flag: one
            for one in self.get_params(ctx)
            if isinstance(one, GroupedOption) and one.bare is not None and one.words is not None
            for flag in one.opts
        }
        given = []
        for word, following in zip(args, [*args, ""][1:], strict=True):
            one = bare.get(word)
            alone = one is not None and one.words is not None and following not in one.words()
            given.append(f"{word}={one.bare}" if one is not None and alone else word)
        return given

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                group = getattr(parameter, "group", "") or "Options"
                groups.setdefault(group, []).append(record)
        general = groups.pop("Options", None)
        for title, rows in [*groups.items(), *([("Options", general)] if general else [])]:
            with formatter.section(title):
                formatter.write_dl(rows, col_max=26)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)


def write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    """``COMMAND  # what for`` lines, whole: a wrapped command line cannot be copied."""
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")


def widen(ctx: click.Context) -> None:
    """Help takes the terminal's width; a pipe gets 100 columns."""
    width = shutil.get_terminal_size((100, 24)).columns
    ctx.terminal_width = max(40, min(width, 140)) - 1
