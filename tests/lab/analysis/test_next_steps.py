"""The suggested next steps are commands that exist, with figures that were measured."""

import importlib
import json
import shutil
from dataclasses import replace
from functools import reduce
from operator import getitem

import pytest

from detector.core import wings
from detector.lab.analysis.next_steps import AT_MOST, MEASURED, base_command, next_steps
from detector.lab.analysis.noise import decimals, decimals_of_rate, spread_of_run
from detector.lab.session.read import read_session
from detector.lab.terminal.profile import list_faster
from tests.lab.report.sessions import PASSES, change, ran, with_passes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("next"))


@pytest.fixture
def session(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    update_document(copy, "outputs", video="street-null-detected.mp4")
    update_document(copy, "config", "output", save=None)
    update_document(copy, "verdict", bottleneck="write")
    update_document(copy, "fps", end_to_end=40.0)  # as in the results of the passes
    return copy


def add_passes(folder, **more):
    with_passes(folder)
    for name, facts in more.items():
        content = {"available": True, **PASSES[name], **facts}
        (folder / f"passes/{name}.json").write_text(json.dumps(content))
    return read_session(folder)


def by_option(session):
    return {" ".join(step.option): step for step in next_steps(session)}


def update_document(session, *keys, **values):
    """Change values in session.json. ``keys``: the path of the object that contains them."""
    document = json.loads((session / "session.json").read_text())
    reduce(getitem, keys, document).update(values)
    (session / "session.json").write_text(json.dumps(document))


def steps_after(session, *keys, **values):
    update_document(session, *keys, **values)
    return by_option(read_session(session))


@pytest.mark.parametrize(("name", "suggested"), [("a.webm", True), ("a.gif", False)])
def test_faster_encoding_is_suggested_if_the_format_has_one(name, suggested, session):
    assert ("--quality fast" in steps_after(session, "outputs", video=name)) is suggested


@pytest.mark.parametrize("given", [{"preset": "medium"}, {"crf": 30}])
def test_preset_is_suggested_if_preset_or_crf_was_given(given, session):
    assert "--preset ultrafast" in steps_after(session, "config", "output", **given)


def test_smaller_input_named_by_the_verdict_is_suggested(session):
    steps = steps_after(session, "verdict", bottleneck="infer", smaller_input=[192, 320])
    assert [one for one in steps if one.startswith("--size ")] == ["--size 320x192"]


def test_larger_batch_counts_frames_and_not_tiles(session):
    steps = steps_after(session, batch=5)  # --batch 1 --tiles 2x2 has 5 inputs per inference
    assert [one for one in steps if one.startswith("--batch ")] == ["--batch 4"]


def test_run_from_a_pipe_has_no_next_steps(session):
    assert steps_after(session, "video", path="-") == {}


def test_steps_without_what_if_have_no_figures(session):
    steps = next_steps(read_session(session))
    assert len(steps) == 4
    assert {step.figure for step in steps} == {None}
    assert all(step.measure for step in steps)


def test_every_figure_is_a_measurement(session):
    changes = [*PASSES["what_if"]["changes"], change("batch 4", 47.0, (1.15, 1.2))]
    loaded = add_passes(session, what_if={"changes": changes})
    known = {row["change"]: row["fps"]["median"] for row in changes}
    steps = by_option(loaded)
    for step in steps.values():
        if step.figure is not None:
            assert step.figure.fps == known[step.figure.basis]
    assert steps["--no-video"].figure.kind == MEASURED
    assert steps["--quality fast"].figure.kind == AT_MOST
    assert steps["--batch 4"].figure.basis == "batch 4"
    # Changes are compared with unchanged runs of the same round, so we print gains, not rates.
    assert list_faster(loaded) == ["Faster: --batch 4 (measured: +18% FPS)"]


SELF_TIMED = "engine openvino, int8: measured 2.4x of ort fp32 on this machine (self-timing)"
TUNED = "tuned for 960x540 h264 (2026-11-22), 1.8 times the defaults: --precision int8"


@pytest.mark.parametrize(
    ("reason", "engine", "expected"),
    [
        (SELF_TIMED, "auto", True),
        (TUNED, "auto", True),
        ("engine ort: onnxruntime is installed", "auto", False),  # auto chooses ort for any batch
        (None, "openvino", False),  # the command names the engine already
    ],
)
def test_larger_batch_names_the_engine_that_auto_chose(session, reason, engine, expected):
    """Timing or tuning chose the engine at batch 1. At batch 4, auto would choose ort fp32."""
    precision = "auto" if engine == "auto" else "int8"
    update_document(session, "config", "runtime", engine=engine, precision=precision)
    update_document(session, engine="openvino", precision="int8", engine_reason=reason)
    steps = by_option(add_passes(session))
    more = " --engine openvino --precision int8" if expected else ""
    assert [option for option in steps if option.startswith("--batch")] == [f"--batch 4{more}"]
    words = f"--batch 4{more}".split()
    assert list(steps[f"--batch 4{more}"].command[-len(words) :]) == words


@pytest.mark.parametrize(
    ("ratio", "suggested"), [((0.9, 0.97), False), ((0.99, 1.3), False), ((1.01, 1.3), True)]
)
def test_change_must_be_faster_in_every_round_to_be_suggested(ratio, suggested, session):
    row = change("batch 4", 46.0, ratio)
    loaded = add_passes(session, what_if={"changes": [row]})
    assert ("--batch 4" in by_option(loaded)) is suggested


@pytest.mark.parametrize(("low", "suggested"), [(0.99, False), (1.02, True)])
def test_faster_encoding_is_suggested_only_if_writing_costs_time(low, suggested, session):
    changes = [change("write free", 42.0, (low, 1.1)), change("no video", 42.0, (1.01, 1.1))]
    steps = by_option(add_passes(session, what_if={"changes": changes}))
    assert ("--quality fast" in steps) is suggested
    # Now the run is faster than the what_if run that did not write.
    slower = steps_after(session, "fps", end_to_end=43.0).get("--quality fast")
    assert slower is None or slower.figure is None
    assert steps["--no-video"].figure.basis == "no video"  # the same change was measured


def test_steps_with_measured_gains_come_before_upper_bounds(session):
    kinds = [step.figure.kind if step.figure else "" for step in next_steps(add_passes(session))]
    exact = [kind == MEASURED for kind in kinds]
    assert exact == sorted(exact, reverse=True)


@pytest.mark.parametrize(
    "typed",
    [
        [*"profile SOURCE --frames 20 --run-dir runs/x --what-if-seconds 9 --csv".split()],
        ["SOURCE", "-o", "out/", "--conf", "0.3", "--what-if-seconds=9"],
        ["profile", "--only", "layers", "SOURCE", "--json", "--output=x/"],
        ["detect", "SOURCE", "-q"],
    ],
)
def test_suggested_commands_can_be_parsed(session, typed):
    loaded = add_passes(session)
    path = loaded.document.each[0].video.path
    words = ["detect-video", *(path if word == "SOURCE" else word for word in typed)]
    loaded = replace(loaded, document=replace(loaded.document, command=words))
    steps = next_steps(loaded)
    assert len(steps) >= 3
    for step in steps:
        program, *rest = step.command
        assert program == "detect-video"
        assert list(step.command[len(step.command) - len(step.option) :]) == list(step.option)
        name = rest.pop(0) if rest[0] == "tune" else "detect"
        command = importlib.import_module(wings.commands()[name]).command
        command.make_context(name, list(rest))
        dropped = "--run-dir runs/x --what-if-seconds --csv --only --json -o out/".split()
        assert not {*dropped} & {*rest}


def test_command_of_another_program_is_not_repeated(session):
    loaded = read_session(session)
    assert "the clip.mp4" in loaded.document.command
    assert base_command(loaded.document) == ["detect-video", loaded.document.each[0].video.path]


def test_settings_already_in_use_are_not_suggested(session):
    path = read_session(session).document.each[0].video.path
    update_document(session, "config", "output", preset="ultrafast")
    update_document(session, sync=True, command=["detect-video", path, "--sync"])
    steps = next_steps(read_session(session))
    assert not any({"--preset", "--quality"} & set(step.option) for step in steps)
    assert [step for step in steps if "--sync" not in step.command and not step.option]
    assert "--no-video" not in steps_after(session, outputs={})


def test_run_without_frames_has_no_next_steps(session):
    loaded = read_session(session)
    none = replace(loaded.document.frames, read=0, written=0)
    assert next_steps(replace(loaded, document=replace(loaded.document, frames=none))) == []


@pytest.mark.parametrize(
    ("noise", "expected"),
    [(0.0, 2), (0.001, 2), (0.04, 2), (0.1, 1), (0.4, 1), (0.6, 0), (30.0, 0), (float("inf"), 0)],
)
def test_noise_limits_the_number_of_decimals(noise, expected):
    assert decimals(noise) == expected


def test_noise_is_measured_from_the_rounds(session):
    loaded = add_passes(session, loop={"on_ms": [20.0, 21.0, 22.0]})
    assert spread_of_run(loaded) == pytest.approx(0.1)
    assert decimals_of_rate(loaded, 40.0) == 0
    assert decimals_of_rate(loaded, 2.0) == 1
    assert decimals_of_rate(read_session(session), None) == 2


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (("SOURCE", "--track", "--trails", "1s"), ("SOURCE", "--track", "--trails", "1s")),
        (("detect", "SOURCE", "--track", "sort"), ("SOURCE", "--track", "sort")),
        (("profile", "SOURCE", "--only", "layers", "--sync"), ("SOURCE", "--sync")),
    ],
)
def test_suggested_command_keeps_tracking_options_and_drops_passes(session, typed, kept):
    loaded = read_session(session)
    path = loaded.document.each[0].video.path
    words = ["detect-video", *(path if word == "SOURCE" else word for word in typed)]
    document = replace(loaded.document, command=words)
    assert base_command(document)[1:] == [path if word == "SOURCE" else word for word in kept]
