"""What --help shows: options in groups, examples, and an answer to other programs' options."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

SUMMARY = """\
detect-video SOURCE...         find objects: writes SOURCE-ENGINE-detected.mp4 and .jsonl
detect-video profile SOURCE    where every millisecond goes, and what to change first
detect-video compare SOURCE    engines and precisions in turn, on the same frames
detect-video eval DATASET      how right a model is, against labels
detect-video doctor            what can run on this machine
detect-video --help            every option and command, with examples"""

# What people type who come from ultralytics, YOLOv5 or YOLOv7 -> what does the same here, or why
# nothing does.
HABITS = {
    "--source": "name the source without an option: detect-video in.mp4",
    "--imgsz": "--size",
    "--img": "--size",
    "--img-size": "--size",
    "--half": "--precision fp16, or bf16 where fp16 does not run (detect-video doctor)",
    "--fp16": "--precision fp16, or bf16 where fp16 does not run (detect-video doctor)",
    "--int8": "--precision int8",
    "--vid-stride": "--stride",
    "--conf-thres": "--conf",
    "--iou-thres": "--iou",
    "--agnostic-nms": "--agnostic",
    "--max-detections": "--max-det",
    "--nosave": "--no-video",
    "--save-txt": "--save yolo, whose rows have six numbers, the score last; docs/usage.md says "
    "how to make five of them",
    "--save-conf": "--save yolo (scores are in it)",
    "--save-crop": "--save crops",
    "--save-frames": "--save pictures",
    "--tracker": "there is no tracker yet; detect finds the objects of every frame",
    "--project": "-o DIR/ for the outputs, --run-dir DIR for the session",
    "--name": "-o FILE or -o DIR/",
    "--exist-ok": "not needed, a complete new file replaces the old one",
    "--hide-conf": "--hide-scores",
    "--line-thickness": "--line-width",
    "--show": "--serve 8080, for a page of the run; or open the video that is written",
    "--view-img": "--serve 8080, for a page of the run; or open the video that is written",
    "--data": "--names FILE for class names, or eval DATASET",
    "--task": "give a command: detect, eval, build, compare",
    "--cuda": "--device cuda",
    "--gpu": "--device cuda",
    "--cpu": "--device cpu",
    "--input": "name the source without an option: detect-video in.mp4",
    "-i": "name the source without an option: detect-video in.mp4",
    "-y": "not needed, a complete new file replaces the old one",
}
# The same for the first word.
WORDS = {
    "predict": "detect",
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
    "track": "there is no tracker yet; detect finds the objects of every frame",
    "train": "models are trained elsewhere; give the result with --model",
    "segment": "boxes only; a model with masks is not read yet",
    "pose": "boxes only; a model with keypoints is not read yet",
    "classify": "boxes only; a model without boxes is not read",
}


LISTS = ("--classes", "--blur")  # options whose items people give as words of their own


class GroupedOption(click.Option):
    """An option that --help lists under ``group``. A shell completes its value from ``words``."""

    def __init__(
        self,
        *given: Any,
        group: str = "",
        words: Callable[[], Sequence[str]] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        self.group, self.words = group, words

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
        from detector.models.catalogue import known

        names = [CompletionItem(name) for name in known() if name.startswith(incomplete)]
        return complete_files(incomplete) + names


class HelpfulCommand(click.Command):
    """A command whose --help has groups and examples, and which knows other programs' options."""

    examples: Sequence[str] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, [*args])
        except click.NoSuchOption as error:
            if ours := self._our_option(error.option_name, ctx):
                raise click.UsageError(f"{error.option_name}: {ours}.", ctx) from None
            raise
        if not ctx.resilient_parsing:
            refuse_split_lists(args, ctx.params.get("sources") or (), ctx)
        return rest

    def _our_option(self, theirs: str, ctx: click.Context) -> str | None:
        """What to write for another program's option, or for one with underscores."""
        option = theirs.replace("_", "-")
        if (ours := HABITS.get(option)) is not None:
            return f"here it is {ours}" if ours.startswith("-") else ours
        known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        return f"here it is {option}" if option in known else None

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


def answer_habits(words: Sequence[str], ctx: click.Context) -> str | None:
    """The command that another program's first word means here; None where it is none of them.

    Raises UsageError for ``track``, ``conf=0.3`` and ``yolo predict``, with our way to say it. A
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
    from detector.sources._unclaimed import is_live

    return is_live(source) or source.lower().endswith((".yaml", ".yml"))


def refuse_model_name(word: str, ctx: click.Context) -> None:
    """Raises UsageError for a source that is no file but reads like a model: ``yolov5nn``."""
    if os.path.lexists(word) or os.sep in word or "." in word:
        return
    from detector.models.catalogue import known

    close = difflib.get_close_matches(word, known(), n=1, cutoff=0.75)
    if close:
        raise click.UsageError(
            f"'{word}' is no file. A model is given with --model {close[0]}.", ctx
        )
