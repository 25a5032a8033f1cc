"""The search of ``tune``, on jobs whose speeds the test decides; and the command, for real."""

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
from detector.core.errors import EngineError, UsageError
from detector.core.run.choose import format_options
from detector.core.run.signals import Stopped
from detector.core.types import Detections
from detector.lab import tune as module
from detector.lab.profile import base
from detector.lab.session.comparison import Round
from detector.lab.terminal.tune import shorten, verdict
from detector.lab.tune import candidates, parse_target
from detector.lab.tune.candidates import Adjustment, DefaultRun
from detector.lab.tune.kept import as_config
from detector.lab.tune.search import ROUNDS, STEP, Search, TuneRun
from tests.cli.command import detect_video, run_ok
from tests.sources.clips import write_video

DEFAULT = Config()
PLAIN = DefaultRun("ort", "fp32", 50.0, (352, 608), "m")
STREET = Path(__file__).parents[2] / "videos/street.mp4"


def detections(frames: int, wrong: float = 0.0) -> list[Detections]:
    made = []
    for number in range(frames):
        shift = 500 if number < wrong * frames else 0
        box = np.array([[10 + shift, 10, 60 + shift, 60]], np.float32)
        made.append(Detections(box, np.array([0.9], np.float32), np.array([0])))
    return made


class Job:
    """Settings of known speed, which take turns. Every round takes its own seconds, and half a
    second to load. ``ran``: settings and frames of each round."""

    def __init__(self, speed, wrong=lambda settings: 0.0, empty=False, plain=PLAIN) -> None:
        self.now, self.ran, self.plain = 0.0, [], plain
        self.speed, self.wrong, self.empty = speed, wrong, empty

    def turns(self, several, frames, opens, stays) -> list[TuneRun]:
        found, left = [TuneRun() for _ in several], []
        for at in range(len(several)):
            if not opens(at):
                break
            self.now += 0.5
            left.append(at)
        while left:
            for at in left:
                self.run(several[at], frames, found[at])
            left = [at for at in stays(found) if found[at].error is None]
        return found

    def run(self, settings, frames, ran) -> None:
        fps = self.speed(settings)
        if fps is None:
            ran.error = "it does not run here"
            return
        self.ran.append((settings, frames))
        self.now += frames / fps
        ran.rates.append(fps)
        found = detections(frames, self.wrong(settings))
        ran.detections = [Detections.empty()] * frames if self.empty else found
        ran.video_bytes = 2000 if settings.get("quality") == "fast" else 1000

    def search(self, config=DEFAULT, floor=0.97, seconds=60.0, target=None) -> Search:
        watch, clock = (lambda *_: None), (lambda: self.now)
        return Search(self.turns, config, self.plain, floor, seconds, watch, target, clock)

    def find(self, *given, **more):
        return self.search(*given, **more).find("in.mp4")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    def graph_wanted(name, precision, device):
        if precision not in ("fp32", "int8"):
            raise EngineError("not here")
        return precision

    monkeypatch.setattr(engines, "rank_engines", lambda: ["ort", "torch"])
    monkeypatch.setattr(candidates, "usable_cores", lambda: 2)
    monkeypatch.setattr(
        engines, "usable", lambda *_: {"ort": None, "torch": None, "trt": "is absent"}
    )
    monkeypatch.setattr(engines, "graph_wanted", graph_wanted)
    monkeypatch.setattr(engines, "suggest_library", lambda device: None)


def by_rules(settings) -> float:
    """int8 doubles, torch halves, two requests of one thread add a half, fast encoding a tenth."""
    fps = 50.0
    fps *= 2 if settings.get("precision") == "int8" else 1
    fps *= 0.5 if settings.get("engine") == "torch" else 1
    fps *= 1.5 if (settings.get("concurrency"), settings.get("threads")) == (2, 1) else 1
    return fps * (1.1 if settings.get("quality") == "fast" else 1)


