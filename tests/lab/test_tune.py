"""The search of ``tune``, on jobs whose speeds the test decides; and the command, once for real."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from detector.core import engines
from detector.core.config.levels import resolve_config
from detector.core.config.schema import Config, NetworkConfig, OutputConfig, RuntimeConfig
from detector.core.errors import EngineError
from detector.core.run.choose import in_words
from detector.core.run.signals import Stopped
from detector.core.types import Detections
from detector.lab import tune as module
from detector.lab.terminal.tune import verdict
from detector.lab.tune import ROUNDS, Ran, Search, as_config
from tests.cli.command import detect_video

DEFAULT = Config()
STREET = Path(__file__).parents[2] / "videos/street.mp4"


def detections(frames: int, wrong: float = 0.0) -> list[Detections]:
    """One object a frame; ``wrong`` of them lie elsewhere."""
    made = []
    for number in range(frames):
        shift = 500 if number < wrong * frames else 0
        box = np.array([[10 + shift, 10, 60 + shift, 60]], np.float32)
        made.append(Detections(box, np.array([0.9], np.float32), np.array([0])))
    return made


class Job:
    """A job of known speed. Every run takes its own seconds, and half a second to load."""

    def __init__(
        self, speed, wrong=lambda settings: 0.0, empty: bool = False, engine: str = "ort"
    ) -> None:
        self.now, self.ran, self._engine = 0.0, [], engine
        self._speed, self._wrong, self._empty = speed, wrong, empty

    def clock(self) -> float:
        return self.now

    def __call__(self, settings, frames) -> Ran:
        fps = self._speed(settings)
        if fps is None:
            raise EngineError("it does not run here")
        self.ran.append((settings, frames))
        self.now += 0.5 + frames / fps
        found = detections(frames, self._wrong(settings))
        if self._empty:
            found = [Detections.empty()] * frames
        size = 2000 if settings.get("quality") == "fast" else 1000
        engine, precision = settings.get("engine", self._engine), settings.get("precision", "fp32")
        return Ran(fps, found, size, engine, precision, "m")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Two engines on two cores, both able to run fp32 and int8; ort in fp32 is the default."""

    def graph_wanted(name, precision, device):
        if precision not in ("fp32", "int8"):
            raise EngineError("not here")
        return precision

    monkeypatch.setattr(engines, "rank_engines", lambda: ["ort", "torch"])
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    monkeypatch.setattr(engines, "usable", lambda: {"ort": None, "torch": None, "trt": "is absent"})
    monkeypatch.setattr(engines, "graph_wanted", graph_wanted)
    monkeypatch.setattr(engines, "suggest_library", lambda device: None)


def search(job: Job, config: Config = DEFAULT, floor: float = 0.97, seconds: float = 60.0):
    return Search(job, config, floor, seconds, lambda *_: None, job.clock).find("in.mp4")


def by_rules(settings) -> float:
    """int8 doubles, torch halves, two requests of one thread add a half, fast encoding a tenth."""
    fps = 50.0
    fps *= 2 if settings.get("precision") == "int8" else 1
    fps *= 0.5 if settings.get("engine") == "torch" else 1
    fps *= 1.5 if (settings.get("concurrency"), settings.get("threads")) == (2, 1) else 1
    return fps * (1.1 if settings.get("quality") == "fast" else 1)


def test_each_axis_adds_what_is_fastest():
    found = search(Job(by_rules))
    assert found.settings == {
        "engine": "ort", "precision": "int8", "concurrency": 2, "threads": 1, "quality": "fast",
    }  # fmt: skip
    assert found.ratio.median == pytest.approx(2 * 1.5 * 1.1)
    assert found.before.median == 50
    assert found.video_bytes_ratio == 2
    assert found.agreement == 1


def test_other_requests_keep_the_engine_and_precision_of_the_defaults():
    """The self-timing of the default model says nothing about other numbers of requests."""
    job = Job(lambda settings: 50.0 if not settings else 40.0)
    found = search(job)
    shapes = [one.settings for one in found.trials if "concurrency" in one.settings]
    assert shapes
    assert all((one["engine"], one["precision"]) == ("ort", "fp32") for one in shapes)


