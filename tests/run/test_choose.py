"""How ``auto`` uses the records that ``compare --use`` and ``tune --use`` write."""

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
from detector.core.engines import _ranking
from detector.core.engines._built import sealing
from detector.core.run import choose, in_force, judging, measurements, saving
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
SETTINGS = {
    "engine": "openvino",
    "precision": "int8",
    "concurrency": 2,
    "threads": 1,
    "quality": "fast",
}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(_ranking, "choose_by_rank", lambda *_: ("ort", "engine ort: by rank"))
    monkeypatch.setattr(_ranking, "suggest_library", lambda device: None)
    monkeypatch.setattr(engines, "why_unusable", lambda *_: dict.fromkeys(HERE))
    monkeypatch.setattr(measurements, "library_version", HERE.get)
    set_machine(monkeypatch, "C")


def set_machine(monkeypatch, cpu):
    monkeypatch.setattr(measurements, "this_machine", lambda: MeasuredMachine(cpu, "f", 2, None))


def config(folder, **groups) -> Config:
    runtime = RuntimeConfig(engines_dir=str(folder), **groups.pop("runtime", {}))
    return Config(runtime=runtime, **groups)


def network(sha=SHA, size=SIZE):
    return SimpleNamespace(sha256=sha, input=SimpleNamespace(height=size[0], width=size[1]))


def choose_config(folder, *, sha=SHA, size=SIZE, kind=KIND, measured=True, **groups):
    used = config(folder, **groups)
    return choose.choose(network(sha, size), used, measured=measured, kind=lambda: kind)


def choose_engine(folder, **runtime):
    choice = choose_config(folder, runtime=runtime)
    return choice.config.runtime.engine, choice.config.runtime.precision, choice.reason


def row(engine, precision, low, median, high, agreement: float | None = 1.0, batch=1, error=None):
    fps = Interval(median, low, high)
    variant = Variant(engine, precision, batch, error=error)
    compared = compare_variants([variant], About(source="in.mp4", rounds=5, budget=0.95)).rows[0]
    matched = None if agreement is None else RowAgreement(agreement, None, None, 9, 9, 60)
    return replace(compared, fps={"inference": fps, "end_to_end": fps}, agreement=matched)


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


def record_compare(folder, *rows, used=None, **about):
    return record_comparison(comparison(*rows, **about), used or config(folder)).recorded


