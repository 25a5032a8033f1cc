"""Translate a command line of ultralytics or YOLOv5 into ours for the same task."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from detector.core.config.elsewhere import ABSENT, HABITS, WORDS
from detector.core.sources._contents import PICTURE, kind_of_name

# Options of other programs. With dashes they take no value (--half); without, they do (half=True).
SWITCHES = frozenset(
    "--half --fp16 --int8 --agnostic-nms --nosave --save-txt --save-crop --save-frames --exist-ok "
    "--hide-conf --show --view-img --cuda --gpu --cpu --augment --dynamic --simplify -y".split()
)
NEGATED = {"--save": "--no-video", "--show-labels": "--hide-labels", "--show-conf": "--hide-scores"}
FORMATS = {"engine": "trt", "openvino": "openvino"}  # value of their --format -> our engine
SOURCES = ("--source", "--input", "-i")
PLACES = ("--project", "--name")  # their two options that together name a folder
COUNTING = ("count", "queue", "trackzone")  # ultralytics' solutions that count
# name of our command -> its options, and whether each takes a value
Known = Callable[[str], Mapping[str, bool]]


def write_ours(
    words: Sequence[str], known: Known, ctx: click.Context, command: str = "detect"
) -> str:
    """Return advice such as ``use detect-video in.mp4 --size 640.``, and name the options that we
    lack. Raises UsageError for a task that we lack."""
    line = _TranslatedLine(known, ctx, command)
    rest = [*words]
    while rest:
        line.take(rest.pop(0), rest)
    words = shlex.join(line.words())
    lack = f" There is no equivalent of {', '.join(line.left_out)}." if line.left_out else ""
    lack += " in.mp4 stands for your video." if "in.mp4" in words.split() else ""
    return f"use {line.before}{words}.{lack}"


class _TranslatedLine:
    def __init__(self, known: Known, ctx: click.Context, command: str) -> None:
        self.left_out: list[str] = []
        self._options_of, self._ctx = known, ctx
        self._command, self._sources = command, list[str]()
        self._options: dict[str, str | None] = {}
        self._saves: list[str] = []
        self._folder: list[str] = []
        self._output_follows = False
        self._counts = self._predicts = False
        self.before = ""  # a command to run first, if any

    @property
    def _known(self) -> Mapping[str, bool]:
        return self._options_of(self._command)

    def take(self, word: str, rest: list[str]) -> None:
        """Translate one word. If it takes values, remove these from ``rest``."""
        name, equals, value = word.partition("=")
        dashed = word.startswith("-") and word != "-"
        option = ("" if dashed else "--") + name.replace("_", "-")
        follows = self._known.get(option, option not in SWITCHES)
        # ``save_txt`` or ``half`` turns an option on. Other words may name a file.
        is_on = not follows and (option in SWITCHES or "_" in name) and not os.path.lexists(word)
        assigned = equals and name.isidentifier() and not os.path.lexists(word)
        if assigned and name in ("mode", "task"):
            self._take_task(value)
        elif assigned and (self._command, name) in (("eval", "data"), ("build", "model")):
            self._sources.append(value)
        elif dashed or assigned or is_on:
            if not equals:
                value = _take_values(option, rest) if follows and rest else "true"
            self._add(option, _convert_value(option, value))
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
            self._predicts = self._command == "detect"
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
            self._output_follows = option == "-i"  # as in ffmpeg -i in.mp4 out.mp4
        elif option in PLACES and option not in self._known:
            self._folder = [*self._folder, value] if option == "--name" else [value, *self._folder]
        elif value.lower() == "false":
            if option in NEGATED:
                self._options[NEGATED[option]] = None
        elif value.lower() == "none" or (option in NEGATED and value.lower() == "true"):
            pass  # our default
        elif option == "--cfg" and value.endswith((".yaml", ".yml")):
            self.left_out.append(f"cfg={value}")  # our --cfg is a Darknet file
        elif option in ("--format", "--include") and self._command == "build":
            if value in FORMATS:
                self._options["--engine"] = FORMATS[value]
                self._options.pop("--to", None)
            elif value != "onnx":
                self.left_out.append(f"format={value}")
        elif option == "--save":
            self._saves += value.split(",")
        elif option in self._known:
            self._options[option] = value if self._known[option] else None
        else:
            self._add_theirs(option, value)

    def _add_theirs(self, option: str, value: str) -> None:
        answer = "--dataset" if option == "--data" else HABITS.get(option, "")
        ours, _, own = re.split(r"[,;:]| \(| for | or ", answer)[0].partition(" ")
        absent = not answer or answer.startswith("not supported")
        if absent or (ours[:2] == "--" and ours not in self._known):
            self.left_out.append(option.lstrip("-"))
            return
        if ours == "--save":
            self._saves.append(own)
        elif ours.startswith("--"):
            bare = value.lower() == "true" or not self._known.get(ours, True)
            self._options[ours] = own or (None if bare else value)
        if ours == "give" or (option == "--tracker" and not value.startswith("bytetrack")):
            self.left_out.append(f"{option.lstrip('-')}={value}")

    def words(self) -> list[str]:
        options = dict(self._options)
        if not self._sources and self._command in ("detect", "compare"):
            self._sources.append("in.mp4")  # as in our examples
        if self._counts and "--zones" not in options:
            name = self._sources[0]
            self.before = f"{shlex.join(['detect-video', 'zones', name])}, draw on its page, then "
            options["--zones"] = f"{Path(name).stem}-zones.yaml"
        if self._saves:
            of_pictures = any(kind_of_name(s) == PICTURE or os.path.isdir(s) for s in self._sources)
            drawn = () if "--no-video" in options else ("pictures" if of_pictures else "video",)
            options["--save"] = ",".join(dict.fromkeys((*drawn, *self._saves)))
            options.pop("--no-video", None)
        if "yolo" not in self._saves:
            options.pop("--save-conf", None)
        if "--to" in options and (precision := options.pop("--precision", None)):
            self.left_out.append(f"{precision} for ONNX files, which serve every precision")
        if "--model" not in options and (options.get("--weights") or "").endswith(".pt"):
            options["--model"] = options.pop("--weights")  # YOLOv5's option for the model
        if self._command == "build" and (model := options.pop("--model", None)):
            self._sources.append(model)
        if self._predicts:  # add ultralytics' defaults that differ from ours
            options.setdefault("--iou", "0.7")
            if (options.get("--model") or "").endswith(".pt"):
                is_longest = (options.setdefault("--size", "640") or "").isdecimal()
                several = any(os.path.isdir(one) or "*" in one for one in self._sources)
                if several and is_longest and "--batch" not in options:
                    options["--rect"] = None  # an input for each picture
        if self._folder:
            options["-o"] = os.path.join(*self._folder, "")
        command = [] if self._command == "detect" else [self._command]
        pairs = ((name,) if value is None else (name, value) for name, value in options.items())
        return ["detect-video", *command, *self._sources, *itertools.chain(*pairs)]


def _take_values(option: str, rest: list[str]) -> str:
    """Remove an option's value from ``rest``. Join several (--classes 0 2) by commas."""
    values = [rest.pop(0)]
    several = option == "--classes" or HABITS.get(option) == "--size"
    while several and rest and values[0].isdecimal() and rest[0].isdecimal():
        values.append(rest.pop(0))
    return ",".join(values)


def _convert_value(option: str, value: str) -> str:
    """Return a value in our form: 2,7 for ``[2, 7]``, and WIDTHxHEIGHT for [height, width]."""
    if option == "--region":  # a line of two points, or a zone
        points = value.replace("(", "[").replace(")", "]")
        return f'{{"{"lines" if points.count("[") == 3 else "zones"}":{{"region":{points}}}}}'
    if value[:1] in ("[", "("):
        value = re.sub(r"[][() '\"]", "", value).strip(",")
    if HABITS.get(option) == "--size" and "," in value:
        height, width = value.split(",", 1)
        return f"{width}x{height}"
    return value
