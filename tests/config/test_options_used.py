"""Every option does something: code reads it, and so does every command that offers it.

Reading an option is not obeying it: tests next to the code that obeys an option check that.
"""

from __future__ import annotations

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
from tests.config.tell_reads import told, with_telling
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
# A command line each. Between them, whatever a command may read is asked for.
COMMANDS = {
    "batch": ("in.mp4", "-o", "out", "--workers", "1", *RUN),
    "build": ("small.cfg", *MODEL, *INT8, "--precision", "int8"),
    "burn": ("overlay.mkv",),
    "compare": (
        *("in.mp4", "--model", "small.cfg", *MODEL, *INT8, "--precision", "fp32,int8"),
        *("--rounds", "1", "--frames", "4"),
    ),
    "detect": ("in.mp4", *RUN, "--serve", "0"),
    "eval": ("labels.json", "--images", "in.mp4", *RUN),
    "infer-raw": (
        *("small.cfg", *MODEL, *INT8, "--precision", "int8"),
        *("--input", "arrays.npz", "--output", "y.npz"),
    ),
    "models describe": ("dots.onnx",),
    "models show": ("dots.onnx",),
    "profile": ("in.mp4", *RUN, "--only", "critical_path"),
    "tune": ("in.mp4", *RUN, "--seconds", "3"),
    "zones": ("in.mp4",),
}
SHOWS_ALL = {"config show"}  # and runs nothing


def commands() -> Iterator[tuple[str, click.Command]]:
    for name, place in wings.commands().items():
        command = importlib.import_module(place).command
        inner = command.commands if isinstance(command, click.Group) else {}
        yield from ((f"{name} {word}", each) for word, each in inner.items())
        yield name, command


def offered(command: click.Command) -> set[str]:
    """Return the schema's options that the command takes, without its own of the same name."""
    mine = (one for one in command.params if isinstance(one, GroupedOption))
    return {str(one.name) for one in mine} & LEAVES


def ignored(offers: set[str], read: set[str]) -> list[str]:
    """``read``: as processes told. Sinks and stages get groups as one mapping: a sink takes what it
    declares, and a stage that is turned on what its file names."""
    if "save" in read:
        read = read.union(*(sink.options for sink in sinks.find_all()))
    stages = "".join(inspect.getsource(importlib.import_module(one)) for one in places().values())
    read = read | {name for name in LEAVES if f'["{name}"]' in stages}
    return sorted(offers - read)


def test_every_command_with_options_of_the_schema_is_run_here():
    offers = {name: found for name, one in commands() if (found := offered(one))}
    assert offers.keys() == {*COMMANDS, *SHOWS_ALL}
    assert set().union(*(offers[name] for name in COMMANDS)) == LEAVES, "each is asked for below"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ignores_no_option_that_it_offers(tmp_path: Path, name: str) -> None:
    write_video(tmp_path / "in.mp4", 12)
    (tmp_path / "small.cfg").write_text(CFG)
    (tmp_path / "two.names").write_text("red\ngreen\n")
    for other in ("dots.onnx", "arrays.npz", "labels.json"):
        put(other, tmp_path)
    labels = json.loads((tmp_path / "labels.json").read_text())
    for image in labels["images"]:
        image |= {"frame_index": image["id"], "width": 64, "height": 48}
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    if name == "burn":
        overlay = ("--model", "small.cfg", *MODEL, "--save", "overlay", "-o", "overlay.mkv")
        assert detect_video_anew("in.mp4", *overlay, cwd=tmp_path, env=env).returncode == 0
    env |= with_telling(tmp_path)
    words = (*name.split(), *COMMANDS[name])
    done = detect_video_anew(*words, cwd=tmp_path, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    offers = offered(dict(commands())[name])
    assert ignored(offers, told(tmp_path)) == []
    assert ignored({*offers, "planted"}, told(tmp_path)) == ["planted"]
