"""What ``auto`` makes of records that a test writes down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from detector.core import engines
from detector.core.config.schema import CalibrationConfig, Config, RuntimeConfig
from detector.core.run import choose
from detector.core.session.measured import Interval, MeasuredMachine
from detector.lab.analysis.compare import Variant, compare_variants
from detector.lab.compare import kept
from detector.lab.session.comparison import About, RowAgreement

SHA, SIZE = "ab" * 32, [256, 416]
ABLE = {"ort": "onnxruntime 1.0", "torch": "torch 2.0"}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """ort is what auto takes by rank; both engines are there, in known versions, on a known
    machine.
    """
    monkeypatch.setattr(choose, "choose_by_rank", lambda *_: ("ort", "engine ort: by rank"))
    monkeypatch.setattr(engines, "usable", lambda: dict.fromkeys(ABLE))
    monkeypatch.setattr(choose, "rank_engines", lambda: list(ABLE))
    monkeypatch.setattr(choose, "library_version", ABLE.get)
    monkeypatch.setattr(choose, "this_machine", lambda: MeasuredMachine("C", "f", 2, None))


def row(engine, precision, low, median, high, agreement: float | None = 1.0, batch=1, error=None):
    fps = Interval(median, low, high)
    variant = Variant(engine, precision, batch, error=error)
    made = compare_variants([variant], About(source="in.mp4", rounds=5, budget=0.95)).rows[0]
    matched = None if agreement is None else RowAgreement(agreement, None, None, 9, 9, 60)
    return replace(made, fps={"inference": fps, "end_to_end": fps}, agreement=matched)


DEFAULT = row("ort", "fp32", 9, 10, 11)


def config(folder, **runtime) -> Config:
    return Config(runtime=RuntimeConfig(engines_dir=str(folder), **runtime))


def recorded(folder, *rows, rounds=5, comparable=True, sha=SHA, used=None, **about):
    same = About(
        source="in.mp4",
        model="m",
        model_sha256=sha,
        model_input=tuple(SIZE),
        rounds=rounds,
        frames=60,
        budget=0.95,
    )
    document = replace(compare_variants([], same), rows=rows, comparable=comparable, **about)
    return kept.record(document, used or config(folder))


def chosen(folder, **runtime):
    choice = choose.choose(config(folder, **runtime), SHA, SIZE)
    return choice.config.runtime.engine, choice.config.runtime.precision, choice.reason


def test_without_a_record_it_is_the_rank_and_fp32(tmp_path):
    assert chosen(tmp_path) == ("ort", "fp32", "engine ort: by rank")
    assert chosen(tmp_path, engine="torch") == ("torch", "fp32", None)
    assert chosen(tmp_path, engine="torch", precision="bf16") == ("torch", "bf16", None)


def test_the_fastest_that_was_measured_and_agrees(tmp_path):
    recorded(
        tmp_path, DEFAULT, row("torch", "fp32", 12, 13, 14), row("torch", "bf16", 28, 29, 30, 0.97)
    )
    engine, precision, reason = chosen(tmp_path)
    assert (engine, precision) == ("torch", "bf16")
    assert reason.startswith(
        "engine torch, bf16: measured 2.9x of ort fp32 on this machine (compare, 20"
    )
    assert reason.endswith("), agreement 0.97")


@pytest.mark.parametrize(
    "other",
    [
        row("ort", "int8", 5, 6, 7),  # slower
        row("ort", "int8", 11, 14, 20),  # its slowest round only touches the default's fastest
        row("ort", "int8", 28, 29, 30, 0.94),  # below the budget
        row("ort", "int8", 28, 29, 30, None),  # nothing was found on either side: nobody knows
        row("null", "int8", 900, 900, 900),  # no engine that auto takes
        row("torch", "int8", 900, 900, 900),  # of an older version, whose torch ran int8
        row("ort", "int8", 28, 29, 30, batch=8),  # not at this batch
        row("ort", "int8", 28, 29, 30, error="it crashed"),
    ],
)
def test_what_is_never_picked(tmp_path, other):
    recorded(tmp_path, DEFAULT, other)
    assert chosen(tmp_path)[:2] == ("ort", "fp32")


def test_that_nothing_was_better_is_said(tmp_path):
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 5, 6, 7))
    assert chosen(tmp_path)[2].startswith(
        "engine ort, fp32: nothing measured on this machine was faster within the"
    )


@pytest.mark.parametrize(
    "about",
    [
        {"rounds": 2},  # intervals of two rounds lie apart by chance
        {"comparable": False},
        {"sha": "cd" * 32},  # another model
        {"model_input": [416, 416]},
    ],
)
def test_records_that_do_not_count(tmp_path, about):
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 28, 29, 30), **about)
    assert chosen(tmp_path) == ("ort", "fp32", "engine ort: by rank")


def test_another_machine_library_or_setting_is_another_measurement(tmp_path, monkeypatch):
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 28, 29, 30))
    assert chosen(tmp_path)[0] == "torch"
    assert chosen(tmp_path, threads=1)[0] == "ort"
    monkeypatch.setattr(choose, "library_version", {**ABLE, "torch": "torch 2.1"}.get)
    assert chosen(tmp_path)[0] == "ort"
    monkeypatch.undo()
    assert chosen(tmp_path)[2] != "engine ort: by rank", "the real machine is another one"


def test_a_named_engine_or_precision_narrows_the_choice(tmp_path):
    rows = [
        DEFAULT,
        row("ort", "int8", 20, 21, 22),
        row("torch", "fp32", 12, 13, 14),
        row("torch", "bf16", 38, 39, 40),
    ]
    recorded(tmp_path, *rows)
    assert chosen(tmp_path)[:2] == ("torch", "bf16")
    assert chosen(tmp_path, engine="ort")[:2] == ("ort", "int8")
    assert chosen(tmp_path, precision="fp32")[:2] == ("torch", "fp32")
    assert chosen(tmp_path, precision="int8")[:2] == ("ort", "int8")
    assert chosen(tmp_path, engine="torch", precision="fp32") == ("torch", "fp32", None)


def test_the_newest_record_counts_and_a_budget_of_ones_own(tmp_path):
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 28, 29, 30, 0.96))
    strict = replace(config(tmp_path), calibration=CalibrationConfig(budget=0.99))
    assert choose.choose(strict, SHA, SIZE).config.runtime.engine == "ort"
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 5, 6, 7))
    assert chosen(tmp_path)[0] == "ort"


def test_int8_comes_with_the_calibration_that_was_measured(tmp_path):
    source = tmp_path / "calibrate.mp4"
    source.write_text("")
    used = replace(
        config(tmp_path), calibration=CalibrationConfig(calibrate=str(source), calibrate_frames=7)
    )
    recorded(tmp_path, DEFAULT, row("ort", "int8", 28, 29, 30), used=used)
    choice = choose.choose(config(tmp_path), SHA, SIZE).config
    assert (choice.calibration.calibrate, choice.calibration.calibrate_frames) == (str(source), 7)
    source.unlink()
    assert chosen(tmp_path)[:2] == ("ort", "fp32"), "it could not be calibrated anew"


def test_random_weights_are_not_kept(tmp_path):
    assert recorded(tmp_path, DEFAULT, random_weights=0).startswith("not kept: with random weights")
    assert not (tmp_path / choose.FILE).exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 9, "comparisons": []}', '{"schema": 1}', "null"]
)
def test_a_file_that_cannot_be_read_is_as_good_as_absent(tmp_path, content):
    (tmp_path / choose.FILE).write_text(content)
    assert chosen(tmp_path) == ("ort", "fp32", "engine ort: by rank")
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 28, 29, 30))
    aside = tmp_path / f"{choose.FILE}.replaced"
    assert aside.read_text() == content
    assert len(json.loads((tmp_path / choose.FILE).read_text())["comparisons"]) == 1
    assert chosen(tmp_path)[0] == "torch"


def test_a_record_that_was_changed_is_not_taken_and_is_said(tmp_path):
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 28, 29, 30))
    path = tmp_path / choose.FILE
    assert chosen(tmp_path)[0] == "torch"
    assert choose.why_not_read(config(tmp_path)) == []
    document = json.loads(path.read_text())
    document["comparisons"][0]["rows"][1]["agreement"] = 0.99
    path.write_text(json.dumps(document))
    assert chosen(tmp_path)[0] == "ort"
    (line,) = choose.why_not_read(config(tmp_path))
    assert line.startswith(f"{path}: measured.json does not prove that a run of this account")


def test_eval_leaves_records_aside(tmp_path):
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 20, 21, 22))
    assert chosen(tmp_path)[0] == "torch"
    aside = choose.choose(config(tmp_path), SHA, SIZE, measured=False)
    assert (aside.config.runtime.engine, aside.config.runtime.precision) == ("ort", "fp32")


def test_what_is_in_force_is_the_newest_of_each_model(tmp_path):
    assert choose.list_in_force(config(tmp_path)) == []
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 20, 21, 22))
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 30, 31, 32), sha="cd" * 32)
    found = choose.list_in_force(config(tmp_path))
    assert [one.model_input for one in found] == [tuple(SIZE)] * 2
    assert all("torch" in one.reason for one in found)
    recorded(tmp_path, DEFAULT, row("torch", "fp32", 9, 10, 11))  # now nothing is faster
    assert len(choose.list_in_force(config(tmp_path))) == 1


@pytest.mark.parametrize(
    ("rows", "about", "told"),
    [
        ((DEFAULT, row("torch", "fp32", 20, 21, 22)), {}, True),
        ((DEFAULT, row("torch", "fp32", 9, 10, 11)), {}, False),
        ((DEFAULT, row("torch", "fp32", 20, 21, 22)), {"comparable": False}, False),
        ((DEFAULT, row("torch", "fp32", 20, 21, 22)), {"rounds": 1}, False),
        ((DEFAULT, row("torch", "fp32", 20, 21, 22)), {"random_weights": 1}, False),
    ],
)
def test_the_question_is_asked_only_where_something_would_change(tmp_path, rows, about, told):
    same = About(
        source="in.mp4",
        model="m",
        model_sha256=SHA,
        model_input=tuple(SIZE),
        rounds=5,
        frames=60,
        budget=0.95,
    )
    given = {"rounds": 5, "comparable": True, **about}
    document = replace(compare_variants([], same), rows=rows, **given)
    assert (kept.preview(document, config(tmp_path)) is not None) is told
    assert not (tmp_path / choose.FILE).exists()
