"""The search of ``tune`` with simulated speeds, and the real command."""

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
from detector.core.engines import _ranking
from detector.core.errors import EngineError, UsageError
from detector.core.run.judging import format_options
from detector.core.run.signals import Stopped
from detector.core.types import Detections
from detector.lab import tune as module
from detector.lab.profile import base
from detector.lab.session.comparison import Round
from detector.lab.terminal.tune import shorten, verdict
from detector.lab.tune import candidates, parse_target
from detector.lab.tune.candidates import Adjustment, DefaultRun
from detector.lab.tune.records import as_config
from detector.lab.tune.search import ROUNDS, STEP, Search, TuneRun
from tests.cli.command import detect_video, run_ok
from tests.sources.clips import write_video

DEFAULT = Config()
PLAIN = DefaultRun("ort", "fp32", 50.0, (352, 608), "m")
STREET = Path(__file__).parents[2] / "videos/street.mp4"


def detections(frames: int, wrong_share: float = 0.0) -> list[Detections]:
    frames_of_boxes = []
    for number in range(frames):
        shift = 500 if number < wrong_share * frames else 0
        box = np.array([[10 + shift, 10, 60 + shift, 60]], np.float32)
        frames_of_boxes.append(Detections(box, np.array([0.9], np.float32), np.array([0])))
    return frames_of_boxes


class Job:
    """Simulate rounds of settings with known speeds. Loading the engine takes half a second.
    ``ran``: (settings, number of frames) of each round."""

    def __init__(self, speed, wrong_share=lambda settings: 0.0, empty=False, plain=PLAIN) -> None:
        self.now, self.ran, self.plain = 0.0, [], plain
        self.speed, self.wrong, self.empty = speed, wrong_share, empty

    def turns(self, several, frames, opens, remaining) -> list[TuneRun]:
        result, active = [TuneRun() for _ in several], []
        for at in range(len(several)):
            if not opens(at):
                break
            self.now += 0.5
            active.append(at)
        while active:
            for at in active:
                self.run(several[at], frames, result[at])
            active = [at for at in remaining(result) if result[at].error is None]
        return result

    def run(self, settings, frames, ran) -> None:
        fps = self.speed(settings)
        if fps is None:
            ran.error = "it does not run here"
            return
        self.ran.append((settings, frames))
        self.now += frames / fps
        ran.rates.append(fps)
        result = detections(frames, self.wrong(settings))
        ran.detections = [Detections.empty()] * frames if self.empty else result
        ran.video_bytes = 2000 if settings.get("quality") == "fast" else 1000

    def search(self, config=DEFAULT, floor=0.97, seconds=60.0, target=None) -> Search:
        watch, clock = (lambda *_: None), (lambda: self.now)
        return Search(self.turns, config, self.plain, floor, seconds, watch, target, clock)

    def find(self, *options, **more):
        return self.search(*options, **more).find("in.mp4")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    def graph_precision_for(name, precision, device):
        if precision not in ("fp32", "int8"):
            raise EngineError("not here")
        return precision

    monkeypatch.setattr(engines, "rank_engines", lambda: ["ort", "torch"])
    monkeypatch.setattr(candidates, "usable_cores", lambda: 2)
    monkeypatch.setattr(
        engines, "why_unusable", lambda *_: {"ort": None, "torch": None, "trt": "is absent"}
    )
    monkeypatch.setattr(engines, "graph_precision_for", graph_precision_for)
    monkeypatch.setattr(_ranking, "suggest_library", lambda device: None)


def speed_of(settings) -> float:
    """Return the FPS. Int8 doubles them, and torch halves them. Two single-threaded requests
    multiply them by 1.5, and fast encoding by 1.1."""
    fps = 50.0
    fps *= 2 if settings.get("precision") == "int8" else 1
    fps *= 0.5 if settings.get("engine") == "torch" else 1
    fps *= 1.5 if (settings.get("concurrency"), settings.get("threads")) == (2, 1) else 1
    return fps * (1.1 if settings.get("quality") == "fast" else 1)