def record_tune(folder, kind=KIND, settings=SETTINGS, sha=SHA, size=SIZE, used=None):
    tuning = Tuning(
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
    default = DefaultRun("ort", "fp32", 50.0, size, "m", sha)
    return tune.keep(tuning, used or config(folder), default, kind)


def record(by, folder, used=None):
    if by == "tune":
        record_tune(folder, used=used)
    else:
        record_compare(folder, DEFAULT, row("openvino", "int8", 28, 29, 30), used=used)


both = pytest.mark.parametrize("by", ["compare", "tune"])
BY_RANK = ("ort", "fp32", "engine ort: by rank")


def test_choice_without_a_record_is_the_highest_ranked_engine_in_fp32(tmp_path):
    assert choose_engine(tmp_path) == BY_RANK
    assert choose_engine(tmp_path, engine="torch") == ("torch", "fp32", None)
    assert choose_engine(tmp_path, engine="torch", precision="bf16") == ("torch", "bf16", None)


@both
def test_record_applies_only_if_machine_model_and_settings_are_the_same(tmp_path, monkeypatch, by):
    record(by, tmp_path)
    assert choose_engine(tmp_path)[:2] == ("openvino", "int8")
    for other in (
        {"sha": "cd" * 32},
        {"size": (416, 416)},
        {"measured": False},  # as in eval
        {"runtime": {"threads": 1}},
        {"runtime": {"batch": 4}},
        {"runtime": {"device": "cpu"}},
        {"runtime": {"engine": "ort", "precision": "fp32"}},
    ):
        runtime = choose_config(tmp_path, **other).config.runtime
        assert (runtime.engine, runtime.precision) == ("ort", "fp32"), other
    with monkeypatch.context() as changed:
        changed.setitem(HERE, "openvino", "openvino 2.1")
        assert choose_engine(tmp_path)[0] == "ort"
    with monkeypatch.context() as changed:
        changed.setattr(engines, "why_unusable", lambda *_: {"ort": None, "openvino": "is broken"})
        assert choose_engine(tmp_path)[0] == "ort"
    set_machine(monkeypatch, "D")
    assert choose_engine(tmp_path) == BY_RANK


@both
def test_int8_uses_the_calibration_of_the_record(tmp_path, by):
    clip = tmp_path / "calibrate.mp4"
    clip.touch()
    options = CalibrationConfig(calibrate=str(clip), calibrate_frames=7)
    record(by, tmp_path, config(tmp_path, calibration=options))
    calibration = choose_config(tmp_path).config.calibration
    assert (calibration.calibrate, calibration.calibrate_frames) == (str(clip), 7)
    own = choose_config(
        tmp_path, calibration=CalibrationConfig(calibrate="own.mp4")
    ).config.calibration
    assert own.calibrate == "own.mp4"
    clip.unlink()
    assert choose_engine(tmp_path)[:2] == ("ort", "fp32"), (
        "int8 cannot be calibrated without the clip"
    )


def test_newest_record_of_compare_and_tune_applies(tmp_path):
    record("tune", tmp_path)
    record_compare(tmp_path, DEFAULT, FASTER)
    assert choose_engine(tmp_path)[0] == "torch"
    record_tune(tmp_path, settings={"queue_batches": 4})
    assert choose_engine(tmp_path)[0] == "torch", "the tuning names no engine"
    assert choose_config(tmp_path).config.loop.queue_batches == 4
    record_compare(tmp_path, DEFAULT, row("torch", "fp32", 5, 6, 7))
    assert choose_engine(tmp_path)[0] == "ort"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 9, "measurements": []}', '{"schema": 2}', "null"]
)
def test_unreadable_file_is_ignored_and_replaced(tmp_path, content):
    file = tmp_path / measurements.FILE
    file.write_text(content)
    assert choose_engine(tmp_path) == BY_RANK
    record_compare(tmp_path, DEFAULT, FASTER)
    assert (tmp_path / f"{measurements.FILE}.replaced").read_text() == content
    assert len(json.loads(file.read_text())["measurements"]) == 1
    assert choose_engine(tmp_path)[0] == "torch"


def test_changed_record_is_ignored_with_a_note(tmp_path):
    record_compare(tmp_path, DEFAULT, FASTER)
    path = tmp_path / measurements.FILE
    assert choose_config(tmp_path).notes == ()
    document = json.loads(path.read_text())
    document["measurements"][0]["rows"][1]["agreement"] = 0.99
    path.write_text(json.dumps(document))
    assert choose_engine(tmp_path)[0] == "ort"
    (line,) = choose_config(tmp_path).notes
    assert re.match(f"{path}: .* lacks proof ", line)


def test_file_of_another_version_is_noted_and_kept(tmp_path):
    path = tmp_path / measurements.FILE
    path.write_text(json.dumps(sealing.seal(path.name, {"schema": 1, "comparisons": []})))
    (line,) = choose_config(tmp_path).notes
    assert line.startswith(f"{path}: ignored; written by another version")
    record_compare(tmp_path, DEFAULT, FASTER)
    assert choose_config(tmp_path).notes == ()
    assert (tmp_path / f"{measurements.FILE}.replaced").exists()


def test_newest_records_are_listed_per_model_and_kind_of_source(tmp_path):
    assert in_force.list_in_force(config(tmp_path)) == []
    record_tune(tmp_path, settings={"queue_batches": 2})
    record_tune(tmp_path)
    record_tune(tmp_path, kind="640x360 h264")
    record_compare(tmp_path, DEFAULT, row("torch", "fp32", 20, 21, 22))
    record_compare(tmp_path, DEFAULT, FASTER, sha="cd" * 32)
    listed = in_force.list_in_force(config(tmp_path))
    assert [row["model_input"] for row in listed] == [SIZE] * 4
    speedups = [re.findall(r"\d\S*x\d*", row["reason"])[0] for row in listed]
    assert speedups == ["2.1x", "2.9x", "1280x720", "640x360"]
    undo = f"delete {tmp_path / measurements.FILE} to undo it"
    tune_undo = "to undo: detect-video tune --undo"
    assert [row["undo"] for row in listed] == [undo, undo, tune_undo, tune_undo]
    record_compare(tmp_path, DEFAULT, row("torch", "fp32", 9, 10, 11))  # not faster
    assert len(in_force.list_in_force(config(tmp_path))) == 3
    record_compare(tmp_path, DEFAULT, FASTER, sha="ef" * 32, model_input=None)
    assert (0, 0) in [row["model_input"] for row in in_force.list_in_force(config(tmp_path))]


