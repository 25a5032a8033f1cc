"""Command lines of random options and values, from the commands' own lists of options.

An option gets values of its type, values at and beyond its limits, and values of other options.
Contradictory options occur by chance.
"""

from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import click

from tests.attacks.case import Case, Kind, Limits
from tests.attacks.inputs import CFG, ENGINES, content, labels, pictures, session
from tests.attacks.kinds.saved_runs import ADDED_FILES, LIST
from tests.attacks.mutate import NUMBERS, WORDS
from tests.attacks.running import CANARIES

SOURCES = (
    "in.mp4", "in.mp4", "in.mp4", "in.mp4", "in.mp4", "one.png", "pictures", "pictures/*.png",
    "absent.mp4", "-", "", ".", "empty", "*.gif", "dots.onnx", "text.mp4", "/dev/null",
    "gopher://127.0.0.1:1/x", "srt://127.0.0.1:1/x", "in.mp4/x", "x" * 300, "\udcff.mp4",
    "in.mp4\n", "loop",
)  # fmt: skip
# Cases run in forks, which load no engine's library. The engine is therefore null or unknown.
OPTION_VALUES = {
    "engine": ("null", "null", "null", "null", "null,null", "nul", "", "NULL"),
    "model": ("dots.onnx", "dots.onnx", "dots.onnx", "m.cfg", "m.weights", "street",
    "absent.onnx", "pictures", "", "in.mp4"), "weights": ("m.weights", "absent.weights", "in.mp4",
    "pictures", ""), "names": ("two.names", "absent.names", "pictures", "in.mp4"),
    "cfg": ("m.cfg", "absent.cfg"),
    "calibrate": ("in.mp4", "pictures", "absent.mp4"),
    "engines_dir": ("../engines", "../engines", "engines", "letter.txt", "absent/engines", ""),
    "output": (
        "out/", "out", "x.mp4", "x.csv", "x.json", "x.jsonl", "x.txt", "x.xyz", "-", "",
        "absent/x.mp4", "in.mp4", "one.png", "letter.txt", "letter.txt/x.mp4", "x" * 250 + ".mp4",
        "\udcff.mp4", "pictures/", "/dev/full", "loop/x.mp4", "o.npz",
    ),
    "run_dir": ("runs/mine", "mine", "letter.txt", "", ".", "pictures", "absent/a/b", "run",
    "loop/x", "x" * 250), "config_file": ("o.yaml", "absent.yaml", "letter.txt", "pictures", ""),
    "size": ("64", "64x64", "0", "-1", "64x", "x64", "64x64x64", "8192", "99999999", "32x4096",
    "640x384", "abc"), "classes": ("red", "0,1", "rde", ",", "-1", "99", "red,red", ""),
    "device": ("cpu", "auto", "cuda", "cuda:0", "cuda:x", "tpu", ""),
    "engine_options": ("a=1", "=", "a", "", "a=b=c", "threads=1,threads=2"),
    "precision": ("auto", "fp32", "fp16", "bf16", "fp64", ""),
    "only": ("loop", "critical_path", "what_if", "loop,loop", "frames", "nothing", ""),
    "nsys": ("n.sqlite", "absent.sqlite", "in.mp4"),
    "detections": ("found.json", "absent.json", "pictures", "in.mp4"),
    "mapping": ("person-vehicle", "absent.yaml", "letter.txt"),
    "images": ("set", "absent", "in.mp4"),
    "format": ("coco", "yolo", "mot", "auto", "voc"),
    "kind": ("html", "table", "json", "csv", "trace", "pdf"),
    "batches": ("1", "2", "1..4", "4..1", "0", "..", "1..", "x"),
    "max_regression": ("5%", "0.05", "5", "-1%", "nan", "inf", "%", ""),
    "frames": ("1", "2", "0", "-1", "x", "2.0", "99999999999999999999"),
    "threads": ("0", "1", "4096", "4097", "-1"),
    "batch": ("1", "2", "3", "8", "0", "4096", "1,2", "x"),
    "rounds": ("1", "0", "x"),
}  # fmt: skip
POSITIONAL = {
    "sources": SOURCES, "source": SOURCES, "run": ("run", "absent", "letter.txt", "pictures", ""),
    "run_a": ("run", "absent", "."), "run_b": ("run", "absent"),
    "dataset": ("set/labels.json", "set", "absent.json", "letter.txt", "in.mp4"),
    "name": ("absent", "", "../x"), "model": OPTION_VALUES["model"],
}  # fmt: skip
# All commands, except doctor and commands that load engines or wait for other processes.
COMMANDS = (
    *["detect"] * 12, "", "", "profile", "eval", "eval", "report", "diff", "models show",
    "models show", "models list", "build", "nothing",
)  # fmt: skip
ALWAYS_ADDED = {
    "detect": ("--engine", "null"), "": ("--engine", "null"), "profile": ("--engine", "null",
    "--only", "loop"), "eval": ("--engine", "null"), "build": ("--engine", "null"),
    "nothing": ("--engine", "null"),
}  # fmt: skip
NEVER = {"sweep", "calibrate_frames", "budget", "verbose", "help", "version"}


