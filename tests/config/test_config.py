"""Options from several levels (defaults, file, command line): precedence, types, limits, errors."""

import dataclasses
import json
import subprocess
import sys

import pytest
import yaml

from detector.core.api import KEYWORDS
from detector.core.config.elsewhere import IN_PYTHON, answer_keyword
from detector.core.config.levels import COMMAND_LINE, merge_levels, read_level, resolve_config
from detector.core.config.schema import Config, choices_of, flag_of, help_of, options
from detector.core.errors import UsageError
from tests.conftest import CHECKOUT
from tests.one_line import one_line_error


def test_texts_generated_from_the_options_are_up_to_date():
    command = [sys.executable, CHECKOUT / "scripts/options", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_default_yaml_loads_as_the_default_config():
    assert merge_levels(read_level(CHECKOUT / "cfg/default.yaml")) == Config()


def test_default_yaml_has_every_option_in_its_group():
    content = yaml.safe_load((CHECKOUT / "cfg/default.yaml").read_text())
    assert {(group, name) for group, leaves in content.items() for name in leaves} == {
        (g, f.name) for g, f in options()
    }


def test_usage_page_names_every_option():
    page = (CHECKOUT / "docs/usage.md").read_text()
    assert all(
        f"`{flag_of(leaf)}" in page or leaf.metadata.get("flags")
        for _, leaf in options()
        if not leaf.metadata.get("hidden")
    )


def test_help_names_every_choice():
    """x264 has too many presets for a line, so help names only the first and the last."""
    for _, leaf in options():
        choices = choices_of(leaf)
        named = (choices[0], choices[-1]) if leaf.name == "preset" else choices
        assert all(choice in help_of(leaf) for choice in named), leaf.name


def test_later_level_overrides_single_options():
    config = merge_levels(
        ("default", {"selection": {"conf": 0.1, "iou": 0.2}, "runtime": {"batch": 2}}),
        ("file", {"selection": {"conf": 0.3}}),
        (COMMAND_LINE, {"batch": "8"}),
    )
    assert (config.selection.conf, config.selection.iou, config.runtime.batch) == (0.3, 0.2, 8)


def test_option_may_be_given_without_its_group():
    assert merge_levels(("f", {"conf": 0.7})) == merge_levels(("f", {"selection": {"conf": 0.7}}))


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().runtime.batch = 3


ERRORS = [
    # options of a file, parts of the message
    ({"cnf": 1}, ["f.yaml", "cnf", "selection.conf"]),
    ({"selection": {"cnf": 1}}, ["selection.cnf", "selection.conf"]),
    ({"runtime": {"conf": 1}}, ["runtime.conf", "selection.conf"]),
    ({"max-dets": 1}, ["max-dets", "selection.max_det"]),
    ({"images": 1}, ["images; known: "]),  # max_age is not similar enough to be suggested
    ({"conf": 1.5}, ["selection.conf", "at most 1"]),
    ({"conf": 5}, ["selection.conf", "at most 1", "0.05"]),
    ({"conf": 100}, ["selection.conf", "did you mean 1?"]),
    ({"conf": "high"}, ["selection.conf", "a number"]),
    ({"conf": float("nan")}, ["selection.conf", "a number"]),
    ({"batch": 0}, ["runtime.batch", "at least 1"]),
    ({"batch": 1.5}, ["runtime.batch", "a whole number"]),
    ({"keep_gb": "200GB"}, ["record.keep_gb", "in GB"]),
    ({"frames": True}, ["input.frames", "a whole number"]),
    ({"sync": "maybe"}, ["loop.sync", "true or false"]),
    ({"save": ["vidoe"]}, ["output.save", "did you mean video?"]),
    ({"save": ["txt"]}, ["output.save", "did you mean yolo?"]),
    ({"decoder": "ffmpeg"}, ["input.decoder", "'ffmpeg'", "auto", "opencv", "av"]),
    ({"precision": "fp61"}, ["runtime.precision", "did you mean fp16?"]),
    ({"precision": "half"}, ["runtime.precision", "did you mean fp16?"]),
    ({"batch": float("inf")}, ["runtime.batch", "a whole number"]),
    ({"engine": None}, ["runtime.engine", "needs a value"]),
    ({"classes": ""}, ["selection.classes", "a list of words"]),
]


@pytest.mark.parametrize(("level", "parts"), ERRORS, ids=[str(row[0]) for row in ERRORS])
def test_error_for_a_wrong_option_contains_its_path_and_the_fix(level, parts):
    with one_line_error(UsageError, *parts):
        merge_levels(("f.yaml", level))


def test_command_line_error_names_the_flag():
    with pytest.raises(UsageError, match=r"^--max-det: 0 .* 1$"):
        merge_levels((COMMAND_LINE, {"max_det": "0"}))


def test_missing_config_file_is_an_error(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with one_line_error(UsageError, f"{path}: ", "YAML file, or the session.json of a run"):
            read_level(path)


SESSION = {
    "schema": 1,
    "engine": "ort",
    "precision": "int8",
    "model_input": [352, 608],
    "config": Config().with_options({"conf": 0.4, "run_dir": "r/a", "model": "x.onnx"}).as_dict(),
    "session": "r/a",
}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {"conf": 0.4, "run_dir": None, "engine": "ort", "precision": "int8"}),
        ({"conf": 0.7, "size": "64x64"}, {"conf": 0.7, "engine": "ort", "size": "64x64"}),
        ({}, {"size": "608x352"}),
    ],
)
def test_session_as_config_repeats_its_run_with_the_same_settings(tmp_path, flags, expected):
    session, model = tmp_path / "r/a/session.json", tmp_path / "x.onnx"
    session.parent.mkdir(parents=True)
    for path in (session, model):
        path.write_text(json.dumps(SESSION))
    config = resolve_config(str(session), flags)  # the run of this session was in ``tmp_path``
    expected |= {"model": str(model)}
    assert {name: config.value(name) for name in expected} == expected