def test_each_axis_adds_what_is_fastest():
    found = Job(by_rules).find()
    assert found.settings == {
        "engine": "ort", "precision": "int8", "concurrency": 2, "threads": 1, "quality": "fast",
    }  # fmt: skip
    assert found.ratio.median == pytest.approx(2 * 1.5 * 1.1)
    assert found.before.median == 50
    assert found.video_bytes_ratio == 2
    assert found.agreement == 1
    assert found.rounds == ROUNDS


def test_other_requests_keep_the_engine_and_precision_of_the_defaults():
    """The self-timing of the default model says nothing about other numbers of requests."""
    found = Job(lambda settings: 50.0 if not settings else 40.0).find()
    shapes = [one.settings for one in found.trials if "concurrency" in one.settings]
    assert shapes
    assert all((one["engine"], one["precision"]) == ("ort", "fp32") for one in shapes)


def test_the_floor_leaves_out_what_finds_other_things():
    job = Job(by_rules, wrong=lambda settings: 0.1 if settings.get("precision") == "int8" else 0)
    found = job.find()
    assert found.settings.get("precision", "fp32") == "fp32"
    (tried,) = {one.agreement for one in found.trials if one.settings == {
        "engine": "ort", "precision": "int8"}}  # fmt: skip
    assert tried == pytest.approx(0.9, abs=0.05)
    assert Job(by_rules, job.wrong).find(floor=0.5).settings["precision"] == "int8"


def test_agreement_is_with_fp32_where_the_defaults_are_less():
    wrong = {"fp32": 0.0, "int8": 0.5}
    job = Job(
        by_rules,
        lambda settings: wrong[settings.get("precision", "int8")],
        plain=replace(PLAIN, precision="int8"),
    )
    assert job.find().trials[0].agreement == pytest.approx(0.5, abs=0.05)


def test_the_defaults_stand_where_nothing_beats_them():
    found = Job(lambda settings: 50.0 if not settings else 40.0).find()
    assert (found.settings, found.after, found.before.median) == ({}, None, 50)
    (line,) = verdict(found)
    assert "50.0 FPS" in line


def test_settings_that_win_only_sometimes_are_not_chosen():
    """The same settings are once faster and once slower than the defaults."""
    speeds = itertools.cycle([60.0, 60.0, 45.0])
    found = Job(lambda settings: next(speeds) if settings else 50.0).find()
    assert found.settings == {}
    assert found.rounds >= 3


def test_failed_settings_are_noted_and_the_search_continues():
    found = Job(lambda s: None if s.get("engine") == "torch" else by_rules(s)).find()
    assert found.settings["precision"] == "int8"
    assert any("--engine torch --precision fp32" in note for note in found.notes)
    with pytest.raises(EngineError, match="does not run here"):
        Job(lambda settings: None).find()


def test_the_slower_half_leaves_after_each_round():
    job = Job(by_rules)
    job.find()
    axis = [format_options(settings) for settings, _ in job.ran[1:7]]
    assert axis[:4] == [
        "the defaults",
        "--engine ort --precision int8",
        "--engine torch --precision fp32",
        "--engine torch --precision int8",
    ]
    assert axis[4:] == ["--engine ort --precision int8", "the defaults"]


def test_it_ends_in_time():
    job = Job(lambda settings: 4.0, plain=replace(PLAIN, fps=4.0))
    assert job.find(seconds=20).settings == {}
    assert job.now < 60


def test_small_agreement_loss_is_not_a_cost(monkeypatch):
    for name, found in (("_find_trial", SimpleNamespace(error=None)), ("_loss_of", STEP * 0.4)):
        monkeypatch.setattr(Search, name, lambda *_, found=found: found)
    assert not Job(by_rules).search()._has_cost(Adjustment("engine", {}))


def test_the_defaults_run_beside_fp32_even_without_time():
    job = Job(by_rules, plain=replace(PLAIN, precision="int8"))
    assert job.find(seconds=0.1).trials[0].agreement == 1


def test_it_says_that_it_had_no_time():
    found = Job(by_rules).find(seconds=1)
    assert verdict(found)[0].endswith("no other setting was tried.")
    assert ["--seconds" in note for note in found.notes] == [True]