@cache
def _parameters(command: str) -> tuple[click.Parameter, ...]:
    from detector.core.cli.group import cli

    group: Any = cli
    for word in command.split():
        group = group.get_command(click.Context(group), word)
    return tuple(group.params)


@cache
def _files() -> dict[str, bytes]:
    return {
        "in.mp4": content("in.mp4"),
        "one.png": content("one.png"),
        **pictures(),
        **labels("coco"),
        **{f"run/{name}": data for name, data in session().items()},
        "dots.onnx": content("dots.onnx"),
        "m.cfg": CFG.encode(),
        "m.weights": content("small.weights"),
        "two.names": b"person\nvehicle\n",
        "n.sqlite": content("nsys.sqlite"),
        "found.json": content("found.json"),
        "o.yaml": b"conf: 0.5\nframes: 3\n",
        "text.mp4": b"no video\n" * 9,
        "empty/": b"",
    }


def make(random: Random) -> Case:
    command = random.choice(COMMANDS)
    known = _parameters("detect" if command in ("", "nothing") else command)
    words = command.split()
    options = [one for one in known if isinstance(one, click.Option) and one.name not in NEVER]
    flags: list[str] = []
    for option in random.sample(options, min(len(options), random.choice((0, 1, 2, 3, 5, 8)))):
        flags += _option(random, option)
    for argument in (one for one in known if isinstance(one, click.Argument)):
        values = POSITIONAL.get(argument.name or "", SOURCES)
        for _ in range(random.choice((1, 1, 1, 1, 2, 0)) if argument.nargs == -1 else 1):
            words.append(random.choice(values))
    if random.random() < 0.05:
        flags.append(random.choice(("--nothing", "-", "-x", "--js", "--conf=")))
    if command in ALWAYS_ADDED:
        # These options come last, so they override earlier ones. A fork then loads no engine's
        # library, and writes no engine file into the checkout.
        flags += [*ALWAYS_ADDED[command], *ENGINES]
    if command in ("", "detect", "profile", "eval") and random.random() < 0.6:
        flags = ["--model", "dots.onnx", *flags]
    if "--loop" in flags:
        flags += ["--duration", "2"]  # a looped file has no end
    argv = tuple(word.replace("\x00", "") for word in (*words, *flags))
    outputs = {"x.mp4", "x.csv", "x.json", "x.jsonl", "x.txt", "x.onnx"}
    may_change = outputs | {f"run/{name}" for name in (*ADDED_FILES, LIST)}
    return Case(
        _files(), argv, limits=Limits(), may_change=frozenset(may_change | _own_outputs(argv))
    )


def _own_outputs(argv: tuple[str, ...]) -> set[str]:
    """Return the files that the command line may change: the case's files at or below the paths
    of -o and --run-dir, and the user's files that -o names."""
    flags = [*pairwise(argv), *(tuple(word.split("=", 1)) for word in argv if "=" in word)]
    outputs = {value for word, value in flags if word in ("-o", "--output")}
    folders = {value for word, value in flags if word == "--run-dir"}
    users = {name.removeprefix("work/") for name in CANARIES}
    named = [one for one in outputs | folders if one]
    below = tuple(f"{one.rstrip('/')}/" for one in named)
    return (outputs & users) | {
        name for name in _files() if name in named or name.startswith(below)
    }


def _option(random: Random, option: click.Option) -> list[str]:
    flag = random.choice((*option.opts, *option.secondary_opts))
    if option.is_flag:
        return [flag]
    value = _value(random, option)
    return [f"{flag}={value}"] if flag.startswith("--") and random.random() < 0.2 else [flag, value]


def _value(random: Random, option: click.Option) -> str:
    name = option.name or ""
    if random.random() < 0.08:
        return random.choice((*WORDS, *map(str, NUMBERS))) if name not in _PATHS else "x y"
    if name in OPTION_VALUES:
        return random.choice(OPTION_VALUES[name])
    from detector.core.config.schema import choices_of, options

    leaf = next((leaf for _, leaf in options() if leaf.name == name), None)
    if leaf is not None and (choices := choices_of(leaf)):
        return ",".join(random.sample(list(choices), random.choice((1, 1, 2))))
    if leaf is not None and "float" in str(leaf.type):
        return random.choice(("0", "1", "0.5", "0.001", "-0.1", "1.1", "1e-9", "nan", "x", ""))
    return random.choice(("0", "1", "2", "7", "-1", "10", "x", "", "51", "52", "4294967295"))


_PATHS = {"output", "run_dir", "engines_dir"}  # a wild value could lead out of the case's folder
KIND = Kind("command lines", make, share=20)