def test_the_floor_leaves_out_what_finds_other_things():
    job = Job(by_rules, wrong=lambda settings: 0.1 if settings.get("precision") == "int8" else 0)
    found = search(job)
    assert found.settings.get("precision", "fp32") == "fp32"
    (tried,) = {one.agreement for one in found.trials if one.settings == {
        "engine": "ort", "precision": "int8"}}  # fmt: skip
    assert tried == pytest.approx(0.9, abs=0.05)
    assert search(Job(by_rules, job._wrong), floor=0.5).settings["precision"] == "int8"


def test_the_defaults_stand_where_nothing_beats_them():
    """Their figure is that of their longest trial, beside others of the same length."""
    speeds = itertools.count(50.0)
    found = search(Job(lambda settings: next(speeds) if not settings else 40.0))
    assert (found.settings, found.after) == ({}, None)
    plain = [one for one in found.trials if not one.settings]
    longest = max(one.frames for one in plain)
    assert longest > plain[0].frames
    assert found.before.median == [one.fps for one in plain if one.frames == longest][-1]
    (line,) = verdict(found, "")
    assert f"{found.before.median:.1f} FPS" in line
    assert "[" not in line


def test_what_wins_only_sometimes_is_no_winner():
    """The same settings are once faster and once slower than the defaults."""
    speeds = iter([60.0, 40.0, 60.0, 60.0, 45.0, 44.0, 60.0, 58.0] * 20)
    found = search(Job(lambda settings: next(speeds) if settings else 50.0))
    assert found.settings == {}


def test_what_fails_is_said_and_does_not_end_the_search():
    found = search(Job(lambda s: None if s.get("engine") == "torch" else by_rules(s)))
    assert found.settings["precision"] == "int8"
    assert any("--engine torch --precision fp32" in note for note in found.notes)


def test_the_better_half_runs_on_twice_as_many_frames():
    job = Job(by_rules)
    search(job)
    first = job.ran[1][1]
    trials = [(in_words(settings), frames) for settings, frames in job.ran[2:]]
    assert trials[:4] == [
        ("the defaults", first),
        ("--engine ort --precision int8", first),
        ("--engine torch --precision fp32", first),
        ("--engine torch --precision int8", first),
    ]
    assert [frames for _, frames in trials[4:6]] == [2 * first] * 2
    assert trials[6][1] == first  # the next axis begins anew


def test_it_ends_in_time():
    job = Job(lambda settings: 4.0)
    found = search(job, seconds=20)
    assert found.settings == {}
    assert job.now < 40


def test_it_says_that_it_had_no_time():
    found = search(Job(by_rules), seconds=1)
    assert verdict(found, "")[0].endswith("no other setting was tried.")
    assert ["--seconds" in note for note in found.notes] == [True]


def test_an_absent_library_that_would_be_faster_is_named(monkeypatch):
    monkeypatch.setattr(engines, "suggest_library", lambda device: f"install it for {device}")
    assert "install it for auto" in search(Job(by_rules)).notes


def test_where_nothing_is_found_only_fp32_is_taken():
    found = search(Job(by_rules, empty=True))
    assert found.settings.get("precision", "fp32") == "fp32"
    assert any("nothing was detected" in note for note in found.notes)


def test_random_weights_say_nothing_about_precision():
    config = replace(DEFAULT, network=NetworkConfig(random_weights=0))
    assert search(Job(by_rules), config).settings.get("precision", "fp32") == "fp32"


@pytest.mark.parametrize(
    ("config", "left_alone"),
    [
        (replace(DEFAULT, runtime=RuntimeConfig(engine="torch")), {"engine": "ort"}),
        (replace(DEFAULT, runtime=RuntimeConfig(precision="fp32")), {"precision": "int8"}),
        (replace(DEFAULT, runtime=RuntimeConfig(threads=1)), {"concurrency": 2}),
        (replace(DEFAULT, runtime=RuntimeConfig(batch=3)), {"batch": 2}),
        (replace(DEFAULT, output=OutputConfig(crf=30)), {"quality": "fast"}),
    ],
    ids=["engine", "precision", "threads", "batch", "crf"],
)
def test_what_is_named_is_left_alone(config, left_alone):
    engine = "ort" if config.runtime.engine == "auto" else config.runtime.engine
    found = search(Job(by_rules, engine=engine), config)
    assert not any(left_alone.items() <= one.settings.items() for one in found.trials)