NOT_WHOLE = "session.json: not a whole session.json of a run"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(SESSION | {"model_input": None}), NOT_WHOLE),
        (json.dumps(SESSION | {"config": {}}), NOT_WHOLE),
        ('{"schema": 1, "engine": "ort"}', NOT_WHOLE),  # a summary.json
        ('{"schema": 1, "engine"', "session.json:1: not valid JSON"),
        ("", "not an empty file"),
    ],
)
def test_damaged_session_is_refused_as_a_config(tmp_path, text, message):
    (tmp_path / "session.json").write_text(text)
    with one_line_error(UsageError, message):
        resolve_config(str(tmp_path / "session.json"), {})


def test_every_option_has_help_and_a_unique_flag():
    flags = [flag_of(leaf) for _, leaf in options()]
    assert len(set(flags)) == len(flags)
    assert all(help_of(leaf).endswith(".") for _, leaf in options())


DEVICES = [("0", "cuda:0"), (1, "cuda:1"), ("CPU", "cpu"), ("GPU.1", "gpu:1"), ("intel:NPU", "npu")]


@pytest.mark.parametrize(("given", "device"), DEVICES)
def test_device_accepts_numbers_and_aliases(given, device):
    assert resolve_config(None, {"device": given}).runtime.device == device


def test_default_of_every_numeric_option_is_within_its_limits():
    for _, leaf in options():
        if str(leaf.type).partition(" ")[0] in ("int", "float"):
            low, high = leaf.metadata["at_least"], leaf.metadata["at_most"]
            assert low <= (low if leaf.default is None else leaf.default) <= high, leaf.name


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("loop: {queue_batches: 99999999}", "loop.queue_batches"),
        ("batch: 1025", "runtime.batch"),
        ("max_det: 100001", "selection.max_det"),
        ("conf: .inf", "selection.conf"),
        (f"model: {'a' * 5000}", "network.model"),
        (f"size: '{'9' * 5000}'", "runtime.size"),
        ("classes: [[a]]", "selection.classes"),
        ("save: {a: 1}", "output.save"),
        ("a: [", ".*not valid YAML"),
        ("just text", ".*a mapping of options"),
    ],
)
def test_value_beyond_a_limit_is_an_error_that_names_the_key(tmp_path, text, key):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"c.yaml:.*{key}"):
        merge_levels(read_level(file))


@pytest.mark.parametrize(
    "options_given", [{"infer_every": "3"}, {"smooth": True}, {"zones": "z.yaml"}]
)
def test_option_that_needs_tracks_turns_tracking_on(options_given):
    assert merge_levels((COMMAND_LINE, options_given)).tracking.track == "bytetrack"
    chosen = {**options_given, "track": "sort"}
    assert merge_levels((COMMAND_LINE, chosen)).tracking.track == "sort"
    assert merge_levels((COMMAND_LINE, {})).tracking.track is None
    assert merge_levels((COMMAND_LINE, {"save": "tracks"})).tracking.track == "bytetrack"


@pytest.mark.parametrize(
    ("names", "read"),
    [
        ("[a, 7]", ("a", "7")),
        ("{1: b, 0: a}", ("a", "b")),
        ("{'1': b, '0': a}", ("a", "b")),
        ("{1: b, 2: a}", None),
        ("[[a], b]", None),
        ("[{a: b}]", None),
    ],
)
def test_class_names_in_a_config_file_are_read_or_refused(tmp_path, names, read):
    file = tmp_path / "c.yaml"
    file.write_text(f"network: {{names: {names}}}")
    if read is None:
        with pytest.raises(UsageError, match=r"c\.yaml: names"):
            resolve_config(str(file), {})
    else:
        assert resolve_config(str(file), {}).network.class_names == read


def test_foreign_keyword_is_answered_with_ours():
    assert answer_keyword("save_txt", True, KEYWORDS) == IN_PYTHON["save_txt"]
    assert answer_keyword("imgsz", 640, KEYWORDS) == "use size=640"
    assert answer_keyword("nothing_of_the_kind", 1, KEYWORDS) is None
    assert answer_keyword("imgsz", 640, ()) != answer_keyword("imgsz", 640, KEYWORDS)