def test_fastest_value_of_each_setting_is_chosen():
    result = Job(speed_of).find()
    assert result.settings == {
        "engine": "ort", "precision": "int8", "concurrency": 2, "threads": 1, "quality": "fast",
    }  # fmt: skip
    assert result.ratio.median == pytest.approx(2 * 1.5 * 1.1)
    assert result.before.median == 50
    assert result.video_bytes_ratio == 2
    assert result.agreement == 1
    assert result.rounds == ROUNDS


def test_trials_with_more_requests_keep_engine_and_precision():
    """The trials name the engine: ``auto`` may choose another engine for more requests."""
    result = Job(lambda settings: 50.0 if not settings else 40.0).find()
    shapes = [one.settings for one in result.trials if "concurrency" in one.settings]
    assert shapes
    assert all((one["engine"], one["precision"]) == ("ort", "fp32") for one in shapes)


def test_settings_below_the_agreement_floor_are_excluded():
    wrong_share = {"int8": 0.1}
    job = Job(speed_of, lambda settings: wrong_share.get(settings.get("precision"), 0))
    result = job.find()
    assert result.settings.get("precision", "fp32") == "fp32"
    (tried,) = {one.agreement for one in result.trials if one.settings == {
        "engine": "ort", "precision": "int8"}}  # fmt: skip
    assert tried == pytest.approx(0.9, abs=0.05)
    assert Job(speed_of, job.wrong).find(floor=0.5).settings["precision"] == "int8"


def test_agreement_is_measured_against_fp32():
    wrong_share, plain = {"fp32": 0.0, "int8": 0.5}, replace(PLAIN, precision="int8")
    job = Job(speed_of, lambda one: wrong_share[one.get("precision", "int8")], plain=plain)
    assert job.find().trials[0].agreement == pytest.approx(0.5, abs=0.05)


def test_defaults_are_kept_if_nothing_is_faster():
    result = Job(lambda settings: 50.0 if not settings else 40.0).find()
    assert (result.settings, result.after, result.before.median) == ({}, None, 50)
    (line,) = verdict(result)
    assert "50.0 FPS" in line


def test_settings_that_are_faster_only_in_some_rounds_are_not_chosen():
    speeds = itertools.cycle([60.0, 60.0, 45.0])
    result = Job(lambda settings: next(speeds) if settings else 50.0).find()
    assert result.settings == {}
    assert result.rounds >= 3


def test_failed_settings_are_noted_and_the_search_continues():
    result = Job(lambda s: None if s.get("engine") == "torch" else speed_of(s)).find()
    assert result.settings["precision"] == "int8"
    assert any("--engine torch --precision fp32" in note for note in result.notes)
    with pytest.raises(EngineError, match="does not run here"):
        Job(lambda settings: None).find()


def test_slower_half_is_dropped_after_each_round():
    job = Job(speed_of)
    job.find()
    axis = [format_options(settings) for settings, _ in job.ran[1:7]]
    first = ["the defaults", "--engine ort --precision int8"]
    others = [f"--engine torch --precision {precision}" for precision in ("fp32", "int8")]
    assert axis == [*first, *others, *first[::-1]]


def test_search_ends_in_time():
    job = Job(lambda settings: 4.0, plain=replace(PLAIN, fps=4.0))
    assert job.find(seconds=20).settings == {}
    assert job.now < 60


def test_small_loss_of_agreement_is_not_a_cost(monkeypatch):
    for name, result in (("_find_trial", SimpleNamespace(error=None)), ("_loss_of", STEP * 0.4)):
        monkeypatch.setattr(Search, name, lambda *_, result=result: result)
    assert not Job(speed_of).search()._has_cost(Adjustment("engine", {}))


