"""What ``tune --use`` keeps: for which runs it counts, what it changes, and how it is undone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

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
from detector.core.run import choose, tuned
from detector.core.session.measured import Interval, MeasuredMachine
from detector.lab import tune
from detector.lab.session.tuning import Tuning

STREET = str(Path(__file__).parents[2] / "videos/street.mp4")
SHA, SIZE, KIND = "ab" * 32, (256, 416), "1280x720 h264"
HERE = {"ort": "onnxruntime 1.0", "openvino": "openvino 2.0"}
FOUND = {
    "engine": "openvino",
    "precision": "int8",
    "concurrency": 2,
    "threads": 1,
    "quality": "fast",
}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Two engines in known versions on a known machine; ort is what auto takes by rank."""
    monkeypatch.setattr(choose, "choose_by_rank", lambda *_: ("ort", "engine ort: by rank"))
    monkeypatch.setattr(engines, "usable", lambda: dict.fromkeys(HERE))
    monkeypatch.setattr(choose, "library_version", HERE.get)
    monkeypatch.setattr(choose, "this_machine", lambda: MeasuredMachine("C", "f", 2, None))


def config(folder, **groups) -> Config:
    runtime = RuntimeConfig(engines_dir=str(folder), **groups.pop("runtime", {}))
    return Config(runtime=runtime, **groups)


def keep(folder, kind=KIND, settings=FOUND, sha=SHA, used=None):
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
    return tune.keep(found, used or config(folder), sha, SIZE, kind)


def find(folder, kind=KIND, sha=SHA, size=SIZE, **groups):
    return tuned.find(config(folder, **groups), sha, size, lambda: kind)


def test_a_run_of_the_same_kind_takes_it_and_says_so(tmp_path):
    keep(tmp_path)
    kept = find(tmp_path)
    assert dict(kept.options) == FOUND
    runtime = kept.config.runtime
    assert (runtime.engine, runtime.precision, runtime.concurrency) == ("openvino", "int8", 2)
    assert kept.config.output.quality == "fast"
    assert "tuned for 1280x720 h264" in kept.reason
    assert "1.8 times the defaults" in kept.reason
    assert "detect-video tune --undo undoes it" in kept.reason


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "640x360 h264"},
        {"kind": None},  # it does not open
        {"sha": "cd" * 32},
        {"size": (416, 416)},
        {"runtime": {"engine": "ort"}},
        {"runtime": {"precision": "fp32"}},
        {"runtime": {"batch": 4}},
        {"runtime": {"threads": 1}},
        {"runtime": {"device": "cpu"}},
    ],
)
def test_no_other_run_takes_it(tmp_path, other):
    keep(tmp_path)
    assert find(tmp_path, **other) is None


def test_the_source_is_not_opened_where_nothing_was_kept(tmp_path):
    def never():
        raise AssertionError

    assert tuned.find(config(tmp_path), SHA, SIZE, never) is None


def test_another_machine_or_version_does_not_take_it(tmp_path, monkeypatch):
    keep(tmp_path)
    monkeypatch.setitem(HERE, "openvino", "openvino 2.1")
    assert find(tmp_path) is None
    monkeypatch.setitem(HERE, "openvino", "openvino 2.0")
    assert find(tmp_path) is not None
    monkeypatch.setattr(choose, "this_machine", lambda: MeasuredMachine("D", "f", 2, None))
    assert find(tmp_path) is None


def test_what_an_engine_no_longer_runs_is_not_taken(tmp_path, monkeypatch):
    """torch ran int8 once."""
    monkeypatch.setitem(HERE, "torch", "torch 2.0")
    keep(tmp_path, settings={**FOUND, "engine": "torch"})
    assert find(tmp_path) is None
    keep(tmp_path, settings={**FOUND, "engine": "torch", "precision": "bf16"})
    assert find(tmp_path) is not None


def test_an_option_that_the_user_names_stays(tmp_path):
    keep(tmp_path)
    kept = find(tmp_path, output=OutputConfig(crf=30.0))
    assert "quality" not in kept.options
    assert (kept.config.output.quality, kept.config.output.crf) == (None, 30.0)


def test_int8_brings_the_calibration_that_was_tuned_with(tmp_path):
    clip = tmp_path / "clip.mp4"
    clip.touch()
    used = replace(config(tmp_path), calibration=CalibrationConfig(calibrate=str(clip)))
    keep(tmp_path, used=used)
    assert find(tmp_path).config.calibration.calibrate == str(clip)
    clip.unlink()
    assert find(tmp_path) is None


def test_the_newest_of_a_kind_counts(tmp_path):
    keep(tmp_path)
    keep(tmp_path, settings={"queue_batches": 4})
    keep(tmp_path, kind="640x360 h264", settings={"queue_batches": 2})
    kept = find(tmp_path)
    assert dict(kept.options) == {"queue_batches": 4}
    assert (kept.config.runtime.engine, kept.config.loop.queue_batches) == ("auto", 4)