def test_an_absent_library_that_would_be_faster_is_named(monkeypatch):
    monkeypatch.setattr(engines, "suggest_library", lambda device: f"install it for {device}")
    assert "install it for auto" in Job(by_rules).find().notes


def test_where_nothing_is_found_only_fp32_is_taken():
    found = Job(by_rules, empty=True).find()
    assert found.settings.get("precision", "fp32") == "fp32"
    assert any("nothing was detected" in note for note in found.notes)


def test_random_weights_say_nothing_about_precision():
    config = replace(DEFAULT, network=NetworkConfig(random_weights=0))
    assert Job(by_rules).find(config).settings.get("precision", "fp32") == "fp32"


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
    found = Job(by_rules, plain=replace(PLAIN, engine=engine)).find(config)
    assert not any(left_alone.items() <= one.settings.items() for one in found.trials)


def test_the_last_comparison_is_by_turns():
    job = Job(by_rules)
    job.find()
    last = [settings for settings, _ in job.ran[-2 * ROUNDS :]]
    assert last[::2] == [{}] * ROUNDS
    assert all(last[1::2])


def test_settings_reach_their_groups_and_the_file_gives_them_again(tmp_path):
    settings = {"engine": "ort", "precision": "int8", "queue_batches": 4, "save": ("overlay",)}
    config = DEFAULT.with_options(settings)
    assert (config.runtime.engine, config.loop.queue_batches) == ("ort", 4)
    found = replace(Job(by_rules).find(), settings=settings)
    file = tmp_path / "tuned.yaml"
    file.write_text(as_config(found, None))
    again = resolve_config(str(file), {})
    assert again.runtime == config.runtime
    assert again.output.save == ("overlay",)
    assert yaml.safe_load(as_config(found, "x.mp4"))["calibration"] == {"calibrate": "x.mp4"}


# ---- a target

NETWORK = {"fp32": 1.0, "bf16": 1.2, "fp16": 0.5, "int8": 2.0}
SIZES = {"512x288": (1.3, 0.05), "416x224": (1.9, 0.1), "320x192": (2.5, 0.3)}  # gain, loss


@pytest.fixture
def four_precisions(monkeypatch):
    monkeypatch.setattr(engines, "rank_engines", lambda: ["ort", "openvino"])
    monkeypatch.setattr(engines, "usable", lambda *_: {"ort": None, "openvino": None})
    monkeypatch.setattr(engines, "graph_wanted", lambda name, precision, device: precision)


def two_limits(settings) -> float:
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


def two_losses(settings, tracked: float = 0.15) -> float:
    """Return the share of frames with other detections. ``tracked``: the share lost by each
    tracked frame between two inferred ones."""
    lost = {"bf16": 0.0, "fp16": 0.0, "int8": 0.02}.get(settings.get("precision"), 0.0)
    lost += SIZES.get(settings.get("size"), (1, 0.0))[1]
    lost += 0.25 * (settings.get("skip_still") is not None)
    lost += tracked * (int(settings.get("infer_every", 1)) - 1)
    return lost + 0.5 * (settings.get("stride", 1) > 1)


def reach(target, config=DEFAULT, *, speed=two_limits, wrong=two_losses, seconds=1e6, floor=0.0):
    job = Job(speed, wrong, plain=replace(PLAIN, fps=20.0))
    found = job.find(config, floor=floor, seconds=seconds, target=target)
    assert (found.target_fps, found.reached) == (target, found.after.low >= target)
    return found