def test_defaults_are_compared_with_fp32_even_if_no_time_is_left():
    job = Job(speed_of, plain=replace(PLAIN, precision="int8"))
    assert job.find(seconds=0.1).trials[0].agreement == 1


def test_search_that_had_no_time_is_reported():
    result = Job(speed_of).find(seconds=1)
    assert verdict(result)[0].endswith("no other setting was tried.")
    [note] = [note for note in result.notes if "--seconds" in note]
    assert all(one in note for one in ("--engine torch", "--batch 2", "--quality fast"))
    assert not any("not tried" in note for note in Job(speed_of).find().notes)


def test_defaults_are_not_tried_again_under_another_name():
    plain = replace(PLAIN, loop={"concurrency": 2, "threads": 1})
    shown = [one.settings for one in Job(speed_of, plain=plain).find().trials]
    assert {**plain.named, **plain.loop} not in shown
    assert {**plain.named, **plain.loop, "precision": "int8"} in shown


def test_missing_library_that_would_be_faster_is_named(monkeypatch):
    monkeypatch.setattr(_ranking, "suggest_library", lambda device: f"install it for {device}")
    assert "install it for auto" in Job(speed_of).find().notes


def test_only_fp32_is_used_if_nothing_is_detected():
    result = Job(speed_of, empty=True).find()
    assert result.settings.get("precision", "fp32") == "fp32"
    assert any("nothing was detected" in note for note in result.notes)


def test_precision_is_not_changed_with_random_weights():
    config = replace(DEFAULT, network=NetworkConfig(random_weights=0))
    assert Job(speed_of).find(config).settings.get("precision", "fp32") == "fp32"


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
def test_settings_given_by_the_user_are_not_changed(config, left_alone):
    engine = "ort" if config.runtime.engine == "auto" else config.runtime.engine
    result = Job(speed_of, plain=replace(PLAIN, engine=engine)).find(config)
    assert not any(left_alone.items() <= one.settings.items() for one in result.trials)


def test_final_comparison_alternates_between_settings_and_defaults():
    job = Job(speed_of)
    job.find()
    last = [settings for settings, _ in job.ran[-2 * ROUNDS :]]
    assert last[::2] == [{}] * ROUNDS
    assert all(last[1::2])


def test_tuned_settings_round_trip_through_a_file(tmp_path):
    settings = {"engine": "ort", "precision": "int8", "queue_batches": 4, "save": ("overlay",)}
    config = DEFAULT.with_options(settings)
    assert (config.runtime.engine, config.loop.queue_batches) == ("ort", 4)
    result = replace(Job(speed_of).find(), settings=settings)
    file = tmp_path / "tuned.yaml"
    file.write_text(as_config(result, None))
    again = resolve_config(str(file), {})
    assert again.runtime == config.runtime
    assert again.output.save == ("overlay",)
    assert yaml.safe_load(as_config(result, "x.mp4"))["calibration"] == {"calibrate": "x.mp4"}


# ---- a target

NETWORK = {"fp32": 1.0, "bf16": 1.2, "fp16": 0.5, "int8": 2.0}
SIZES = {"512x288": (1.3, 0.05), "416x224": (1.9, 0.1), "320x192": (2.5, 0.3)}  # speed-up, loss


@pytest.fixture
def four_precisions(monkeypatch):
    monkeypatch.setattr(engines, "rank_engines", lambda: ["ort", "openvino"])
    monkeypatch.setattr(engines, "why_unusable", lambda *_: {"ort": None, "openvino": None})
    monkeypatch.setattr(engines, "graph_precision_for", lambda name, precision, device: precision)


def speed_with_two_limits(settings) -> float:
    network = 20.0 * (1.5 if settings.get("engine") == "openvino" else 1.0)
    network *= int(settings.get("infer_every", 1))
    network *= NETWORK[settings.get("precision", "fp32")] * SIZES.get(settings.get("size"), [1])[0]
    network = 1e3 if settings.get("engine") == "null" else network
    video = 70.0
    if settings.get("no_video"):
        video = 1000.0
    elif settings.get("save"):
        video = 200.0
    elif settings.get("quality") or settings.get("preset"):
        video = 90.0
    return min(network, video) * settings.get("stride", 1)


