"""Write --help: common options, one group, or all.

If a command has many options, ``--help`` alone lists the common ones and the command's own, one
line each. ``--help all``, ``--help GROUP`` and ``--help OPTION`` show full texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import click

from detector.core.wings import commands

SUMMARY = """\
detect-video SOURCE...       find objects; write SOURCE-detected.mp4 and .jsonl
detect-video profile SOURCE  see where each millisecond goes and what to change
detect-video compare SOURCE  compare engines and precisions on the same frames
detect-video eval DATASET    measure a model's accuracy against labels
detect-video doctor          check what can run on this machine
detect-video --help          show common options, all commands and examples"""
ALL = "all"
OWN = "Options"  # title of options without a group


def check_topic(command: click.Command, ctx: click.Context, topic: str) -> None:
    """Raise UsageError if ``--help TOPIC`` is unknown."""
    if _choose(command, ctx, topic) is not None:
        return
    if topic in commands():
        raise click.UsageError(f"use detect-video {topic} --help.", ctx)
    groups = ", ".join([ALL, *map(_key_of, _group_options(command, ctx))])
    raise click.UsageError(f"--help {topic}: unknown group or option; groups: {groups}.", ctx)


def _group_options(command: click.Command, ctx: click.Context) -> dict[str, list[click.Option]]:
    groups: dict[str, list[click.Option]] = {}
    for option in command.get_params(ctx):
        if isinstance(option, click.Option) and not option.hidden:
            groups.setdefault(getattr(option, "group", "") or OWN, []).append(option)
    own = groups.pop(OWN, [])
    return {**groups, OWN: own} if own else groups


def _choose(
    command: click.Command, ctx: click.Context, topic: str
) -> dict[str, list[click.Option]] | None:
    """Return the options that ``--help TOPIC`` shows, or None for an unknown topic."""
    groups = _group_options(command, ctx)
    if topic == ALL:
        return groups
    from detector.core.cli.habits import our_option

    name = topic.lower().lstrip("-").replace("_", "-")
    chosen = {title: options for title, options in groups.items() if _key_of(title) == name}
    if chosen:
        return chosen
    flags = (f"--{name}", f"-{name}", our_option(f"--{name}", ()) or "")
    for title, options in groups.items():
        for option in options:
            names = (*option.opts, *option.secondary_opts)
            if any(flag.removeprefix("use ").split(" ")[0] in names for flag in flags):
                return {title: [option]}
    return None


def write_topic(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter, topic: str
) -> None:
    for title, options in (_choose(command, ctx, topic) or {}).items():
        rows = [row for option in options if (row := option.get_help_record(ctx))]
        with formatter.section(title):
            formatter.write_dl(rows, col_max=26)


def write_common(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write the options that most users need and the command's own, one line each."""
    groups = _group_options(command, ctx)
    rows = []
    for option in itertools.chain(*groups.values()):
        if (row := option.get_help_record(ctx)) is None:
            continue
        common = getattr(option, "common", None)  # only a GroupedOption has this
        if common is None:
            rows.append((row[0], _make_short(option.help or "", formatter.width - 30)))
        elif common:
            rows.append((row[0].split(" / ")[0], getattr(option, "short", "")))
    with formatter.section("Options"):
        formatter.write_dl(rows, col_max=26)
    formatter.write_paragraph()
    with formatter.indentation():
        names = ", ".join(map(_key_of, groups))
        formatter.write_text(f"More: --help all, --help OPTION, or --help with a group: {names}.")


def _key_of(title: str) -> str:
    """Return the word that selects a group: ``recording`` for "Recording of cameras"."""
    return title.split()[0].lower()


def _make_short(text: str, most: int) -> str:
    text = text.split(". ")[0].removesuffix(".")
    for end in ("; ", ": ", ", "):
        head = text.split(end)[0]
        text = head if len(text) > most and len(head) > most // 3 else text
    return text if len(text) <= most else f"{text[: most - 3].rpartition(' ')[0]}..."


def write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    """Write ``COMMAND # comment`` lines unwrapped, so that users can copy them."""
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")