def test_fastest_row_that_agrees_is_chosen(tmp_path):
    record_compare(
        tmp_path, DEFAULT, row("torch", "fp32", 12, 13, 14), row("torch", "bf16", 28, 29, 30, 0.97)
    )
    engine, precision, reason = choose_engine(tmp_path)
    assert (engine, precision) == ("torch", "bf16")
    assert reason.startswith("engine torch, bf16: measured 2.9x ")
    assert reason.endswith("), agreement with fp32: 0.97")


@pytest.mark.parametrize(
    "other",
    [
        row("ort", "int8", 5, 6, 7),  # slower than the default
        row("ort", "int8", 11, 14, 20),  # its interval touches that of the default
        row("ort", "int8", 28, 29, 30, 0.94),  # agreement below the budget
        row("ort", "int8", 28, 29, 30, None),  # unknown agreement, since nothing was detected
        row("null", "int8", 900, 900, 900),  # ``auto`` never chooses this engine
        row("torch", "int8", 900, 900, 900),  # from an older version, in which torch ran int8
        row("ort", "int8", 28, 29, 30, batch=8),  # another batch size
        row("ort", "int8", 28, 29, 30, error="it crashed"),
    ],
)
def test_unsuitable_row_is_never_chosen(tmp_path, other):
    record_compare(tmp_path, DEFAULT, other)
    assert choose_engine(tmp_path)[:2] == ("ort", "fp32")


def test_reason_says_that_nothing_was_faster_than_the_default(tmp_path):
    record_compare(tmp_path, DEFAULT, row("torch", "fp32", 5, 6, 7))
    assert choose_engine(tmp_path)[2].startswith("engine ort, fp32: nothing")


@pytest.mark.parametrize(
    ("rows", "about", "counts"),
    [
        ((DEFAULT, FASTER), {}, True),
        ((DEFAULT, row("torch", "fp32", 9, 10, 11)), {}, False),
        ((DEFAULT, FASTER), {"comparable": False}, False),
        ((DEFAULT, FASTER), {"rounds": 2}, False),  # two rounds may differ by chance
        ((DEFAULT, FASTER), {"random_weights": 1}, False),
    ],
)
def test_choice_is_previewed_only_if_it_would_apply(tmp_path, rows, about, counts):
    document = comparison(*rows, **about)
    assert (preview_choice(document, config(tmp_path)) is not None) is counts
    assert not (tmp_path / measurements.FILE).exists()
    recorded = record_comparison(document, config(tmp_path)).recorded
    assert choose_engine(tmp_path)[0] == ("torch" if counts else "ort")
    if "random_weights" in about:
        assert recorded.startswith("not kept: ")
        assert not (tmp_path / measurements.FILE).exists()


def test_named_engine_or_precision_restricts_the_choice(tmp_path):
    rows = [
        DEFAULT,
        row("ort", "int8", 20, 21, 22),
        row("torch", "fp32", 12, 13, 14),
        row("torch", "bf16", 38, 39, 40),
    ]
    record_compare(tmp_path, *rows)
    assert choose_engine(tmp_path)[:2] == ("torch", "bf16")
    assert choose_engine(tmp_path, engine="ort")[:2] == ("ort", "int8")
    assert choose_engine(tmp_path, precision="fp32")[:2] == ("torch", "fp32")
    assert choose_engine(tmp_path, precision="int8")[:2] == ("ort", "int8")
    assert choose_engine(tmp_path, engine="torch", precision="fp32") == ("torch", "fp32", None)


def test_higher_budget_excludes_a_row(tmp_path):
    record_compare(tmp_path, DEFAULT, row("torch", "fp32", 28, 29, 30, 0.96))
    assert choose_engine(tmp_path)[0] == "torch"
    strict = choose_config(tmp_path, calibration=CalibrationConfig(budget=0.99))
    assert strict.config.runtime.engine == "ort"


