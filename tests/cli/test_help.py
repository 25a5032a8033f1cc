"""Help is quick, complete and true."""

import importlib
import re
import subprocess
import sys

import click
import pytest

from detector.cli.group import cli, command_names
from detector.config.schema import flag_of, options
from tests.cli.command import assert_one_line_error, detect_video
from tests.conftest import CHECKOUT
from tests.sources.clips import write_video

HEAVY = ("torch", "cv2", "onnx", "onnxruntime", "av", "numpy", "rich", "yaml")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([name, "--help"] for name in ("detect", "eval", "compare", "build", "doctor")),
    ],
)
def test_help_imports_nothing_heavy(arguments):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "detector", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {
        line.rsplit("|", 1)[1].strip().split(".")[0]
        for line in done.stderr.splitlines()
        if "|" in line
    }
    assert "click" in imported, "the measure sees imports"
    assert imported & set(HEAVY) <= {"yaml"}


@pytest.mark.slow
def test_every_option_is_in_the_help_and_in_the_usage_page(tmp_path):
    text = detect_video("--help", cwd=tmp_path).stdout
    usage = (CHECKOUT / "docs/usage.md").read_text()
    for _, leaf in options():
        if not leaf.metadata.get("hidden"):
            assert flag_of(leaf) in text
        assert flag_of(leaf) in usage or leaf.name in usage, leaf.name
    for name in command_names():
        hidden = cli.get_command(click.Context(cli), name).hidden
        assert (name in text) is not hidden, name
    for flag in re.findall(
        r"--[a-z][a-z0-9-]+", detect_video("eval", "--help", cwd=tmp_path).stdout
    ):
        assert flag in usage or flag in ("--help",) or f"--{flag.removeprefix('--no-')}" in usage, (
            flag
        )


@pytest.mark.parametrize("command", ["compare", "build", "doctor", "profile", "report"])
def test_every_option_of_these_commands_is_in_the_usage_page(command):
    usage = (CHECKOUT / "docs/usage.md").read_text()
    found = [
        option
        for parameter in importlib.import_module(f"detector.cli.{command}").command.params
        for option in parameter.opts
        if option.startswith("--")
    ]
    assert len(found) >= 3
    for option in found:
        assert option in usage or option[2:].replace("-", "_") in usage, option


def test_no_arguments_shows_help(tmp_path):
    process = detect_video(cwd=tmp_path)
    assert process.returncode == 2
    assert "SOURCE" in process.stdout + process.stderr


@pytest.mark.slow
def test_a_file_named_like_a_command_is_reached_by_its_path(tmp_path):
    process = detect_video(
        "./detect", "--model", "yolov4-tiny-person-vehicle", "--random-weights", 0, cwd=tmp_path
    )
    assert "detect: no such file" in process.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "meant"), [("profle", "profile"), ("detct", "detect"), ("Compare", "compare")]
)
def test_a_misspelt_command_is_no_source(tmp_path, word, meant):
    write_video(tmp_path / "in.mp4", 3)
    process = detect_video(word, "in.mp4", cwd=tmp_path)
    assert_one_line_error(process, 2, f"No such command or file '{word}'. Did you mean '{meant}'?")
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]
    (tmp_path / "in.mp4").rename(tmp_path / word)
    assert detect_video(word, "--engine", "null", "--no-video", cwd=tmp_path).returncode == 0
