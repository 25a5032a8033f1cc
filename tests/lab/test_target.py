"""The search of ``profile --target``, on jobs whose speeds and losses the test decides."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from detector.core import engines
from detector.core.config.levels import resolve_config
from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.session.codec import from_builtins, to_builtins
from detector.lab import target as module
from detector.lab import tune
from detector.lab.report.parts.target import missed, verdict
from detector.lab.session.comparison import Round, VariantFacts
from detector.lab.session.passes import Change, Interval, TargetFacts, WhatIfFacts
from detector.lab.target import Reach, as_typed, parse_target
from detector.lab.tune import Search
from tests.lab.test_tune import Job, detections


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(engines, "rank_engines", lambda: ["ort", "openvino"])
    monkeypatch.setattr(tune, "usable_cores", lambda: 2)
    monkeypatch.setattr(engines, "usable", lambda: {"ort": None, "openvino": None})
    monkeypatch.setattr(engines, "graph_wanted", lambda name, precision, device: precision)


NETWORK = {"fp32": 1.0, "bf16": 1.2, "fp16": 0.5, "int8": 2.0}
SIZES = {"512x288": (1.3, 0.05), "416x224": (1.9, 0.1), "320x192": (2.5, 0.3)}  # gain, loss

TRACKED = 0.15  # lost by each frame that tracks alone move on


def fps(settings) -> float:
    """Two stages that limit the run in turn: the network, and the video."""
    network = 20.0 * (1.5 if settings.get("engine") == "openvino" else 1.0)
    network *= int(settings.get("infer_every", 1))
    network *= NETWORK[settings.get("precision", "fp32")] * SIZES.get(settings.get("size"), [1])[0]
    video = 70.0
    if settings.get("no_video"):
        video = 1000.0
    elif settings.get("save"):
        video = 200.0
    elif settings.get("quality") or settings.get("preset"):
        video = 90.0
    return min(network, video) * settings.get("stride", 1)


def wrong(settings) -> float:
    """The share of frames in which something else is found."""
    lost = {"bf16": 0.0, "fp16": 0.0, "int8": 0.02}.get(settings.get("precision"), 0.0)
    lost += SIZES.get(settings.get("size"), (1, 0.0))[1]
    lost += 0.25 * (settings.get("skip_still") is not None)
    lost += TRACKED * (int(settings.get("infer_every", 1)) - 1)
    return lost + 0.5 * (settings.get("stride", 1) > 1)


def what_if(**highest: float) -> WhatIfFacts:
    """``highest``: FPS in the best round, with a stage that costs nothing."""
    ratio = Interval(1.1, 1.05, 1.2)
    changes = [
        Change(
            change=name.replace("_", " "),
            how="",
            fps=Interval(fps, fps, fps),
            frame_ms=ratio,
            fps_ratio=ratio,
            frame_ratio=ratio,
        )
        for name, fps in highest.items()
    ]
    now = Interval(20.0, 20.0, 20.0)
    return WhatIfFacts(
        frames=60, rounds=3, fps=now, frame_ms=now, changes=changes, not_measured={}, doubts=[]
    )


def find(
    wanted: float, config: Config | None = None, seconds: float = 1e6, unsteady=(), facts=None
):
    """The result, and what ran in rounds. ``unsteady``: words of sets with a slow round."""
    config = config or Config()
    job = Job(fps, wrong)
    search = Search(job, config, 0.0, seconds, lambda *about: None, job.clock)
    raced = []

    def race(several, frames):
        raced.append([as_typed(one) for one in several])
        slow = [0.5 if {*as_typed(one).split()} & {*unsteady} else 1.0 for one in several]
        return [[fps(one), fps(one) * each] for one, each in zip(several, slow, strict=True)]

    found = Reach(search, config, wanted, race, (352, 608), facts).find()
    assert from_builtins(to_builtins(found), TargetFacts, "x").text == found.text
    return found, raced


@pytest.mark.parametrize(
    ("wanted", "options", "video"),
    [
        (15, {}, "as asked"),
        (30, {"engine": "openvino", "precision": "fp32"}, "as asked"),  # costs nothing
        (34, {"precision": "bf16"}, "as asked"),
        (50, {"precision": "int8"}, "as asked"),  # loses 2%, a smaller input 10%
        (75, {"precision": "int8", "size": "512x288", "quality": "fast"}, "a larger file"),
        (100, {"precision": "int8", "size": "416x224", "save": ("overlay", "jsonl")}, "boxes"),
    ],
)
def test_the_cheapest_set_that_reaches_it(wanted, options, video):
    found, raced = find(wanted)
    assert found.reached
    assert found.settings.items() >= options.items(), found.text
    assert found.video.startswith(video)
    assert found.fps.low >= wanted
    assert raced[-1][-1] == found.text
    assert found.tried[0].text == "the defaults"
    assert str(wanted) in verdict(found)[0]


def test_what_reaches_it_in_one_round_only_does_not_count():
    found, raced = find(50, unsteady=["int8"])
    assert found.reached
    assert found.settings["precision"] != "int8"
    assert any("int8" in words for several in raced for words in several)


def test_what_if_spares_what_cannot_reach_it():
    """Without any inference it makes 70 FPS, so faster networks alone are not tried together."""
    plain, _ = find(100)
    found, _ = find(100, facts=what_if(infer_free=70.0, write_free=30.0))
    assert found.settings == plain.settings
    assert len(found.tried) < len(plain.tried)
    assert found.ceilings == {"infer free": 70.0, "write free": 30.0}
    assert len(find(100, facts=what_if(infer_free=95.0))[0].tried) == len(plain.tried)


def test_tracks_between_inferred_frames_are_a_change_with_a_cost(monkeypatch):
    """Where boxes move evenly, tracks lose less than int8 does."""
    assert "infer_every" not in find(50)[0].settings
    monkeypatch.setattr(sys.modules[__name__], "TRACKED", 0.01)
    found, _ = find(50)
    assert found.settings.keys() == {"engine", "precision", "infer_every"}
    assert found.settings["precision"] == "fp32"
    assert found.agreement is not None
    assert 0.9 <= found.agreement < 1  # of few frames
    assert (found.frames_share, found.video) == (1.0, "as asked")
    assert f"--infer-every {found.settings['infer_every']}" in found.text
    for named in ({"infer_every": "3"}, {"blur": "person"}):
        tried = find(500, resolve_config(None, named))[0].tried
        assert not [one for one in tried if "infer_every" in one.settings]


def test_nothing_reaches_it():
    found, _ = find(1e5)
    assert not found.reached
    assert found.fps.median == max(one.fps for one in found.tried)
    assert f"{found.fps.median:.1f}" in missed(found)


def test_what_is_named_is_left_alone():
    named = {"engine": "ort", "precision": "fp32", "size": "608x352", "no_video": True}
    found, _ = find(500, resolve_config(None, named))
    assert not found.reached
    touched = {name for one in found.tried for name in one.settings}
    assert not touched & {"size", "quality", "save", "preset", "no_video"}
    assert {one.settings.get("precision", "fp32") for one in found.tried} == {"fp32"}


def test_it_ends_in_time_and_says_so():
    found, _ = find(500, seconds=20.0)
    assert not found.reached
    assert any("--target-seconds" in note for note in found.notes)
    assert len(found.tried) < 20


def test_the_fastest_of_what_was_tried_in_time_may_reach_it():
    found, raced = find(80, seconds=60.0)
    assert found.reached
    assert found.settings["stride"] == 3
    assert found.fps.low >= 80
    assert raced[-1][-1] == found.text
    assert any("cheaper" in note for note in found.notes)


@pytest.mark.parametrize(("unsteady", "precision"), [((), "bf16"), (["bf16"], "int8")])
def test_once_the_time_is_over_the_cheapest_that_was_tried_comes_first(unsteady, precision):
    """int8 was faster (40 FPS, bf16 36), and loses more."""
    found, raced = find(34, seconds=20.0, unsteady=unsteady)
    assert (found.reached, found.settings["precision"]) == (True, precision)
    assert raced[-1][-1] == found.text


def test_frames_that_are_not_taken_have_no_detections(monkeypatch):
    """Of every third frame, two thirds of the agreement's sum are missing."""
    boxes = detections(2)
    rounds = [Round({"end_to_end": 10.0, "inference": 20.0}, {}, 2)]
    variant = SimpleNamespace(error=None, rounds=rounds, facts=VariantFacts(model="m"))
    asked = []

    def run_in_turns(source, configs, rounds, dice):
        asked.append(configs[0].input.frames)
        return [variant], [boxes]

    monkeypatch.setattr(module, "run_in_turns", run_in_turns)
    ran = module._measure("in.mp4", Config(), {"stride": 3}, 5)
    assert asked == [2]
    assert ran.fps == 30.0
    assert list(map(len, ran.detections)) == [1, 0, 0, 1, 0]


@pytest.mark.parametrize(("text", "value"), [("60fps", 60.0), ("60", 60.0), ("29.97 FPS", 29.97)])
def test_a_target_is_read(text, value):
    assert parse_target(text) == value


@pytest.mark.parametrize("text", ["", "0", "-3", "fast", "60ms", "1e9", "nan", "60fps60"])
def test_another_target_is_refused(text):
    with pytest.raises(UsageError):
        parse_target(text)


def test_settings_are_shown_as_they_are_typed():
    assert as_typed({"save": ("overlay", "jsonl"), "no_video": True}) == (
        "--save overlay,jsonl --no-video"
    )