@pytest.mark.usefixtures("four_precisions")
class TestTarget:
    @pytest.mark.parametrize(
        ("target", "options", "video"),
        [
            (15, {}, "as asked"),
            (30, {"engine": "openvino"}, "as asked"),  # costs nothing
            (34, {"precision": "bf16"}, "as asked"),
            (50, {"precision": "int8"}, "as asked"),  # loses 2%, a smaller input 10%
            (75, {"precision": "int8", "size": "512x288", "quality": "fast"}, "a larger file"),
            (100, {"precision": "int8", "size": "416x224", "save": ("overlay", "jsonl")}, "boxes"),
        ],
    )
    def test_the_cheapest_set_that_reaches_it(self, target, options, video):
        found = reach(target)
        assert found.reached
        assert found.settings.items() >= options.items()
        assert found.video.startswith(video)
        assert found.rounds == ROUNDS
        assert found.trials[0].settings == {}

    def test_what_reaches_it_in_one_round_only_does_not_count(self):
        halves = itertools.cycle([1.0, 0.5])

        def unsteady(settings):
            slow = next(halves) if settings.get("precision") == "int8" else 1.0
            return two_limits(settings) * slow

        found = reach(50, speed=unsteady)
        assert found.reached
        assert found.settings["precision"] != "int8"

    def test_the_defaults_cost_less_where_they_reach_it_after_all(self):
        """The defaults were slow in one round only."""
        slow = iter([1.0, 0.5])

        def unsteady(settings):
            return two_limits(settings) * (1.0 if settings else next(slow, 1.0))

        found = reach(19, speed=unsteady)
        assert (found.reached, found.settings, found.after.low) == (True, {}, 20)

    def test_tracks_between_inferred_frames_are_a_change_with_a_cost(self):
        """If boxes move evenly, tracks lose less than int8 does."""
        assert "infer_every" not in reach(50).settings
        found = reach(50, wrong=lambda settings: two_losses(settings, 0.01))
        assert found.settings.keys() == {"engine", "precision", "infer_every"}
        assert 0.9 <= found.agreement < 1
        assert (found.frames_share, found.video) == (1.0, "as asked")
        for named in ({"infer_every": "3"}, {"blur": "person"}):
            trials = reach(500, resolve_config(None, named)).trials
            assert not [one for one in trials if "infer_every" in one.settings]

    def test_nothing_reaches_it(self):
        found = reach(2000)
        assert found.after.median == max(one.fps for one in found.trials)
        assert found.settings["stride"] == 3
        assert found.ceilings == {"inference": 70.0, "inference and video": 1000.0}
        assert not [one for one in found.trials if one.settings.get("engine") == "null"]

    def test_what_no_change_can_reach_is_not_searched(self):
        found = Job(two_limits, two_losses, plain=PLAIN).find(target=1e5)
        assert (found.reached, found.after, len(found.trials)) == (False, None, 1)
        assert "out of reach" in verdict(found)[0]

    def test_a_run_without_inference_spares_what_cannot_reach_it(self):
        """It makes 70 FPS, so faster networks alone are not tried together."""

        def untold(settings):
            return None if settings.get("engine") == "null" else two_limits(settings)

        found, every = reach(100), reach(100, speed=untold)
        assert found.settings == every.settings
        assert len(found.trials) < len(every.trials)

    @pytest.mark.slow
    def test_the_floor_leaves_out_what_loses_too_much(self):
        found = reach(75, floor=0.97)
        assert not found.reached
        assert found.agreement >= 0.97

    def test_what_is_named_is_left_alone(self):
        named = {"engine": "ort", "precision": "fp32", "size": "608x352", "no_video": True}
        found = reach(500, resolve_config(None, named))
        touched = {name for one in found.trials for name in one.settings}
        assert not touched & {"size", "quality", "save", "preset", "no_video"}
        assert {one.settings.get("precision", "fp32") for one in found.trials} == {"fp32"}

    def test_it_ends_in_time_and_tries_the_cheapest_that_reached_it(self):
        found = reach(500, seconds=30.0)
        assert any("--seconds" in note for note in found.notes)
        assert len(found.trials) < 30
        assert any("quality" in one.settings for one in found.trials)  # what is free left time
        found = reach(80, seconds=70.0)
        assert found.reached
        assert found.settings["stride"] == 3
        assert any("cheaper" in note for note in found.notes)


def test_frames_that_are_not_taken_have_no_detections():
    """With every third frame taken, two thirds of the agreement's sum are missing."""
    rounds = [Round({"end_to_end": 10.0, "inference": 20.0}, {}, 2)]
    ran = module._to_run(SimpleNamespace(error=None, rounds=rounds), detections(2), 3, 5)
    assert ran.rates == [30.0]
    assert list(map(len, ran.detections)) == [1, 0, 0, 1, 0]
    empty = [*rounds, Round({"end_to_end": None, "inference": None}, {}, 0)]
    assert "no frame" in module._to_run(SimpleNamespace(error=None, rounds=empty), [], 1, 5).error