def loss_of(settings, tracked: float = 0.15) -> float:
    """Return the share of frames whose detections change. Each frame that is tracked between two
    inferred frames adds ``tracked`` to the share."""
    lost = {"bf16": 0.0, "fp16": 0.0, "int8": 0.02}.get(settings.get("precision"), 0.0)
    lost += SIZES.get(settings.get("size"), (1, 0.0))[1]
    lost += 0.25 * (settings.get("skip_still") is not None)
    lost += tracked * (int(settings.get("infer_every", 1)) - 1)
    return lost + 0.5 * (settings.get("stride", 1) > 1)


def tune_to_target(
    target,
    config=DEFAULT,
    *,
    speed=speed_with_two_limits,
    wrong_share=loss_of,
    seconds=1e6,
    floor=0.0,
):
    job = Job(speed, wrong_share, plain=replace(PLAIN, fps=20.0))
    result = job.find(config, floor=floor, seconds=seconds, target=target)
    assert (result.target_fps, result.reached) == (target, result.after.low >= target)
    return result


@pytest.mark.usefixtures("four_precisions")
class TestTarget:
    @pytest.mark.parametrize(
        ("target", "options", "video"),
        [
            (15, {}, "as asked"),
            (30, {"engine": "openvino"}, "as asked"),  # does not change the detections
            (34, {"precision": "bf16"}, "as asked"),
            (50, {"precision": "int8"}, "as asked"),  # loses 2%; a smaller input loses 10%
            (75, {"precision": "int8", "size": "512x288", "quality": "fast"}, "a larger file"),
            (100, {"precision": "int8", "size": "416x224", "save": ("overlay", "jsonl")}, "boxes"),
        ],
    )
    def test_cheapest_settings_that_reach_the_target_are_chosen(self, target, options, video):
        result = tune_to_target(target)
        assert result.reached
        assert result.settings.items() >= options.items()
        assert result.video.startswith(video)
        assert result.rounds == ROUNDS
        assert result.trials[0].settings == {}

    def test_target_must_be_reached_in_every_round(self):
        halves = itertools.cycle([1.0, 0.5])

        def unsteady(settings):
            slow = next(halves) if settings.get("precision") == "int8" else 1.0
            return speed_with_two_limits(settings) * slow

        result = tune_to_target(50, speed=unsteady)
        assert result.reached
        assert result.settings["precision"] != "int8"

    def test_defaults_are_chosen_although_one_early_round_missed_the_target(self):
        slow = iter([1.0, 0.5])

        def unsteady(settings):
            return speed_with_two_limits(settings) * (1.0 if settings else next(slow, 1.0))

        result = tune_to_target(19, speed=unsteady)
        assert (result.reached, result.settings, result.after.low) == (True, {}, 20)

    def test_infer_every_is_chosen_if_it_costs_least(self):
        """If boxes move evenly, tracking between inferred frames loses less agreement than int8."""
        assert "infer_every" not in tune_to_target(50).settings
        result = tune_to_target(50, wrong_share=lambda settings: loss_of(settings, 0.01))
        assert result.settings.keys() == {"engine", "precision", "infer_every"}
        assert 0.9 <= result.agreement < 1
        assert (result.frames_share, result.video) == (1.0, "as asked")
        for fixed_options in ({"infer_every": 3}, {"blur": "person"}):
            trials = tune_to_target(500, resolve_config(None, fixed_options)).trials
            assert not [one for one in trials if "infer_every" in one.settings]

    def test_fastest_settings_are_shown_if_none_reach_the_target(self):
        result = tune_to_target(2000)
        assert result.after.median == max(one.fps for one in result.trials)
        assert result.settings["stride"] == 3
        assert result.ceilings == {"inference": 70.0, "inference and video": 1000.0}
        assert not [one for one in result.trials if one.settings.get("engine") == "null"]

    def test_ceiling_does_not_fall_if_more_work_is_removed(self):
        result = tune_to_target(150, speed=lambda settings: 50 if settings.get("no_video") else 60)
        assert result.ceilings == {"inference": 60, "inference and video": 60}
        assert any("--stride" in note for note in result.notes)

    def test_unreachable_target_is_not_searched(self):
        result = Job(speed_with_two_limits, loss_of, plain=PLAIN).find(target=1e5)
        assert (result.reached, result.after, len(result.trials)) == (False, None, 1)
        assert "out of reach" in verdict(result)[0]

    def test_faster_networks_are_not_tried_if_they_cannot_reach_the_target(self):
        """Even without inference the run reaches only 70 FPS, less than the target."""

        def without_ceilings(settings):
            return None if settings.get("engine") == "null" else speed_with_two_limits(settings)

        result, every = tune_to_target(100), tune_to_target(100, speed=without_ceilings)
        assert result.settings == every.settings
        assert len(result.trials) < len(every.trials)

    @pytest.mark.slow
    def test_target_search_respects_the_agreement_floor(self):
        result = tune_to_target(75, floor=0.97)
        assert not result.reached
        assert result.agreement >= 0.97

    def test_settings_given_by_the_user_are_not_changed(self):
        fixed_options = {"engine": "ort", "precision": "fp32", "size": "608x352", "no_video": True}
        result = tune_to_target(500, resolve_config(None, fixed_options))
        touched = {name for one in result.trials for name in one.settings}
        assert not touched & {"size", "quality", "save", "preset", "no_video"}
        assert {one.settings.get("precision", "fp32") for one in result.trials} == {"fp32"}

    def test_target_search_ends_in_time_with_the_cheapest_settings_found(self):
        result = tune_to_target(500, seconds=30.0)
        assert any("--seconds" in note for note in result.notes)
        assert len(result.trials) < 30
        assert any("quality" in one.settings for one in result.trials), "no time for --quality"
        result = tune_to_target(80, seconds=70.0)
        assert result.reached
        assert result.settings["stride"] == 3
        assert any("cheaper" in note for note in result.notes)