def test_undo_leaves_everything_else(tmp_path, monkeypatch):
    path = keep(tmp_path)
    document = json.loads(path.read_text())
    foreign = {"of": "a later version"}
    timing = {**document["comparisons"][0], "kind": "self-timing", "tuned": {}}
    elsewhere = {**document["comparisons"][0]}
    elsewhere["machine"] = {**elsewhere["machine"], "cpu": "D"}
    document["comparisons"] += [foreign, timing, elsewhere]
    path.write_text(json.dumps(proof.seal(path.name, document)))
    (line,) = tuned.drop(config(tmp_path))
    assert line.startswith("m, tuned for 1280x720 h264 (")
    left = json.loads(path.read_text())["comparisons"]
    assert [one.get("kind") for one in left] == [None, "self-timing", "tune"]
    assert left[0] == foreign
    assert find(tmp_path) is None
    assert tuned.drop(config(tmp_path)) == []


def test_doctor_lists_each_kind_once(tmp_path):
    keep(tmp_path)
    keep(tmp_path)
    keep(tmp_path, kind="640x360 h264")
    listed = tuned.list_in_force(config(tmp_path))
    assert [one.reason.partition(" (")[0] for one in listed] == [
        "tuned for 1280x720 h264",
        "tuned for 640x360 h264",
    ]
    assert {one.undo for one in listed} == {"undo it: detect-video tune --undo"}
    assert choose.list_in_force(config(tmp_path)) == []


def test_options_of_another_version_are_left_out(tmp_path):
    keep(tmp_path, settings={"queue_batches": 4, "turbo": True})
    assert dict(find(tmp_path).options) == {"queue_batches": 4}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"batch": 4}, {"concurrency": 2, "threads": 1}], ids=str)
def test_a_run_obeys_what_was_kept(tmp_path, monkeypatch, settings):
    """For real: a batch is part of the graph, requests are of the engine."""
    monkeypatch.undo()
    from detector.core.run.detect import detect
    from detector.core.run.loading import load_model
    from detector.core.run.reading import Reading

    own = {"engine": "ort", "precision": "fp32"}
    used = config(tmp_path / "engines")
    loaded = load_model(used)
    loaded.engine.close()
    network = loaded.network
    shape = (network.input.height, network.input.width)
    found = Tuning(
        model="street", engine="ort", precision="fp32", source=STREET, seconds=1.0, floor=0.97,
        rounds=3, settings={**own, **settings}, before=Interval(1, 1, 1), after=Interval(2, 2, 2),
    )  # fmt: skip
    tune.keep(found, used, network.sha256, shape, Reading.of(used).kind_of(STREET))
    output = OutputConfig(output=f"{tmp_path}/out/", run_dir=f"{tmp_path}/run", no_video=True)
    result = detect([STREET], replace(used, output=output, input=InputConfig(frames=9)))
    assert result.exit_code == 0
    assert "tune --undo" in (result.summary.engine_reason or "")
    assert result.summary.batch == settings.get("batch", 1)
    assert result.summary.frames.written == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "asked"),
    [({"engine": "ort", "precision": "fp32", "queue_batches": 4}, False), ({"crf": 30}, True)],
    ids=["names its engine", "leaves it to auto"],
)
def test_without_an_engine_of_its_own_auto_takes_what_it_took(
    tmp_path, monkeypatch, settings, asked
):
    """A queue that was measured with what ``compare --use`` had kept must not run with another."""
    monkeypatch.undo()
    from detector.core.run.loading import load_model

    used = config(tmp_path / "engines")
    loaded = load_model(used)
    loaded.engine.close()
    network = loaded.network
    shape = (network.input.height, network.input.width)
    found = Tuning(
        model="street", engine="ort", precision="fp32", source=STREET, seconds=1.0, floor=0.97,
        rounds=3, settings=settings, before=Interval(1, 1, 1), after=Interval(2, 2, 2),
    )  # fmt: skip
    tune.keep(found, used, network.sha256, shape, KIND)
    told, real = [], choose.choose

    def choosing(config, sha, size, measured, timing):
        told.append(measured)
        return real(config, sha, size, measured, timing)

    monkeypatch.setattr(choose, "choose", choosing)
    loaded = load_model(used, kind=lambda: KIND)
    loaded.engine.close()
    assert dict(loaded.tuned) == settings
    assert told == [asked]
    # What it runs, without any auto, for whoever runs it once more.
    runtime = loaded.config.runtime
    assert (runtime.engine, runtime.precision) == (loaded.engine.name, loaded.engine.precision)
    assert loaded.config.loop.queue_batches == settings.get("queue_batches", 2)
    assert loaded.config.output.crf == settings.get("crf")
