"""Translate a command line of ultralytics or YOLOv5 into ours, as one line to type."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from detector.core.config.elsewhere import ABSENT, HABITS, WORDS

# Options of other programs that take no value if written like --half.
SWITCHES = frozenset(
    "--half --fp16 --int8 --agnostic-nms --nosave --save-txt --save-crop --save-frames --exist-ok "
    "--hide-conf --show --view-img --cuda --gpu --cpu -y".split()
)
SOURCES = ("--source", "--input", "-i")
PLACES = ("--project", "--name")  # together they name a folder
COUNTING = ("count", "queue", "trackzone")  # of ultralytics' solutions
# returns a command's options, and whether each takes a value
Known = Callable[[str], Mapping[str, bool]]


def write_ours(
    words: Sequence[str], known: Known, ctx: click.Context, command: str = "detect"
) -> str:
    """Return ``use detect-video in.mp4 --size 640.``, and what we lack. Raises UsageError."""
    line = _TranslatedLine(known, ctx, command)
    rest = [*words]
    while rest:
        line.take(rest.pop(0), rest)
    left = f" There is no equivalent of {', '.join(line.left_out)}." if line.left_out else ""
    words = shlex.join(line.words())
    return f"use {line.before}{words}.{left}"


class _TranslatedLine:
    def __init__(self, known: Known, ctx: click.Context, command: str) -> None:
        self.left_out: list[str] = []
        self._of, self._ctx = known, ctx
        self._command, self._sources = command, list[str]()
        self._options: dict[str, str | None] = {}
        self._saves: list[str] = []
        self._folder: list[str] = []
        self._output_follows = False
        self._counts = False
        self.before = ""  # what has to be done first

    @property
    def _known(self) -> Mapping[str, bool]:
        return self._of(self._command)

    def take(self, word: str, rest: list[str]) -> None:
        """Translate one word; its values are taken from ``rest``."""
        name, equals, value = word.partition("=")
        if word.startswith("-") and word != "-":
            option = name.replace("_", "-")
            follows = self._known.get(option, option not in SWITCHES)
            if not equals:
                value = _values(option, rest) if follows and rest else "true"
            self._add(option, value)
        elif equals and name.isidentifier() and not os.path.lexists(word):
            if name in ("mode", "task"):
                self._take_task(value)
            elif (self._command, name) in (("eval", "data"), ("build", "model")):
                self._sources.append(value)
            else:
                self._add(f"--{name.replace('_', '-')}", value)
        elif word == "solutions":
            solution = rest.pop(0) if rest else ""
            self._counts = solution in COUNTING
            if not self._counts:
                raise click.UsageError(f"'{word} {solution}': {ABSENT[word]}.", self._ctx)
        else:
            self._take_task(word)

    def _take_task(self, word: str) -> None:
        if word in ABSENT:
            raise click.UsageError(f"'{word}': {ABSENT[word]}.", self._ctx)
        if word in WORDS and not os.path.lexists(word):
            self._command, _, option = WORDS[word].partition(" ")
            name, _, value = option.partition(" ")
            if name:
                self._options[name] = value or None
        elif self._output_follows:
            self._options["-o"] = word
        elif word != "yolo" and word != self._command:
            self._sources.append(word)

    def _add(self, option: str, value: str) -> None:
        if option in SOURCES or (self._command, option) == ("eval", "--data"):
            self._sources.append(value)
            self._output_follows = option == "-i"  # as in ffmpeg
        elif option in PLACES and option not in self._known:
            self._folder = [*self._folder, value] if option == "--name" else [value, *self._folder]
        elif value.lower() == "false":
            if option == "--save":
                self._options["--no-video"] = None
        elif (option, value.lower()) == ("--save", "true") or option == "--format":
            pass  # our default, or implied by the command
        elif option == "--save":
            self._saves += value.split(",")
        elif option in self._known:
            self._options[option] = value if self._known[option] else None
        else:
            self._add_theirs(option, value)

    def _add_theirs(self, option: str, value: str) -> None:
        answer = HABITS.get(option)
        if answer is None or option == "--data":  # a dataset, which only eval has
            self.left_out.append(option.lstrip("-"))
            return
        ours, _, own = re.split(r"[,;:]| \(| for | or ", answer)[0].partition(" ")
        if ours == "--save":
            self._saves.append(own)
        elif option == "--tracker":
            self._options[ours] = value.removesuffix(".yaml") if "bytetrack" in value else own
        elif ours.startswith("--"):
            self._options[ours] = own or (None if value == "true" else value)

    def words(self) -> list[str]:
        options = dict(self._options)
        if not self._sources and self._command in ("detect", "compare"):
            self._sources.append("in.mp4")  # as in our examples
        if self._counts:
            name = self._sources[0]
            self.before = f"{shlex.join(['detect-video', 'zones', name])}, draw on its page, then "
            options["--zones"] = f"{Path(name).stem}-zones.yaml"
        if self._saves:
            drawn = () if "--no-video" in options else ("video",)
            options["--save"] = ",".join(dict.fromkeys((*drawn, *self._saves)))
            options.pop("--no-video", None)
        if "--model" not in options and (options.get("--weights") or "").endswith(".pt"):
            options["--model"] = options.pop("--weights")  # YOLOv5's word for it
        if self._folder:
            options["-o"] = os.path.join(*self._folder, "")
        command = [] if self._command == "detect" else [self._command]
        given = ((name,) if value is None else (name, value) for name, value in options.items())
        return ["detect-video", *command, *self._sources, *itertools.chain(*given)]


def _values(option: str, rest: list[str]) -> str:
    """Return an option's value; both values of --imgsz 480 640 (height, width), --classes 0 2."""
    value = rest.pop(0)
    if option == "--classes":
        while rest and rest[0].isdecimal():
            value += f",{rest.pop(0)}"
    elif HABITS.get(option) == "--size" and rest and value.isdecimal() and rest[0].isdecimal():
        value = f"{rest.pop(0)}x{value}"
    return value
