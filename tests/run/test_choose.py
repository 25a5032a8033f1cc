"""Check what ``auto`` does with the records that ``compare --use`` and ``tune --use`` write."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from detector.core import engines
from detector.core.config.schema import (
    CalibrationConfig,
    Config,
    InputConfig,
    OutputConfig,
    RuntimeConfig,
)
from detector.core.engines._built import proof
from detector.core.run import choose, measurements
from detector.core.session.measured import Interval, MeasuredMachine
from detector.lab import tune
from detector.lab.analysis.compare import Variant, compare_variants
from detector.lab.compare import preview_choice, record_comparison
from detector.lab.session.comparison import About, RowAgreement
from detector.lab.session.tuning import Tuning
from detector.lab.tune.candidates import DefaultRun

STREET = str(Path(__file__).parents[2] / "videos/street.mp4")
SHA, SIZE, KIND = "ab" * 32, (256, 416), "1280x720 h264"
HERE = {"ort": "onnxruntime 1.0", "torch": "torch 2.0", "openvino": "openvino 2.0"}
FOUND = {
    "engine": "openvino",
    "precision": "int8",
    "concurrency": 2,
    "threads": 1,
    "quality": "fast",
}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(engines, "choose_by_rank", lambda *_: ("ort", "engine ort: by rank"))
    monkeypatch.setattr(engines, "suggest_library", lambda device: None)
    monkeypatch.setattr(engines, "usable", lambda *_: dict.fromkeys(HERE))
    monkeypatch.setattr(measurements, "library_version", HERE.get)
    set_machine(monkeypatch, "C")


def set_machine(monkeypatch, cpu):
    monkeypatch.setattr(measurements, "this_machine", lambda: MeasuredMachine(cpu, "f", 2, None))


def config(folder, **groups) -> Config:
    runtime = RuntimeConfig(engines_dir=str(folder), **groups.pop("runtime", {}))
    return Config(runtime=runtime, **groups)


def network(sha=SHA, size=SIZE):
    return SimpleNamespace(sha256=sha, input=SimpleNamespace(height=size[0], width=size[1]))


def take(folder, *, sha=SHA, size=SIZE, kind=KIND, measured=True, **groups):
    asked = config(folder, **groups)
    return choose.choose(network(sha, size), asked, measured=measured, kind=lambda: kind)


def chosen(folder, **runtime):
    choice = take(folder, runtime=runtime)
    return choice.config.runtime.engine, choice.config.runtime.precision, choice.reason


# ---- what writes


def row(engine, precision, low, median, high, agreement: float | None = 1.0, batch=1, error=None):
    fps = Interval(median, low, high)
    variant = Variant(engine, precision, batch, error=error)
    made = compare_variants([variant], About(source="in.mp4", rounds=5, budget=0.95)).rows[0]
    matched = None if agreement is None else RowAgreement(agreement, None, None, 9, 9, 60)
    return replace(made, fps={"inference": fps, "end_to_end": fps}, agreement=matched)


DEFAULT = row("ort", "fp32", 9, 10, 11)
FASTER = row("torch", "fp32", 28, 29, 30)


def comparison(*rows, sha=SHA, rounds=5, comparable=True, **about):
    same = About(
        source="in.mp4",
        model="m",
        model_sha256=sha,
        model_input=SIZE,
        rounds=rounds,
        frames=60,
        budget=0.95,
    )
    return replace(compare_variants([], same), rows=rows, comparable=comparable, **about)


def compared(folder, *rows, used=None, **about):
    return record_comparison(comparison(*rows, **about), used or config(folder)).recorded


def tuned(folder, kind=KIND, settings=FOUND, sha=SHA, size=SIZE, used=None):
    found = Tuning(
        model="m",
        engine="ort",
        precision="fp32",
        source="in.mp4",
        seconds=50.0,
        floor=0.97,
        rounds=3,
        settings=settings,
        before=Interval(50.0, 49.0, 51.0),
        after=Interval(90.0, 89.0, 91.0),
        agreement=0.98,
    )
    plain = DefaultRun("ort", "fp32", 50.0, size, "m", sha)
    return tune.keep(found, used or config(folder), plain, kind)


def keep(by, folder, used=None):
    if by == "tune":
        tuned(folder, used=used)
    else:
        compared(folder, DEFAULT, row("openvino", "int8", 28, 29, 30), used=used)


both = pytest.mark.parametrize("by", ["compare", "tune"])
BY_RANK = ("ort", "fp32", "engine ort: by rank")


# ---- of both


def test_without_a_record_it_is_the_rank_and_fp32(tmp_path):
    assert chosen(tmp_path) == BY_RANK
    assert chosen(tmp_path, engine="torch") == ("torch", "fp32", None)
    assert chosen(tmp_path, engine="torch", precision="bf16") == ("torch", "bf16", None)


@both
def test_it_counts_for_this_machine_model_input_setting_and_library(tmp_path, monkeypatch, by):
    keep(by, tmp_path)
    assert chosen(tmp_path)[:2] == ("openvino", "int8")
    for other in (
        {"sha": "cd" * 32},
        {"size": (416, 416)},
        {"measured": False},  # as eval asks
        {"runtime": {"threads": 1}},
        {"runtime": {"batch": 4}},
        {"runtime": {"device": "cpu"}},
        {"runtime": {"engine": "ort", "precision": "fp32"}},
    ):
        runtime = take(tmp_path, **other).config.runtime
        assert (runtime.engine, runtime.precision) == ("ort", "fp32"), other
    with monkeypatch.context() as changed:
        changed.setitem(HERE, "openvino", "openvino 2.1")
        assert chosen(tmp_path)[0] == "ort"
    with monkeypatch.context() as changed:
        changed.setattr(engines, "usable", lambda *_: {"ort": None, "openvino": "is broken"})
        assert chosen(tmp_path)[0] == "ort"
    set_machine(monkeypatch, "D")
    assert chosen(tmp_path) == BY_RANK


@both
def test_int8_comes_with_the_calibration_that_was_measured(tmp_path, by):
    clip = tmp_path / "calibrate.mp4"
    clip.touch()
    given = CalibrationConfig(calibrate=str(clip), calibrate_frames=7)
    keep(by, tmp_path, config(tmp_path, calibration=given))
    found = take(tmp_path).config.calibration
    assert (found.calibrate, found.calibrate_frames) == (str(clip), 7)
    own = take(tmp_path, calibration=CalibrationConfig(calibrate="own.mp4")).config.calibration
    assert own.calibrate == "own.mp4"
    clip.unlink()
    assert chosen(tmp_path)[:2] == ("ort", "fp32"), "it could not be calibrated again"


def test_the_newest_of_both_counts(tmp_path):
    keep("tune", tmp_path)
    compared(tmp_path, DEFAULT, FASTER)
    assert chosen(tmp_path)[0] == "torch"
    tuned(tmp_path, settings={"queue_batches": 4})
    assert chosen(tmp_path)[0] == "torch", "the search named no engine: auto takes what it took"
    assert take(tmp_path).config.loop.queue_batches == 4
    compared(tmp_path, DEFAULT, row("torch", "fp32", 5, 6, 7))
    assert chosen(tmp_path)[0] == "ort"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 9, "measurements": []}', '{"schema": 2}', "null"]
)
def test_a_file_that_cannot_be_read_is_as_good_as_absent(tmp_path, content):
    file = tmp_path / measurements.FILE
    file.write_text(content)
    assert chosen(tmp_path) == BY_RANK
    compared(tmp_path, DEFAULT, FASTER)
    assert (tmp_path / f"{measurements.FILE}.replaced").read_text() == content
    assert len(json.loads(file.read_text())["measurements"]) == 1
    assert chosen(tmp_path)[0] == "torch"


def test_changed_record_is_ignored_with_a_note(tmp_path):
    compared(tmp_path, DEFAULT, FASTER)
    path = tmp_path / measurements.FILE
    assert take(tmp_path).notes == ()
    document = json.loads(path.read_text())
    document["measurements"][0]["rows"][1]["agreement"] = 0.99
    path.write_text(json.dumps(document))
    assert chosen(tmp_path)[0] == "ort"
    (line,) = take(tmp_path).notes
    assert re.match(f"{path}: .* lacks proof ", line)


def test_file_of_another_version_is_noted_and_kept(tmp_path):
    path = tmp_path / measurements.FILE
    path.write_text(json.dumps(proof.seal(path.name, {"schema": 1, "comparisons": []})))
    (line,) = take(tmp_path).notes
    assert line.startswith(f"{path}: ignored; written by another version")
    compared(tmp_path, DEFAULT, FASTER)
    assert take(tmp_path).notes == ()
    assert (tmp_path / f"{measurements.FILE}.replaced").exists()


def test_doctor_lists_the_newest_of_each_model_and_kind_of_source(tmp_path):
    assert choose.list_in_force(config(tmp_path)) == []
    tuned(tmp_path, settings={"queue_batches": 2})
    tuned(tmp_path)
    tuned(tmp_path, kind="640x360 h264")
    compared(tmp_path, DEFAULT, row("torch", "fp32", 20, 21, 22))
    compared(tmp_path, DEFAULT, FASTER, sha="cd" * 32)
    listed = choose.list_in_force(config(tmp_path))
    assert [one["model_input"] for one in listed] == [SIZE] * 4
    told = [re.findall(r"\d\S*x\d*", one["reason"])[0] for one in listed]
    assert told == ["2.1x", "2.9x", "1280x720", "640x360"]
    undo = f"delete {tmp_path / measurements.FILE} to undo it"
    tune_undo = "to undo: detect-video tune --undo"
    assert [one["undo"] for one in listed] == [undo, undo, tune_undo, tune_undo]
    compared(tmp_path, DEFAULT, row("torch", "fp32", 9, 10, 11))  # now nothing is faster
    assert len(choose.list_in_force(config(tmp_path))) == 3
    compared(tmp_path, DEFAULT, FASTER, sha="ef" * 32, model_input=None)
    assert (0, 0) in [one["model_input"] for one in choose.list_in_force(config(tmp_path))]


# ---- of a comparison


def test_the_fastest_that_was_measured_and_agrees(tmp_path):
    compared(
        tmp_path, DEFAULT, row("torch", "fp32", 12, 13, 14), row("torch", "bf16", 28, 29, 30, 0.97)
    )
    engine, precision, reason = chosen(tmp_path)
    assert (engine, precision) == ("torch", "bf16")
    assert reason.startswith("engine torch, bf16: measured 2.9x ")
    assert reason.endswith("), agreement with fp32 0.97")


@pytest.mark.parametrize(
    "other",
    [
        row("ort", "int8", 5, 6, 7),  # slower
        row("ort", "int8", 11, 14, 20),  # its slowest round only touches the default's fastest
        row("ort", "int8", 28, 29, 30, 0.94),  # below the budget
        row("ort", "int8", 28, 29, 30, None),  # neither side found anything: unknown
        row("null", "int8", 900, 900, 900),  # no engine that auto takes
        row("torch", "int8", 900, 900, 900),  # of an older version, whose torch ran int8
        row("ort", "int8", 28, 29, 30, batch=8),  # not at this batch
        row("ort", "int8", 28, 29, 30, error="it crashed"),
    ],
)
def test_what_is_never_picked(tmp_path, other):
    compared(tmp_path, DEFAULT, other)
    assert chosen(tmp_path)[:2] == ("ort", "fp32")


def test_default_is_chosen_with_the_reason_if_nothing_was_faster(tmp_path):
    compared(tmp_path, DEFAULT, row("torch", "fp32", 5, 6, 7))
    assert chosen(tmp_path)[2].startswith("engine ort, fp32: nothing")


@pytest.mark.parametrize(
    ("rows", "about", "counts"),
    [
        ((DEFAULT, FASTER), {}, True),
        ((DEFAULT, row("torch", "fp32", 9, 10, 11)), {}, False),
        ((DEFAULT, FASTER), {"comparable": False}, False),
        ((DEFAULT, FASTER), {"rounds": 2}, False),  # intervals of two lie apart by chance
        ((DEFAULT, FASTER), {"random_weights": 1}, False),
    ],
)
def test_the_question_is_asked_only_where_the_answer_would_count(tmp_path, rows, about, counts):
    document = comparison(*rows, **about)
    assert (preview_choice(document, config(tmp_path)) is not None) is counts
    assert not (tmp_path / measurements.FILE).exists()
    recorded = record_comparison(document, config(tmp_path)).recorded
    assert chosen(tmp_path)[0] == ("torch" if counts else "ort")
    if "random_weights" in about:
        assert recorded.startswith("not kept: ")
        assert not (tmp_path / measurements.FILE).exists()


def test_a_named_engine_or_precision_narrows_the_choice(tmp_path):
    rows = [
        DEFAULT,
        row("ort", "int8", 20, 21, 22),
        row("torch", "fp32", 12, 13, 14),
        row("torch", "bf16", 38, 39, 40),
    ]
    compared(tmp_path, *rows)
    assert chosen(tmp_path)[:2] == ("torch", "bf16")
    assert chosen(tmp_path, engine="ort")[:2] == ("ort", "int8")
    assert chosen(tmp_path, precision="fp32")[:2] == ("torch", "fp32")
    assert chosen(tmp_path, precision="int8")[:2] == ("ort", "int8")
    assert chosen(tmp_path, engine="torch", precision="fp32") == ("torch", "fp32", None)


def test_a_budget_of_ones_own(tmp_path):
    compared(tmp_path, DEFAULT, row("torch", "fp32", 28, 29, 30, 0.96))
    assert chosen(tmp_path)[0] == "torch"
    strict = take(tmp_path, calibration=CalibrationConfig(budget=0.99))
    assert strict.config.runtime.engine == "ort"


# ---- of a search


def test_a_run_of_the_same_kind_takes_what_was_found_and_says_so(tmp_path):
    tuned(tmp_path)
    choice = take(tmp_path)
    assert dict(choice.tuned) == FOUND
    runtime = choice.config.runtime
    assert (runtime.engine, runtime.precision, runtime.concurrency) == ("openvino", "int8", 2)
    assert choice.config.output.quality == "fast"
    assert "tuned for 1280x720 h264" in choice.reason
    assert "1.8x" in choice.reason
    assert "detect-video tune --undo" in choice.reason


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "640x360 h264"},
        {"kind": None},  # it does not open
        {"runtime": {"engine": "ort"}},
        {"runtime": {"precision": "fp32"}},
    ],
)
def test_no_other_run_takes_a_search(tmp_path, other):
    tuned(tmp_path)
    assert take(tmp_path, **other).tuned == {}


def test_the_source_is_not_opened_where_nothing_was_kept(tmp_path):
    def never():
        raise AssertionError

    assert choose.choose(network(), config(tmp_path), kind=never).tuned == {}


def test_what_an_engine_no_longer_runs_is_not_taken(tmp_path):
    """torch ran int8 once."""
    tuned(tmp_path, settings={**FOUND, "engine": "torch"})
    assert take(tmp_path).tuned == {}
    tuned(tmp_path, settings={**FOUND, "engine": "torch", "precision": "bf16"})
    assert take(tmp_path).tuned != {}


def test_an_option_that_the_user_names_stays(tmp_path):
    tuned(tmp_path)
    kept = take(tmp_path, output=OutputConfig(crf=30.0))
    assert "quality" not in kept.tuned
    assert (kept.config.output.quality, kept.config.output.crf) == (None, 30.0)


def test_the_newest_of_a_kind_counts(tmp_path):
    tuned(tmp_path)
    tuned(tmp_path, settings={"queue_batches": 4, "turbo": True})  # turbo: of another version
    tuned(tmp_path, kind="640x360 h264", settings={"queue_batches": 2})
    kept = take(tmp_path)
    assert dict(kept.tuned) == {"queue_batches": 4}
    assert (kept.config.runtime.engine, kept.config.loop.queue_batches) == ("ort", 4)


def test_undo_leaves_everything_else(tmp_path):
    path = tuned(tmp_path)
    document = json.loads(path.read_text())
    foreign = {"of": "a later version"}
    first = document["measurements"][0]
    timing = {**first, "kind": "self-timing"}
    elsewhere = {**first, "machine": {**first["machine"], "cpu": "D"}}
    document["measurements"] += [foreign, timing, elsewhere]
    path.write_text(json.dumps(proof.seal(path.name, document)))
    (record,) = measurements.forget(config(tmp_path), "tune")
    assert choose.describe(record).startswith("tuned for 1280x720 h264 (")
    left = json.loads(path.read_text())["measurements"]
    assert [one.get("kind") for one in left] == [None, "self-timing", "tune"]
    assert left[0] == foreign
    assert take(tmp_path).tuned == {}
    assert measurements.forget(config(tmp_path), "tune") == []
    compared(tmp_path, DEFAULT, FASTER)
    assert json.loads(path.read_text())["measurements"][0] == foreign


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"batch": 4}, {"concurrency": 2, "threads": 1}], ids=str)
def test_a_run_obeys_what_was_kept(tmp_path, monkeypatch, settings):
    """For real: a batch is part of the graph, requests are of the engine."""
    monkeypatch.undo()
    from detector.core.run.detect import detect
    from detector.core.run.reading import SourceReading

    used = config(tmp_path / "engines")
    sha, shape = own_network(used)
    settings = {"engine": "ort", "precision": "fp32", **settings}
    tuned(tmp_path / "engines", SourceReading.of(used).kind_of(STREET), settings, sha, shape)
    output = OutputConfig(output=f"{tmp_path}/out/", run_dir=f"{tmp_path}/run", no_video=True)
    result = detect([STREET], replace(used, output=output, input=InputConfig(frames=9)))
    assert result.exit_code == 0
    assert "tune --undo" in (result.summary.engine_reason or "")
    assert result.summary.batch == settings.get("batch", 1)
    assert result.summary.frames.written == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"engine": "ort", "precision": "fp32", "queue_batches": 4}, {"crf": 30}],
    ids=["names its engine", "leaves it to auto"],
)
def test_a_model_is_loaded_without_any_auto(tmp_path, monkeypatch, settings):
    """The loaded model reports its settings, for running it again."""
    monkeypatch.undo()
    from detector.core.run.loading import load_model

    used = config(tmp_path / "engines")
    sha, shape = own_network(used)
    tuned(tmp_path / "engines", KIND, settings, sha, shape)
    loaded = load_model(used, kind=lambda: KIND)
    loaded.engine.close()
    assert dict(loaded.tuned) == settings
    runtime = loaded.config.runtime
    assert (runtime.engine, runtime.precision) == (loaded.engine.name, loaded.engine.precision)
    assert loaded.config.loop.queue_batches == settings.get("queue_batches", 2)
    assert loaded.config.output.crf == settings.get("crf")


def own_network(used: Config) -> tuple[str, tuple[int, int]]:
    from detector.core.run.canvas import open_network

    found = open_network(used, None)
    return found.sha256, (found.input.height, found.input.width)
