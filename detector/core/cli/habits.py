"""Suggest our commands and options to users who type those of other programs."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Collection, Sequence

import click

from detector.core.cli.translating import Known, write_ours

# Option of other programs -> our options with this meaning. The first that a command has counts.
FITTING = {"--frames": ("--duration",), "--threshold": ("--max-regression", "--conf")}
LISTS = ("--classes", "--blur")  # lists that other programs take as separate words


def our_option(theirs: str, known: Collection[str]) -> str | None:
    """Return a hint for another program's option or our option with underscores. None: no hint."""
    from detector.core.config.elsewhere import HABITS  # imported only if needed

    option = theirs.replace("_", "-")
    if (ours := HABITS.get(option)) is not None:
        return f"use {ours}" if ours.startswith("-") else ours
    if fitting := next((one for one in FITTING.get(option, ()) if one in known), None):
        return f"use {fitting}"
    return f"use {option}" if option in known else None


def answer_habits(words: Sequence[str], ctx: click.Context, known: Known) -> str | None:
    """Return our command if the first word is another program's command, otherwise None. For words
    such as ``train``, ``conf=0.3`` or ``yolo predict``, raise UsageError that says what to type."""
    word = words[0]
    from detector.core.config.elsewhere import ABSENT, WORDS

    is_solution = word == "solutions" and len(words) > 1
    if word in ABSENT and not is_solution:
        raise click.UsageError(f"'{word}': {ABSENT[word]}.", ctx)
    ours = WORDS.get(word, "")
    foreign = _assigns(word) or (ours and any(map(_is_foreign, words[1:])))
    if word == "yolo" or is_solution or " " in ours or foreign:
        raise click.UsageError(f"'{word}': {write_ours(words, known, ctx)}", ctx)
    return ours or None


def refuse_assignments(words: Sequence[str], ctx: click.Context, known: Known) -> None:
    """Raise UsageError for ``source=in.mp4`` and ``conf=0.3`` among the sources."""
    for before, word in zip(("", *words), words, strict=False):
        if _assigns(word) and not before.startswith("-"):
            raise click.UsageError(f"'{word}': {write_ours(words, known, ctx)}", ctx)


def answer_option(option: str, words: Sequence[str], ctx: click.Context) -> str | None:
    """Return a hint for an option that the command lacks. Return None if we know no similar one."""
    ours = our_option(option, known := list_options(ctx.command))
    if ours is None:
        return None
    if sum(map(_is_foreign, words)) < 2 or not _all_known(words, known):
        return f"{option}: {ours}."
    return f"{option}: {write_ours(words, lambda _: known, ctx, ctx.info_name or 'detect')}"


def list_options(command: click.Command) -> dict[str, bool]:
    """Return the command's options, and whether each takes a value."""
    return {
        name: not option.is_flag
        for option in command.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }


def _is_foreign(word: str) -> bool:
    return _assigns(word) or our_option(word.partition("=")[0], ()) is not None


def _all_known(words: Sequence[str], known: Collection[str]) -> bool:
    options = (word.partition("=")[0].replace("_", "-") for word in words if word[:2] == "--")
    return all(option in known or our_option(option, ()) for option in options)


def _assigns(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier() and not os.path.lexists(word)


def refuse_split_lists(words: Sequence[str], sources: Sequence[str], ctx: click.Context) -> None:
    """Raise UsageError for ``in.mp4 --classes 0 2``: the 2 would be taken for a webcam."""
    for at, word in enumerate(words):
        if word not in LISTS:
            continue
        if words[at + 1 : at + 2] and words[at + 1].startswith("--"):
            raise click.UsageError(f"{word}: needs a value before {words[at + 1]}.", ctx)
        rest = itertools.takewhile(_is_bare, words[at + 2 :])
        loose = [item for item in rest if item in sources]
        others = [source for source in sources if source not in loose]
        names = [item for item in loose if not item.isdecimal()]
        if loose and (names or not all(map(_may_be_camera, others or loose))):
            joined = ",".join(item.strip(",") for item in (words[at + 1], *loose))
            given = " ".join(words[at : at + 2 + len(loose)])
            raise click.UsageError(f"{given}: {word} takes one value; use {word} {joined}.", ctx)


def join_split_list(words: Sequence[str], command: click.Command) -> str:
    """Return a hint for ``--engine ort openvino``, or ""."""
    lists = {one.opts[0] for one in command.params if getattr(one, "metavar", "") == "A,B"}
    for at, word in enumerate(words):
        items = [*itertools.takewhile(_is_bare, words[at + 1 :])]
        if word in lists and len(items) > 1:
            return f"{word} {' '.join(items)}: use {word} {','.join(items)}."
    return ""


def _is_bare(word: str) -> bool:
    return word.strip(",").replace("_", "a").isalnum() and not os.path.lexists(word)


def _may_be_camera(source: str) -> bool:
    from detector.core.sources._forms import is_live

    return is_live(source) or source.lower().endswith((".yaml", ".yml"))


def refuse_model_name(word: str, ctx: click.Context) -> None:
    """Raise UsageError for a source that resembles a model's name: ``yolov5nn``."""
    if os.sep in word or "." in word:
        return
    from detector.core.models.catalogue import known

    close = difflib.get_close_matches(word, known(), n=1, cutoff=0.75)
    if close:
        raise click.UsageError(
            f"'{word}' is not a file. To use the model, add --model {close[0]}.", ctx
        )
