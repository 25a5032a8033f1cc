"""Conformance of every stage between nms and annotate, including any added later.

BestStage exists only in these tests. It takes part in whole runs, although loop, ledger, session,
verdict, critical path and what-if know only what it declares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from detector.core.config.levels import resolve_config
from detector.core.loop.parts import Progress
from detector.core.run.detect import detect
from detector.core.run.plan import resolve
from detector.core.stages import between
from detector.core.stages.between.base import Stage
from detector.core.timeline.order import NAME, grouped, in_order
from detector.core.timeline.spans import STAGES
from detector.core.timeline.timeline import Timeline
from detector.core.types import Detections, Frame, SourceInfo
from detector.lab.analysis.loop.activities import LoopShape, activities_of, activity_graph
from detector.lab.analysis.loop.critical_path import critical_path
from detector.lab.profile.stand_ins import describe_replacement, record_stages, replace_stage
from detector.lab.session.read import read_session
from tests.conftest import CHECKOUT

STREET = CHECKOUT / "videos/street.mp4"
FRAMES = 6


class BestStage(Stage):
    what = "Choosing the best box"
    advice = "`--max-det 1`"
    instances: ClassVar[list[BestStage]] = []

    @classmethod
    def settings(cls, options: Mapping[str, Any]) -> int | None:
        return 1 if options["selection"]["max_det"] == 77 else None

    def __init__(self, settings: int, info: SourceInfo, names: Sequence[str], conf: float) -> None:
        self.frames: list[int] = []
        self.most = settings
        self.info, self.names, self.closed = info, names, 0
        BestStage.instances.append(self)

    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        self.frames.append(frame.index)
        best = np.argsort(-detections.scores)[: self.most]
        return replace(
            detections,
            boxes=detections.boxes[best],
            scores=detections.scores[best],
            class_ids=detections.class_ids[best],
        )

    def close(self) -> Sequence[str]:
        self.closed += 1
        return ["one box was kept"]


@pytest.fixture
def best(monkeypatch: pytest.MonkeyPatch) -> type[BestStage]:
    BestStage.instances = []
    monkeypatch.setattr(between, "places", lambda: {"best": __name__})
    return BestStage


def config(**options: Any) -> Any:
    defaults = {"engine": "ort", "frames": FRAMES, "threads": 1, "max_det": 77, "nvtx": False}
    return resolve_config(None, {**defaults, **options})


@pytest.mark.parametrize("name", [*sorted(between.places()), "best"])
def test_declaration_is_complete(name: str) -> None:
    stage = BestStage if name == "best" else between.find(name)
    assert NAME.fullmatch(name)
    assert name not in STAGES
    assert stage.what[0].isupper()
    assert not stage.what.endswith(".")
    options = resolve_config(None, {}).as_dict()
    group, option = stage.turned_on_by or ("", "")
    off = options[group][option] is None if group else stage.settings(options) is None
    assert off, "the stage must be off by default"


def test_unknown_stage_runs_in_the_writer() -> None:
    assert in_order(["best", "write", "read"]) == (*STAGES[:5], "best", "annotate", "write")
    assert grouped(["best"])["writing"] == ("best", "annotate", "write")


@pytest.mark.slow
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("save", ["jsonl", "video"])
def test_run_includes_the_stage(
    best: type[BestStage], tmp_path: Path, sync: bool, save: str
) -> None:
    asked = config(sync=sync, save=(save,), output=f"{tmp_path}/", run_dir=str(tmp_path / "run"))
    result = detect([str(STREET)], asked)
    assert result.errors == []
    (stage,) = best.instances
    assert stage.frames == list(range(FRAMES))
    assert stage.closed == 1
    summary = result.summary
    assert summary.detections.total == FRAMES, "the stage's output is written and counted"
    assert list(summary.stages) == list(in_order(["best"]))
    assert summary.stages["best"].calls == FRAMES
    assert "one box was kept" in summary.notes
    for rows in tmp_path.rglob("*.jsonl"):
        written = [json.loads(line) for line in rows.read_text().splitlines()]
        assert [len(row["detections"]) for row in written] == [1] * FRAMES
    saved = read_session(tmp_path / "run")
    calls = activities_of(saved.spans)
    assert [one.number for one in calls if one.stage == "best"] == list(range(FRAMES))
    graph = activity_graph(calls, LoopShape.of(saved.document.loop[0]))
    assert any(
        edge.before == calls.index(call)
        for call in calls
        if call.stage == "best"
        for edges in graph.edges
        for edge in edges
    )
    path = critical_path(graph)
    if sync and path is not None:  # with one thread, the path has all calls of the steady state
        assert "best" in path.stages


@pytest.mark.slow
def test_verdict_names_the_slowest_stage(best: type[BestStage], tmp_path: Path) -> None:
    import time

    slow = best.__call__

    def crawl(self: BestStage, frame: Frame, detections: Detections) -> Detections:
        time.sleep(0.05)
        return slow(self, frame, detections)

    best.__call__ = crawl  # type: ignore[method-assign]
    try:
        asked = config(
            frames=40, engine="null", save=("jsonl",), output=f"{tmp_path}/", run_dir=str(tmp_path)
        )
        verdict = detect([str(STREET)], asked).summary.verdict
    finally:
        best.__call__ = slow  # type: ignore[method-assign]
    assert verdict.bottleneck == "best"
    assert verdict.sentence.startswith(best.what)
    assert best.advice in verdict.sentence


@pytest.mark.slow
def test_what_if_pass_replaces_the_stage(best: type[BestStage]) -> None:
    plan = resolve(config(), specs=[str(STREET)])
    with plan.loaded.engine:
        with plan.reading.open(str(STREET)) as source:
            recorded = record_stages(plan.parts(source), source)
        with plan.reading.open(str(STREET)) as source:
            parts = plan.parts(source)
            before = len(best.instances[-1].frames)
            replaced = replace_stage(parts, "best", recorded, FRAMES)
            timeline = Timeline(nvtx=False)
            detections = [one for _, one in plan.loop.frames(replaced, timeline, Progress())]
    assert [len(one) for one in detections] == [1] * FRAMES
    assert len(best.instances[-1].frames) == before, "the stand-in replaced the stage"
    assert timeline.tracks["writer"].spans["best", "work"].calls == FRAMES
    assert "earlier detections" in describe_replacement("best")


@pytest.mark.slow
def test_python_api_runs_the_stage(best: type[BestStage]) -> None:
    from detector import Detector

    with Detector(engine="ort", max_det=77, frames=FRAMES, threads=1) as detector:
        counts = [len(one) for _, one in detector.stream(str(STREET))]
    assert counts == [1] * FRAMES
    assert best.instances[-1].closed == 1


def test_stage_is_skipped_unless_its_option_is_given(best: type[BestStage]) -> None:
    assert between.choose(config(max_det=300).as_dict()) == ()
    assert [one.name for one in between.choose(config().as_dict())] == ["best"]