def test_the_last_comparison_is_by_turns():
    job = Job(by_rules)
    search(job)
    last = [settings for settings, _ in job.ran[-2 * ROUNDS :]]
    assert last[::2] == [{}] * ROUNDS
    assert all(last[1::2])


def test_settings_reach_their_groups_and_the_file_gives_them_again(tmp_path):
    settings = {"engine": "ort", "precision": "int8", "queue_batches": 4, "quality": "fast"}
    config = DEFAULT.with_options(settings)
    assert (config.runtime.engine, config.loop.queue_batches) == ("ort", 4)
    found = replace(search(Job(by_rules)), settings=settings)
    file = tmp_path / "tuned.yaml"
    file.write_text(as_config(found, None))
    again = resolve_config(str(file), {})
    assert again.runtime == config.runtime
    assert again.output.quality == "fast"
    assert yaml.safe_load(as_config(found, "x.mp4"))["calibration"] == {"calibrate": "x.mp4"}


@pytest.mark.slow
def test_the_command(tmp_path):
    done = detect_video(
        "tune", STREET, "--engine", "ort", "--seconds", "3", "--no-video", "--json", "-o", "t.yaml",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["trials"][0]["settings"] == {}
    assert document["trials"][0]["fps"] > 0
    assert (tmp_path / "t.yaml").exists() == bool(document["settings"])
    assert {path.name for path in tmp_path.iterdir()} <= {"t.yaml"}


def test_a_signal_during_a_run_ends_the_search(monkeypatch):
    """A run that was interrupted is no trial, and no other one follows."""
    interrupted = SimpleNamespace(exit_code=130, errors=[])
    monkeypatch.setattr(module, "detect", lambda *given, **more: interrupted)
    with pytest.raises(Stopped):
        module.run_once("in.mp4", DEFAULT, 3)


def found_for(monkeypatch, use: bool, speed=by_rules):
    """``tune`` on a job of the test's, for a source of a known kind."""
    job = Job(speed)
    monkeypatch.setattr(module, "run_once", lambda source, config, frames: job(job.asked, frames))
    monkeypatch.setattr(Config, "with_options", lambda config, given: setattr(job, "asked", given))
    monkeypatch.setattr("detector.core.run.reading.Reading.kind_of", lambda *_: "1280x720 h264")
    kept = []
    monkeypatch.setattr("detector.lab.tune.keep", lambda *given: kept.append(given) or "m.json")
    found = module.tune(
        "in.mp4", DEFAULT, floor=0.97, seconds=60.0, watch=lambda *_: None, clock=job.clock, use=use
    )
    return found, kept


def test_it_is_kept_only_on_request(monkeypatch):
    found, kept = found_for(monkeypatch, use=False)
    assert found.settings
    assert (found.kept, kept) == (None, [])


def test_use_keeps_it_for_this_kind_of_input(monkeypatch):
    found, [(tuning, config, _, _, kind)] = found_for(monkeypatch, use=True)
    assert (found.kept, found.input_kind) == ("m.json", "1280x720 h264")
    assert (tuning.settings, config, kind) == (found.settings, DEFAULT, "1280x720 h264")


def test_nothing_is_kept_where_the_defaults_stand(monkeypatch):
    found, kept = found_for(monkeypatch, use=True, speed=lambda settings: 50.0)
    assert (found.settings, found.kept, kept) == ({}, None, [])


@pytest.mark.parametrize("more", [[STREET], ["--use"], ["-o", "x.yaml"]])
def test_undo_goes_alone(tmp_path, more):
    done = detect_video("tune", "--undo", *more, "--engines-dir", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "--undo forgets all" in done.stderr


def test_undo_where_nothing_was_kept(tmp_path):
    done = detect_video("tune", "--undo", "--engines-dir", tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Nothing to undo" in done.stdout
    assert detect_video("tune", cwd=tmp_path).returncode == 2