@pytest.mark.parametrize(("text", "value"), [("60fps", 60.0), ("60", 60.0), ("29.97 FPS", 29.97)])
def test_a_target_is_read(text, value):
    assert parse_target(text) == value


@pytest.mark.parametrize("text", ["", "0", "-3", "fast", "60ms", "1e9", "nan", "60fps60"])
def test_another_target_is_refused(text):
    with pytest.raises(UsageError):
        parse_target(text)


def test_settings_print_as_options_and_in_short():
    settings = {"engine": "ort", "precision": "int8", "concurrency": 2, "threads": 1}
    settings |= {"size": "416x224", "save": ("overlay", "jsonl"), "no_video": True}
    assert format_options(settings).endswith("--size 416x224 --save overlay,jsonl --no-video")
    found = Job(by_rules).find()  # of ort fp32
    assert shorten(settings, found) == "ort int8, 2x1 threads, 416x224, subtitles, no video"
    assert shorten({**PLAIN.named, "infer_every": "2"}, found) == "infer 1/2"
    assert shorten({}, found) == "the defaults"


# ---- the command


@pytest.mark.slow
def test_the_command(tmp_path):
    done = run_ok(
        "tune", STREET, "--engine", "ort", "--seconds", "3", "--no-video", "--json", "-o", "t.yaml",
        cwd=tmp_path,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["trials"][0]["settings"] == {}
    assert document["trials"][0]["fps"] > 0
    assert (tmp_path / "t.yaml").exists() == bool(document["settings"])
    assert {path.name for path in tmp_path.iterdir()} <= {"t.yaml"}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "code"), [("1fps", 0), ("900000", 8)])
def test_the_command_with_a_target(tmp_path, target, code):
    """A target that no settings reach is a failed gate."""
    run = ("--engine", "null", "--no-video", "--seconds", 4, "--target", target)
    write_video(tmp_path / "in.mp4", 60)
    done = detect_video("tune", "in.mp4", *run, "--json", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    told = json.loads(done.stdout)
    assert told["reached"] == (code == 0)
    assert told["before"]["median"] > 0
    assert told["command"][:3] == ["detect-video", "in.mp4", "--engine"]
    assert "--target" not in told["command"]
    assert not [*tmp_path.glob("*.jsonl")], "outputs of the runs that were tried"


def test_a_signal_during_a_run_ends_the_search(monkeypatch):
    """An interrupted run does not count as a trial, and no other trial follows."""
    interrupted = SimpleNamespace(exit_code=130, errors=[])
    monkeypatch.setattr(base, "detect", lambda *given, **more: interrupted)
    with pytest.raises(Stopped):
        module.run_defaults("in.mp4", DEFAULT)


def found_for(monkeypatch, use: bool, speed=by_rules):
    job = Job(speed)
    monkeypatch.setattr(module, "run_defaults", lambda source, config: (PLAIN, config))
    monkeypatch.setattr(module, "take_turns", lambda source, config: job.turns)
    monkeypatch.setattr(
        "detector.core.run.reading.SourceReading.kind_of", lambda *_: "1280x720 h264"
    )
    kept = []
    monkeypatch.setattr(module, "keep", lambda *given: kept.append(given) or "m.json")
    watch, clock = (lambda *_: None), (lambda: job.now)
    found = module.tune(
        "in.mp4", DEFAULT, floor=0.97, seconds=60.0, watch=watch, clock=clock, use=use
    )
    return found, kept


def test_it_is_kept_only_on_request(monkeypatch):
    found, kept = found_for(monkeypatch, use=False)
    assert found.settings
    assert (found.kept, kept) == (None, [])


def test_use_keeps_it_for_this_kind_of_input(monkeypatch):
    found, [(tuning, config, _, kind)] = found_for(monkeypatch, use=True)
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