def test_source_of_the_same_kind_gets_tuned_settings_and_a_reason(tmp_path):
    record_tune(tmp_path)
    choice = choose_config(tmp_path)
    assert dict(choice.tuned) == SETTINGS
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
        {"kind": None},  # the source cannot be opened
        {"runtime": {"engine": "ort"}},
        {"runtime": {"precision": "fp32"}},
    ],
)
def test_other_runs_do_not_take_tuned_settings(tmp_path, other):
    record_tune(tmp_path)
    assert choose_config(tmp_path, **other).tuned == {}


def test_source_is_not_opened_without_a_record(tmp_path):
    def never():
        raise AssertionError

    assert choose.choose(network(), config(tmp_path), kind=never).tuned == {}


def test_unsupported_tuned_precision_is_ignored(tmp_path):
    """An older version ran int8 with torch."""
    record_tune(tmp_path, settings={**SETTINGS, "engine": "torch"})
    assert choose_config(tmp_path).tuned == {}
    record_tune(tmp_path, settings={**SETTINGS, "engine": "torch", "precision": "bf16"})
    assert choose_config(tmp_path).tuned != {}


def test_option_given_by_the_user_overrides_tuned_settings(tmp_path):
    record_tune(tmp_path)
    choice = choose_config(tmp_path, output=OutputConfig(crf=30.0))
    assert "quality" not in choice.tuned
    assert (choice.config.output.quality, choice.config.output.crf) == (None, 30.0)


def test_newest_tuning_for_this_kind_of_source_applies(tmp_path):
    record_tune(tmp_path)
    record_tune(tmp_path, settings={"queue_batches": 4, "turbo": True})  # turbo is unknown
    record_tune(tmp_path, kind="640x360 h264", settings={"queue_batches": 2})
    choice = choose_config(tmp_path)
    assert dict(choice.tuned) == {"queue_batches": 4}
    assert (choice.config.runtime.engine, choice.config.loop.queue_batches) == ("ort", 4)


def test_undo_removes_only_tunings_of_this_machine(tmp_path):
    path = record_tune(tmp_path)
    document = json.loads(path.read_text())
    foreign = {"of": "a later version"}
    first = document["measurements"][0]
    timing = {**first, "kind": "self-timing"}
    elsewhere = {**first, "machine": {**first["machine"], "cpu": "D"}}
    document["measurements"] += [foreign, timing, elsewhere]
    path.write_text(json.dumps(sealing.seal(path.name, document)))
    (record,) = saving.forget(config(tmp_path), "tune")
    assert judging.describe(record).startswith("tuned for 1280x720 h264 (")
    remaining = json.loads(path.read_text())["measurements"]
    assert [each.get("kind") for each in remaining] == [None, "self-timing", "tune"]
    assert remaining[0] == foreign
    assert choose_config(tmp_path).tuned == {}
    assert saving.forget(config(tmp_path), "tune") == []
    record_compare(tmp_path, DEFAULT, FASTER)
    assert json.loads(path.read_text())["measurements"][0] == foreign


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"batch": 4}, {"concurrency": 2, "threads": 1}], ids=str)
def test_run_uses_tuned_settings(tmp_path, monkeypatch, settings):
    """Use a real engine: it must run the tuned batch size and the tuned number of requests."""
    monkeypatch.undo()
    from detector.core.run.detect import detect
    from detector.core.run.reading import SourceReading

    used = config(tmp_path / "engines")
    sha, shape = own_network(used)
    settings = {"engine": "ort", "precision": "fp32", **settings}
    record_tune(tmp_path / "engines", SourceReading.of(used).kind_of(STREET), settings, sha, shape)
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
    ids=["with an engine", "without an engine"],
)
def test_loaded_model_reports_its_settings(tmp_path, monkeypatch, settings):
    monkeypatch.undo()
    from detector.core.run.loading import load_model

    used = config(tmp_path / "engines")
    sha, shape = own_network(used)
    record_tune(tmp_path / "engines", KIND, settings, sha, shape)
    loaded = load_model(used, kind=lambda: KIND)
    loaded.engine.close()
    assert dict(loaded.tuned) == settings
    runtime = loaded.config.runtime
    assert (runtime.engine, runtime.precision) == (loaded.engine.name, loaded.engine.precision)
    assert loaded.config.loop.queue_batches == settings.get("queue_batches", 2)
    assert loaded.config.output.crf == settings.get("crf")


def own_network(used: Config) -> tuple[str, tuple[int, int]]:
    from detector.core.run.canvas import open_network

    network = open_network(used, None)
    return network.sha256, (network.input.height, network.input.width)
