"""Help, suggestions for other programs' options, and shell completion."""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from unittest import mock

import click
import pytest
from click.testing import CliRunner

from detector.core import engines
from detector.core.cli.exits import end
from detector.core.cli.group import cli, command_names
from detector.core.cli.habits import refuse_split_lists
from detector.core.config.levels import resolve_config
from detector.core.config.schema import flag_of, options, short_of
from detector.core.errors import UsageError
from tests.cli.command import assert_one_line_error, detect_video
from tests.conftest import CHECKOUT
from tests.sources.clips import write_video

HEAVY = ("torch", "cv2", "onnx", "onnxruntime", "av", "numpy", "rich", "yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([name, "--help"] for name in ("detect", "eval", "compare", "build", "doctor")),
    ],
)
def test_help_imports_nothing_heavy(arguments):
    command = [sys.executable, "-X", "importtime", "-m", "detector", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {*re.findall(r"\| +(\w+)[.\w]*$", done.stderr, re.M)}
    assert "click" in imported, "the list of imports is empty"
    assert imported & set(HEAVY) <= {"yaml"}


def pages() -> str:
    names = ("usage", "batch", "compare", "models", "reading", "tracks", "counting")
    return "".join((CHECKOUT / f"docs/{name}.md").read_text() for name in names)


@pytest.mark.slow
def test_every_option_is_in_the_help_and_in_the_documentation(tmp_path):
    text = detect_video("--help", "all", cwd=tmp_path).stdout
    usage = pages()
    for _, leaf in options():
        if not leaf.metadata.get("hidden"):
            assert flag_of(leaf) in text
        assert flag_of(leaf) in usage or leaf.name in usage, leaf.name
    for name in command_names():
        hidden = cli.get_command(click.Context(cli), name).hidden
        assert (name in text) is not hidden, name
        assert hidden or re.search(rf"(`|detect-video ){name}\b", usage), name


@pytest.mark.parametrize(
    "command", ["batch", "build", "compare", "diff", "doctor", "eval", "profile", "report", "tune"]
)
def test_every_option_of_the_command_is_in_the_documentation(command):
    usage = pages()
    for parameter in cli.get_command(click.Context(cli), command).params:
        for option in () if getattr(parameter, "hidden", False) else parameter.opts:
            if option.startswith("--"):
                assert option in usage or option[2:].replace("-", "_") in usage, option


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "meant"), [("profle", "profile"), ("detct", "detect"), ("Compare", "compare")]
)
def test_misspelt_command_exits_2_with_a_suggestion(tmp_path, word, meant):
    write_video(tmp_path / "in.mp4", 3)
    process = detect_video(word, "in.mp4", cwd=tmp_path)
    assert_one_line_error(process, 2, f"No such command or file '{word}'. Did you mean '{meant}'?")
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]
    (tmp_path / "in.mp4").rename(tmp_path / word)
    assert detect_video(word, "--engine", "null", "--no-video", cwd=tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["help"], ["--help"]),
        (["help", "compare"], ["compare", "--help"]),
        (["help", "config", "show"], ["config", "show", "--help"]),
        (["help", "cameras"], ["--help", "cameras"]),
    ],
)
def test_help_command_prints_the_same_as_the_help_option(words, same, tmp_path):
    actual, expected = (detect_video(*given, cwd=tmp_path) for given in (words, same))
    assert (actual.returncode, actual.stdout) == (0, expected.stdout)
    assert expected.stdout.startswith("Usage: ")


def help_of_words(*words, width=80):
    with mock.patch.dict(os.environ, COLUMNS=str(width)):
        return CliRunner().invoke(cli, list(words), prog_name="detect-video")


def test_main_help_fits_a_screen():
    lines = help_of_words("--help").output.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert "..." not in "".join(lines[lines.index("Commands:") :])
    shown = {flag_of(leaf) for _, leaf in options() if leaf.metadata.get("common")}
    text = "\n".join(lines)
    assert 12 <= len(shown) <= 20
    assert all(f" {flag}" in text for flag in shown)
    assert "--token-file" not in text


