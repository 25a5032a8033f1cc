"""Every command reads every option that it offers.

Whether an option has the right effect is checked by the tests of the code that uses it.
"""

import importlib
import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from detector.core import sinks, wings
from detector.core.cli.help import GroupedOption
from detector.core.config import schema
from detector.core.stages.between import places
from tests.cli.command import detect_video_anew
from tests.config.record_reads import recorded_reads, recording_environment
from tests.engines.quantised import CFG
from tests.golden.inputs import put
from tests.sources.clips import write_video

LEAVES = {leaf.name for _, leaf in schema.options()}

MODEL = (
    *("--random-weights", "3", "--names", "two.names"),
    *("--engine", "ort", "--engines-dir", "engines"),
)
INT8 = ("--calibrate", "in.mp4", "--calibrate-frames", "2", "--budget", "0")
RUN = ("--model", "small.cfg", *MODEL, *INT8, "--precision", "int8")
# One command line for each command. Together they make the commands read every option.
COMMANDS = {
    "batch": ("in.mp4", "-o", "out", "--workers", "1", *RUN),
    "build": ("small.cfg", *MODEL, *INT8, "--precision", "int8"),
    "compare": (
        *("in.mp4", "--model", "small.cfg", *MODEL, *INT8, "--precision", "fp32,int8"),
        *("--rounds", "1", "--frames", "4"),
    ),
    "detect": ("in.mp4", *RUN, "--serve", "0"),
    "eval": ("labels.json", "--images", "in.mp4", *RUN),
    "models describe": ("dots.onnx",),
    "models show": ("dots.onnx",),
    "profile": ("in.mp4", *RUN, "--only", "critical_path"),
    "tune": ("in.mp4", *RUN, "--seconds", "3"),
    "zones": ("in.mp4",),
}
SHOWS_ALL = {"config show"}  # it prints the options and runs nothing


def commands() -> Iterator[tuple[str, click.Command]]:
    for name, module in wings.commands().items():
        command = importlib.import_module(module).command
        inner = command.commands if isinstance(command, click.Group) else {}
        yield from ((f"{name} {word}", each) for word, each in inner.items())
        yield name, command


def offered(command: click.Command) -> set[str]:
    """Return the command's options that come from the schema."""
    grouped = (option for option in command.params if isinstance(option, GroupedOption))
    return {str(option.name) for option in grouped} & LEAVES


def unread(offers: set[str], read: set[str]) -> list[str]:
    """Return the offered options that no code reads. ``read``: the options whose reads were
    recorded. Sinks and stages get their options as a mapping, whose reads are not recorded. Options
    that a sink declares, or that the source code of a stage names, count as read."""
    if "save" in read:
        read = read.union(*(sink.options for sink in sinks.find_all()))
    modules = (importlib.import_module(name) for name in places().values())
    stages = "".join(map(inspect.getsource, modules))
    read = read | {name for name in LEAVES if f'["{name}"]' in stages}
    return sorted(offers - read)


def test_every_command_with_options_of_the_schema_is_listed():
    offers = {name: options for name, command in commands() if (options := offered(command))}
    assert offers.keys() == {*COMMANDS, *SHOWS_ALL}
    assert set().union(*(offers[name] for name in COMMANDS)) == LEAVES


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_command_reads_every_option_that_it_offers(tmp_path: Path, name: str) -> None:
    write_video(tmp_path / "in.mp4", 12)
    (tmp_path / "small.cfg").write_text(CFG)
    (tmp_path / "two.names").write_text("red\ngreen\n")
    for other in ("dots.onnx", "labels.json"):
        put(other, tmp_path)
    labels = json.loads((tmp_path / "labels.json").read_text())
    for image in labels["images"]:
        image |= {"frame_index": image["id"], "width": 64, "height": 48}
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    env |= recording_environment(tmp_path)
    words = (*name.split(), *COMMANDS[name])
    done = detect_video_anew(*words, cwd=tmp_path, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    offers = offered(dict(commands())[name])
    assert unread(offers, recorded_reads(tmp_path)) == []
    assert unread({*offers, "planted"}, recorded_reads(tmp_path)) == ["planted"]
