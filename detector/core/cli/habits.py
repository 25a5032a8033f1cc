"""The habits of other programs' users: their options and first words, and our word for each.

People come from ultralytics, YOLOv5 and ffmpeg. What means the same here is said in one line, or a
whole command line is translated; where nothing means it, the line says why.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import shlex
from collections.abc import Collection, Sequence

import click

from detector.core.config.elsewhere import HABITS

# What people type as the first word -> our command.
WORDS = {
    "predict": "detect",
    "track": "detect --track",
    "val": "eval",
    "validate": "eval",
    "test": "eval",
    "export": "build --to onnx",
    "benchmark": "compare",
    "bench": "compare",
    "info": "models show",
    "checks": "doctor",
}
ABSENT = {
    "train": "models are trained elsewhere; give the result with --model",
    "segment": "boxes only; a model with masks is not read yet",
    "pose": "boxes only; a model with keypoints is not read yet",
    "classify": "boxes only; a model without boxes is not read",
}


LISTS = ("--classes", "--blur")  # options whose items people give as words of their own


def our_option(theirs: str, known: Collection[str]) -> str | None:
    """What to write for another program's option, or for one of ours (``known``) with underscores.

    None where it means nothing here.
    """
    option = theirs.replace("_", "-")
    if (ours := HABITS.get(option)) is not None:
        return f"here it is {ours}" if ours.startswith("-") else ours
    return f"here it is {option}" if option in known else None


def answer_habits(words: Sequence[str], ctx: click.Context) -> str | None:
    """The command that another program's first word means here; None where it is none of them.

    Raises UsageError for ``train``, ``conf=0.3`` and ``yolo predict``, with our way to say it. A
    file of that name is a source.
    """
    word = words[0]
    if os.path.lexists(word):
        return None
    if word in ABSENT:
        raise click.UsageError(f"'{word}': {ABSENT[word]}.", ctx)
    if word == "yolo" or _assigns(word) or " " in WORDS.get(word, ""):
        said = shlex.join(_translate(words, ctx))
        raise click.UsageError(f"'{word}': here it is written {said}.", ctx)
    return WORDS.get(word)


def refuse_assignments(words: Sequence[str], ctx: click.Context) -> None:
    """Raises UsageError for ``source=in.mp4`` and ``conf=0.3`` among the sources."""
    for before, word in zip(("", *words), words, strict=False):
        if _assigns(word) and not before.startswith("-"):
            said = shlex.join(_translate(words, ctx))
            raise click.UsageError(f"'{word}': here it is written {said}.", ctx)


def _assigns(word: str) -> bool:
    """Whether it is ``conf=0.3``, and no file."""
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier() and not os.path.lexists(word)


def _translate(words: Sequence[str], ctx: click.Context) -> list[str]:
    """A command line of ultralytics in our words. Raises UsageError for a task that is absent."""
    command, sources, options = "", [], []
    for before, word in zip(("", *words), words, strict=False):
        name, equals, value = word.partition("=")
        if word.startswith("-") or before.startswith("-"):
            options.append(word)
        elif not _assigns(word) or name in ("mode", "task"):
            asked = value if equals else word
            if asked in ABSENT:
                raise click.UsageError(f"'{asked}': {ABSENT[asked]}.", ctx)
            if asked in WORDS:
                command = WORDS[asked]
            elif asked not in ("yolo", "detect"):
                sources.append(asked)
        elif name == "source" or (command[:5], name) in (("eval", "data"), ("build", "model")):
            sources.append(value)
        elif value.lower() != "false":
            options += _translate_option(f"--{name.replace('_', '-')}", value)
        elif name == "save":
            options.append("--no-video")
    command, _, more = command.removeprefix("detect").partition(" ")
    return ["detect-video", *filter(None, [command, *sources, *more.split(), *options])]


def _translate_option(option: str, value: str) -> list[str]:
    if option in ("--save", "--format"):
        return []  # what is done anyway, or what the command says
    ours = re.split(r"[,;:]| \(| for | or ", HABITS.get(option, option))[0]
    if not ours.startswith("-"):
        return []
    words = [word for word in ours.split() if not word.isupper() and word != "DIR/"]
    return words if value.lower() == "true" or len(words) > 1 else [*words, value]


def refuse_split_lists(words: Sequence[str], sources: Sequence[str], ctx: click.Context) -> None:
    """Raises UsageError for ``in.mp4 --classes 0 2``, where 2 would be a webcam.

    Not for a file, and not for a number where all sources may be cameras.
    """
    for at, word in enumerate(words):
        if word not in LISTS:
            continue
        rest = itertools.takewhile(_is_bare, words[at + 2 :])
        loose = [item for item in rest if item in sources]
        others = [source for source in sources if source not in loose]
        names = [item for item in loose if not item.isdecimal()]
        if loose and (names or not all(map(_may_be_camera, others or loose))):
            joined = ",".join(item.strip(",") for item in (words[at + 1], *loose))
            given = " ".join(words[at : at + 2 + len(loose)])
            raise click.UsageError(f"{given}: {word} takes one word; write {word} {joined}.", ctx)


def _is_bare(word: str) -> bool:
    """A number or a name, and no file."""
    return word.strip(",").replace("_", "a").isalnum() and not os.path.lexists(word)


def _may_be_camera(source: str) -> bool:
    from detector.core.sources._unclaimed import is_live

    return is_live(source) or source.lower().endswith((".yaml", ".yml"))


def refuse_model_name(word: str, ctx: click.Context) -> None:
    """Raises UsageError for a source that is no file but reads like a model: ``yolov5nn``."""
    if os.path.lexists(word) or os.sep in word or "." in word:
        return
    from detector.core.models.catalogue import known

    close = difflib.get_close_matches(word, known(), n=1, cutoff=0.75)
    if close:
        raise click.UsageError(
            f"'{word}' is no file. A model is given with --model {close[0]}.", ctx
        )