@pytest.mark.parametrize("command", [(), ("detect",), ("compare",)], ids=str)
def test_help_can_be_limited_to_a_group_or_an_option(command):
    whole = help_of_words(*command, "--help", "all").output
    selection = help_of_words(*command, "--help", "selection").output
    assert "--max-det" in selection
    assert "--max-det" not in help_of_words(*command, "--help").output
    assert "--size" in whole
    assert "--size" not in selection
    for word in ("max-det", "--max-det", "max_det"):
        one = help_of_words(*command, "--help", word).output
        assert "--max-det" in one
        assert "--conf" not in one
    assert "--size" in help_of_words(*command, "--help", "imgsz").output
    wrong = help_of_words(*command, "--help", "nosuch")
    assert wrong.exit_code == 2
    assert "selection" in wrong.output


def test_file_after_help_does_not_change_the_help(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.mp4").touch()
    assert help_of_words("--help", "in.mp4").output == help_of_words("--help").output


def test_every_option_has_a_short_help_text():
    for _, leaf in options():
        assert 3 <= len(short_of(leaf)) <= 50, leaf.name
        assert "{" not in short_of(leaf)


@pytest.mark.parametrize(("words", "part"), [(["config"], "\n  show "), ([], "SOURCE")])
def test_command_without_arguments_prints_its_help(tmp_path, words, part):
    done = detect_video(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr
    assert words or len(done.stderr.splitlines()) == 6


HABITS = [
    (("in.mp4", "--imgsz", "640"), "--size"),
    (("in.mp4", "--project", "x"), "--run-dir"),
    (("in.mp4", "conf=0.3"), "--conf 0.3"),
    (("track", "in.mp4"), "detect-video in.mp4 --track"),
    (("export", "yolov5n"), "build"),
    (("yolov5nn",), "--model yolov5n"),
    (("--source", "in.mp4"), "--source: name the source without an option"),
    (("in.mp4", "--show"), "use --serve 8080"),
    (("in.mp4", "--save_crop"), "use --save crops"),
    (("in.mp4", "--half"), "--precision fp16, or bf16"),
    (("in.mp4", "--profile"), "detect-video profile in.mp4"),
    (("in.mp4", "--count"), "detect-video zones"),
    (("0", "--port", "8080"), "use --serve"),
    (("0", "--log-file", "x"), "2> FILE"),
    (("serve", "cameras.yaml"), "--serve 8080"),
    (("--list-models",), "detect-video models"),
    (("-h", "report"), "use detect-video report --help"),
    (("in.mp4", "--track", "botsort"), "bytetrack or ocsort"),
    (("in.mp4", "--track", "True"), "use --track"),
    (("predict", "source=x", "imgsz=640"), "use detect-video x --size 640 --iou 0.7."),
    (("predict", "source=my x", "half=True", "save=False"), "'my x' --precision fp16 --no-video "),
    (("yolo", "detect", "val", "data=x"), "use detect-video eval x."),
    (("yolo", "mode=predict", "source=x"), "use detect-video x --iou"),
    (("yolo", "segment", "predict"), "'segment': masks are not supported"),
    (("train", "x.yaml"), "--model"),
    (
        ("x.mp4", "--imgsz", "480", "640", "--conf-thres", ".3", "--save-txt", "--nosave"),
        "use detect-video x.mp4 --size 640x480 --conf .3 --save yolo.",
    ),
    (
        ("--source", "x.mp4", "--weights", "a.pt", "--half", "--project", "p", "--name", "n"),
        "use detect-video x.mp4 --precision fp16 --model a.pt -o p/n/.",
    ),
    (("track", "source=x", "tracker=botsort.yaml"), "--track bytetrack --iou"),
    (("predict", "source=x", "augment=True"), "no equivalent of augment."),
    (("predict", "source=x", "cfg=a.yaml"), "no equivalent of cfg=a.yaml."),
    (("export", "--weights", "a.pt", "--include", "onnx"), "use detect-video build a.pt --to"),
    (("in.mp4", "--augment"), "not supported; --tiles finds"),
    (("in.mp4", "--save-json"), "use --save coco."),
    (("obb", "in.mp4"), "oriented boxes are not supported"),
    (("benchmark", "model=a.pt"), "in.mp4 stands for your video."),
    (("val", "data=x.yaml", "model=a.pt"), "use detect-video eval x.yaml --model a.pt."),
    (("val", "--data", "x.yaml", "--weights", "a.pt"), "eval x.yaml --model a.pt."),
    (("count", "in.mp4"), "detect-video zones"),
    (("burn", "in-overlay.mkv"), "-vf subtitles="),
    (("tune", "in.mp4", "--frames", "60"), "--frames: use --duration"),
    (("diff", "a", "b", "--threshold", "5%"), "--threshold: use --max-regression"),
    (("in.mp4", "--threshold", "0.5"), "--threshold: use --conf"),
    (("compare", "x", "--engine", "ort", "openvino"), "use --engine ort,openvino."),
    (("compare", "x", "--imgsz", "640", "--half"), "detect-video compare x --size 640 --precis"),
    (("-i", "x.mp4", "-y", "o.mp4"), "use detect-video x.mp4 -o o.mp4."),
    (("in.mp4", "--classes", "0", "2"), "use --classes 0,2."),
    (("in.mp4", "--blur", "--frames", "3"), "--blur: needs a value before --frames."),
    (("in.mp4", "--classes", "0,", "2", "--json"), "use --classes 0,2."),
    (("--classes", "person", "car", "in.mp4"), "use --classes person,car."),
    (("in.mp4", "--blur", "person", "car"), "use --blur person,car."),
    (("solutions", "count", "source=x"), "use detect-video zones x, draw on its page, then detect"),
    (("yolo", "solutions", "count"), "then detect-video in.mp4 --zones in-zones.yaml."),
    (("yolo", "solutions", "heatmap", "source=x"), "'solutions heatmap': not a command"),
    (("yolo", "benchmark", "model=a.onnx", "imgsz=640"), "compare in.mp4 --model a.onnx --size"),
    (("yolo", "version"), "use detect-video --version."),
    (("in.mp4", "--track", "ocsrt"), "did you mean --track ocsort?"),
    (("eval", "x", "--modle", "y"), "No such option '--modle'. Did you mean '--model'?"),
    (("eval", "--config", "a.json"), "a.json has options, no input; run: detect-video eval IN"),
]


# Arguments of ``yolo`` -> our command line.
YOLO_LINES = {
    "predict source=bus.jpg save_txt=True": "bus.jpg --save pictures,yolo --iou 0.7",
    "predict source=shots/*.png save_crop": "'shots/*.png' --save pictures,crops --iou 0.7",
    "predict source=. save_txt save_conf": ". --save-conf --save pictures,yolo --iou 0.7",
    "predict source=x.mp4 save_txt save_crop": "x.mp4 --save video,yolo,crops --iou 0.7",
    "predict source=x.mp4 save_conf=True classes=[2,7]": "x.mp4 --classes 2,7 --iou 0.7",
    "predict source=x 'classes=[2, 7]' imgsz=320,640": "x --classes 2,7 --size 640x320 --iou 0.7",
    "predict source=x.mp4 imgsz=[320,640] conf=None": "x.mp4 --size 640x320 --iou 0.7",
    "predict source=x.mp4 imgsz=(640,) agnostic_nms=True": "x.mp4 --size 640 --agnostic --iou 0.7",
    "predict source=x.mp4 agnostic_nms=False half": "x.mp4 --precision fp16 --iou 0.7",
    "predict source=x.mp4 show_labels=False show_conf=True": "x.mp4 --hide-labels --iou 0.7",
    "predict source=x.mp4 show=True vid_stride=2 classes=0": "x.mp4 --serve 8080 --stride 2 "
    "--classes 0 --iou 0.7",
    "val model=a.onnx data=x.yaml half=True": "eval x.yaml --model a.onnx --precision fp16",
    "export model=a.pt format=onnx half=True": "build a.pt --to onnx",
    "predict source=x/* model=a.pt iou=0.5": "'x/*' --model a.pt --iou 0.5 --size 640 --rect",
    "track source=x persist=True model=a.pt": "x --track --model a.pt --iou 0.7 --size 640",
    "val model=a.pt data=x.yaml save_txt=True": "eval x.yaml --model a.pt",
    "benchmark model=a.pt data=x.yaml": "compare in.mp4 --model a.pt --dataset x.yaml",
    "solutions count source=x.mp4 'region=[(2, 20), (60, 20)]'": "x.mp4 --zones "
    """'{"lines":{"region":[[2, 20], [60, 20]]}}'""",
    "solutions count source=x.mp4 region=((0,0),(9,0),(9,9))": "x.mp4 --zones "
    """'{"zones":{"region":[[0,0],[9,0],[9,9]]}}'""",
    "export model=a.pt format=onnx int8=True": "build a.pt --to onnx",
    "export model=a.pt format=engine half=True": "build a.pt --engine trt --precision fp16",
}


@pytest.mark.parametrize("theirs", YOLO_LINES)
def test_ultralytics_commands_are_translated(theirs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    _, message = refusal_of(["yolo", *shlex.split(theirs)])
    (line,) = re.findall(r": use detect-video (.+?)\.(?: |$)", message)
    assert line == YOLO_LINES[theirs]
    parse(shlex.split(line))


@pytest.mark.parametrize(
    ("words", "answer"),
    HABITS,
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_foreign_option_is_refused_with_the_name_of_ours(words, answer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, message = refusal_of(words)
    assert answer in message
    assert code == 2
    for line in re.findall(r"(?:use|then) (detect-video .+?)(?=[.,] |\.$)", message):
        parse(shlex.split(line)[1:])


def parse(words):
    """Parse the words as the command does, without running it. Raises click.UsageError."""
    with suppress(click.exceptions.Exit):  # --version exits
        context = cli.make_context("detect-video", words)
        words = [*context._protected_args, *context.args]
        name, command, rest = cli.resolve_command(context, words)
        given = command.make_context(name, rest, parent=context).params
        leaves = {leaf.name for _, leaf in options()}
        resolve_config(None, {key: given[key] for key in leaves & given.keys()})


def refusal_of(words):
    try:
        cli.main(list(words), prog_name="detect-video", standalone_mode=False)
    except click.UsageError as error:
        return error.exit_code, error.format_message()
    raise AssertionError("it ran")


def test_word_after_a_list_of_classes_may_be_a_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = click.Context(click.Command("detect"))
    for words in (["--classes", "person", "0"], ["rtsp://a/b", "--classes", "2", "0"]):
        refuse_split_lists(words, [*words[:-3], words[-1]], context)
    (tmp_path / "car").touch()
    refuse_split_lists(["in.mp4", "--classes", "0", "car"], ["in.mp4", "car"], context)


@pytest.mark.parametrize(
    ("name", "ours"),
    [("tensorrt", "trt"), ("ONNX", "ort"), ("onnxruntime", "ort"), ("pytorch", "torch")],
)
def test_other_engine_names_are_recognised(name, ours):
    with pytest.raises(UsageError, match=f"did you mean {ours}[?]"):
        engines.find(name)


@pytest.mark.slow
def test_existing_file_named_like_a_command_is_a_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("track", "conf=0.3", "predict", "yolov5nn", "./detect"):
        (tmp_path / name).write_bytes(b"no video")
        with pytest.raises(SystemExit) as caught:
            cli.main([name, "--engine", "null"], prog_name="detect-video", standalone_mode=False)
        assert caught.value.code == 3


@pytest.mark.parametrize("name", sorted(command_names()))
def test_help_of_every_command_fits_a_screen(name):
    for width in (60, 80, 100):
        lines = help_of_words(name, "--help", width=width).output.splitlines()
        if width < 80:
            lines = [line for line in lines if not line.strip().startswith("detect-video ")]
        assert max(map(len, lines)) <= width
        assert len(lines) <= 60 or width != 80


def test_config_show_prints_each_value_and_its_origin(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("conf: 0.4\nsize: 320x192\n", encoding="utf-8")
    words = ["config", "show", "--config", str(own), "--iou", "0.6", "--json"]
    result = CliRunner().invoke(cli, words, prog_name="detect-video")
    options = json.loads(result.output)["options"]
    assert options["selection"]["conf"] == {"value": 0.4, "from": str(own)}
    assert options["selection"]["iou"] == {"value": 0.6, "from": "command line"}
    assert options["selection"]["max_det"] == {"value": 300, "from": "default"}


def completions(shell, line, cwd):
    words = line.split()
    place = len(words) - 1 + line.endswith(" ")
    env = {
        "_DETECT_VIDEO_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": line.rpartition(" ")[2] if shell == "fish" else str(place),
    }
    done = detect_video(cwd=cwd, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    rows = done.stdout.splitlines()
    if shell == "zsh":
        return list(zip(rows[::3], rows[1::3], strict=False))
    return [tuple(row.split("\t")[0].split(",", 1)) for row in rows if row]


SAVES = [("plain", f"--save{what}") for what in ("", "-conf", "-times")]
COMPLETIONS = [
    ("detect-video pro", [("file", "pro"), ("plain", "profile")]),
    ("detect-video --sa", SAVES),
    ("detect-video --json", [("plain", "--json")]),
    ("detect-video ../clips/peo", [("file", "../clips/peo")]),
    ("detect-video in.mp4 ../clips/peo", [("file", "../clips/peo")]),
    ("detect-video in.mp4 --sa", SAVES),
    ("detect-video in.mp4 --save csv,j", [("plain", "csv,jsonl")]),
    ("detect-video --engine op", [("plain", "openvino")]),
    ("detect-video --model yolox_n", [("file", "yolox_n"), ("plain", "yolox_nano")]),
    ("detect-video --classes person,v", [("plain", "person,vehicle")]),
    ("detect-video --model yolox_nano --blur bicy", [("plain", "bicycle")]),
    ("detect-video completion z", [("plain", "zsh")]),
    ("detect-video --config ow", [("file", "ow")]),
    ("detect-video predict --sa", SAVES),
    ("detect-video track --sa", SAVES),
    ("detect-video compare in", [("file", "in")]),
    ("detect-video models show yolox_n", [("file", "yolox_n"), ("plain", "yolox_nano")]),
    ("detect-video config ", [("plain", "show")]),
]


@pytest.mark.parametrize(("line", "expected"), COMPLETIONS, ids=[line for line, _ in COMPLETIONS])
def test_bash_completes_words(line, expected, tmp_path):
    assert completions("bash", line, tmp_path) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes_the_first_word(shell, tmp_path):
    found = completions(shell, "detect-video ", tmp_path)
    shown = {
        name for name in command_names() if not cli.get_command(click.Context(cli), name).hidden
    }
    assert found[0] == ("file", "")
    assert {value for kind, value in found if kind == "plain"} == shown
    options = completions(shell, "detect-video --fon", tmp_path)
    assert sorted(options) == [("plain", "--font"), ("plain", "--font-scale")]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_accept_the_completion_script(shell, tmp_path):
    script = tmp_path / "script"
    script.write_text(detect_video("completion", shell, cwd=tmp_path).stdout)
    begin = "autoload -Uz compinit; compinit; " if shell == "zsh" else ""
    query = "echo $_comps[detect-video]" if shell == "zsh" else "complete -c detect-video"
    done = subprocess.run(
        [shell, "-c", f"{begin}source {script}; {query}"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "detect" in done.stdout


@pytest.mark.slow
def test_bash_uses_the_completion_script(tmp_path):
    program = tmp_path / "detect-video"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m detector "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(./detect-video completion bash)"
        complete -p detect-video
        compopt() { echo compopt "$@"; }
        COMP_WORDS=(./detect-video pro) COMP_CWORD=1
        _detect_video_completion ./detect-video
        echo "${COMPREPLY[@]}"
        COMP_WORDS=(./detect-video clips/peo)
        _detect_video_completion ./detect-video
        echo "${#COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    compopt = "compopt -o default"
    assert done.stdout.splitlines()[1:] == [compopt, "profile", compopt, "0"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["in.mp4", "--confi", "1"], "detect-video --help"),  # the user did not type ``detect``
        (["batch", "in.mp4"], "detect-video batch --help"),
        (["models", "show"], "detect-video models show --help"),
        (["completion"], "detect-video completion --help"),
        (["bacth"], "detect-video --help"),
    ],
)
def test_usage_error_names_the_matching_help(arguments, expected, monkeypatch, capsys):
    with pytest.raises(click.UsageError) as caught:
        cli.main(arguments, prog_name="detect-video", standalone_mode=False)
    monkeypatch.setattr(sys, "argv", ["detect-video", *arguments])
    assert end(caught.value) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert ".." not in message
    assert "\\" not in message, "a line end was escaped"
    assert message.endswith(f" {expected}.\n")