def test_skipped_frames_have_no_detections():
    """A skipped frame agrees with nothing, so a stride of 3 loses two thirds of the agreement."""
    rounds = [Round({"end_to_end": 10.0, "inference": 20.0}, {}, 2)]
    ran = module._to_run(SimpleNamespace(error=None, rounds=rounds), detections(2), 3, 5)
    assert ran.rates == [30.0]
    assert list(map(len, ran.detections)) == [1, 0, 0, 1, 0]
    empty = [*rounds, Round({"end_to_end": None, "inference": None}, {}, 0)]
    assert "no frame" in module._to_run(SimpleNamespace(error=None, rounds=empty), [], 1, 5).error


@pytest.mark.parametrize(("text", "value"), [("60fps", 60.0), ("60", 60.0), ("29.97 FPS", 29.97)])
def test_target_is_parsed(text, value):
    assert parse_target(text) == value


@pytest.mark.parametrize("text", ["", "0", "-3", "fast", "60ms", "1e9", "nan", "60fps60"])
def test_invalid_target_is_refused(text):
    with pytest.raises(UsageError):
        parse_target(text)


def test_settings_are_formatted_as_options_and_in_a_short_form():
    settings = {"engine": "ort", "precision": "int8", "concurrency": 2, "threads": 1}
    settings |= {"size": "416x224", "save": ("overlay", "jsonl"), "no_video": True}
    assert format_options(settings).endswith("--size 416x224 --save overlay,jsonl --no-video")
    result = Job(speed_of).find()  # its defaults are ort fp32
    assert (
        shorten(settings, result) == "ort int8, 2 requests x 1 thread, 416x224, subtitles, no video"
    )
    assert shorten({**PLAIN.named, "infer_every": "2"}, result) == "infer 1/2"
    assert shorten({}, result) == "the defaults"


