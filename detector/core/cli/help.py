"""Commands that take a topic after --help, and options whose values a shell completes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import CompletionItem

ALL = "all"
FLAGS = ("--help", "-h")
TOPIC = f"{__name__}.topic"  # under this key, ``Context.meta`` has the topic of --help
OF_CLASSES = ("classes", "blur")  # options that take names of classes
MOST_LISTED = 20  # if a command has more options, --help lists only some of them


class GroupedOption(click.Option):
    """An option that --help lists under ``group``. A shell completes its value from ``words``."""

    def __init__(
        self,
        *given: Any,
        group: str = "",
        words: Callable[[], Sequence[str]] | None = None,
        bare: str | None = None,
        short: str = "",
        common: bool = False,
        **more: Any,
    ) -> None:
        """``bare``: the value if the flag has none. ``common``: --help without a topic shows it."""
        super().__init__(*given, **more)
        self.group, self.words, self.bare = group, words, bare
        self.short, self.common = short, common

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        words = (self.words and self.words()) or _names_for(self.name, ctx)
        if not words or self.name == "model":
            return complete_files(incomplete, words)
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + word) for word in words if word.startswith(last)]


def _names_for(option: str | None, ctx: click.Context) -> Sequence[str]:
    """Return known models, or the class names of the model on the command line."""
    from detector.core.models.catalogue import known, known_model

    if option == "model":
        return known()
    model = str(ctx.params.get("model") or "street")
    if option not in OF_CLASSES or model not in known():
        return ()
    from detector.core.models.names import read_names

    file = known_model(model).names
    return () if file is None else read_names(file)


def complete_files(incomplete: str, words: Sequence[str] = ()) -> list[CompletionItem]:
    """Make the shell complete paths as well as ``words``."""
    items = [CompletionItem(word) for word in words if word.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *items]


class Files(click.types.StringParamType):
    """Text that is usually a path. A shell completes it with the names of files."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return complete_files(incomplete)


class Models(Files):
    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from detector.core.models.catalogue import known

        return complete_files(incomplete, known())


class HelpfulCommand(click.Command):
    examples: Sequence[str] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = self.take_topic(ctx, self._with_bare(ctx, args))
        try:
            rest = super().parse_args(ctx, [*args])
        except click.NoSuchOption as error:
            from detector.core.cli.habits import answer_option

            if answer := answer_option(error.option_name, args, ctx):
                raise click.UsageError(answer, ctx) from None
            word, near = error.option_name, error.possibilities or ()
            near = [name for name in near if get_close_matches(name[2:], [word[2:]], 1, 0.7)]
            raise click.NoSuchOption(word, possibilities=near, ctx=ctx) from None
        except click.MissingParameter as error:
            if file := ctx.params.get("config_file"):
                text = f"{file} has options, no input; run: {ctx.command_path} IN --config {file}"
                raise click.MissingParameter(text, ctx, error.param) from None
            raise
        except click.UsageError:
            from detector.core.cli.habits import join_split_list

            if answer := join_split_list(args, self):
                raise click.UsageError(answer, ctx) from None
            raise
        if not ctx.resilient_parsing and any(word[2:] in OF_CLASSES for word in args):
            from detector.core.cli.habits import refuse_split_lists

            refuse_split_lists(args, ctx.params.get("sources") or (), ctx)
        return rest

    def _with_bare(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        """Add the value ``bare`` to each flag that is given without a value."""
        options = {
            flag: (option.bare, option.words)
            for option in self.get_params(ctx)
            if isinstance(option, GroupedOption) and option.bare is not None and option.words
            for flag in option.opts
        }
        complete = []
        for word, following in zip(args, [*args, ""][1:], strict=True):
            bare, words = options.get(word, (None, tuple))
            if bare is None or following in (values := words()):
                complete.append(word)
                continue
            if following and not os.path.lexists(following):
                from detector.core.cli.habits import our_option

                answer = our_option(f"{word} {following.lower()}", ())
                for near in () if answer else get_close_matches(following, values, 1):
                    answer = f"did you mean {word} {near}?"
                if answer:
                    raise click.UsageError(f"{word} {following}: unknown value; {answer}", ctx)
            complete.append(f"{word}={bare}")
        return complete

    def take_topic(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the word after --help from ``args`` to the context. Raises UsageError."""
        at = next((at for at, word in enumerate(args) if word in FLAGS), None)
        if ctx.resilient_parsing or at is None or not args[at + 1 :] or not self._is_long(ctx):
            return args
        word = args[at + 1]
        if os.path.lexists(word):
            return args
        from detector.core.cli.help_text import check_topic

        check_topic(self, ctx, word)
        ctx.meta[TOPIC] = word
        return [*args[: at + 1], *args[at + 2 :]]

    def _is_long(self, ctx: click.Context) -> bool:
        return len(self.get_params(ctx)) > MOST_LISTED

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(TOPIC, ALL) == ALL:
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from detector.core.cli.help_text import write_common, write_topic

        topic = ctx.meta.get(TOPIC)
        if topic is None and self._is_long(ctx):
            write_common(self, ctx, formatter)
        else:
            write_topic(self, ctx, formatter, topic or ALL)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from detector.core.cli.help_text import write_examples

        write_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)


def widen(ctx: click.Context) -> None:
    """Use the terminal's width, up to 140 columns, or 100 columns in a pipe."""
    width = shutil.get_terminal_size((100, 24)).columns
    ctx.terminal_width = max(40, min(width, 140)) - 1