# ---- the command


@pytest.mark.slow
def test_tune_writes_the_chosen_settings(tmp_path):
    done = run_ok(
        "tune", STREET, "--engine", "ort", "--seconds", "3", "--no-video", "--json", "-o", "t.yaml",
        cwd=tmp_path,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["trials"][0]["settings"] == {}
    assert document["trials"][0]["fps"] > 0
    chosen = resolve_config(str(tmp_path / "t.yaml"), {})  # the defaults if nothing is faster
    assert {name: chosen.value(name) for name in document["settings"]} == document["settings"]
    assert {path.name for path in tmp_path.iterdir()} <= {"t.yaml"}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "code"), [("1fps", 0), ("900000", 8)])
def test_unreached_target_exits_8(tmp_path, target, code):
    run = ("--engine", "null", "--no-video", "--seconds", 4, "--target", target)
    write_video(tmp_path / "in.mp4", 60)
    done = detect_video("tune", "in.mp4", *run, "--json", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    assert document["reached"] == (code == 0)
    assert document["before"]["median"] > 0
    assert document["command"][:3] == ["detect-video", "in.mp4", "--engine"]
    assert "--target" not in document["command"]
    assert not [*tmp_path.glob("*.jsonl")], "trials left outputs behind"


def test_signal_during_a_run_ends_the_search(monkeypatch):
    """An interrupted run does not count as a trial, and no other trial follows."""
    interrupted = SimpleNamespace(exit_code=130, errors=[])
    monkeypatch.setattr(base, "detect", lambda *options, **more: interrupted)
    with pytest.raises(Stopped):
        module.run_defaults("in.mp4", DEFAULT)


def tune_with_stubs(monkeypatch, use: bool, speed=speed_of):
    job = Job(speed)
    monkeypatch.setattr(module, "run_defaults", lambda source, config: (PLAIN, config))
    monkeypatch.setattr(module, "take_turns", lambda source, config: job.turns)
    monkeypatch.setattr(
        "detector.core.run.reading.SourceReading.kind_of", lambda *_: "1280x720 h264"
    )
    stored = []
    monkeypatch.setattr(module, "keep", lambda *options: stored.append(options) or "m.json")
    watch, clock = (lambda *_: None), (lambda: job.now)
    result = module.tune(
        "in.mp4", DEFAULT, floor=0.97, seconds=60.0, watch=watch, clock=clock, use=use
    )
    return result, stored


@pytest.mark.parametrize(
    ("use", "speed", "faster"), [(False, speed_of, True), (True, lambda settings: 50.0, False)]
)
def test_settings_are_stored_only_on_request_and_if_faster(monkeypatch, use, speed, faster):
    result, stored = tune_with_stubs(monkeypatch, use, speed)
    assert (bool(result.settings), result.kept, stored) == (faster, None, [])


def test_option_use_stores_settings_for_this_kind_of_input(monkeypatch):
    result, [(tuning, config, _, kind)] = tune_with_stubs(monkeypatch, use=True)
    assert (result.kept, result.input_kind) == ("m.json", "1280x720 h264")
    assert (tuning.settings, config, kind) == (result.settings, DEFAULT, "1280x720 h264")


@pytest.mark.parametrize("more", [[STREET], ["--use"], ["-o", "x.yaml"]])
def test_option_undo_with_other_options_is_refused(tmp_path, more):
    done = detect_video("tune", "--undo", *more, "--engines-dir", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "--undo forgets all" in done.stderr


def test_option_undo_without_stored_settings_does_nothing(tmp_path):
    done = detect_video("tune", "--undo", "--engines-dir", tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Nothing to undo" in done.stdout
    assert detect_video("tune", cwd=tmp_path).returncode == 2
