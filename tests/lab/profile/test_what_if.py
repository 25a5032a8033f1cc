"""What-if as a pass: it keeps the run's own threads, tries what can be tried, and says how far off
it was.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from detector.core import sources
from detector.core.config.schema import Config
from detector.core.errors.machine import usable_cores
from detector.core.session.store import Session
from detector.lab.analysis.loop.what_if import UNKNOWN
from detector.lab.analysis.noise import MISSES
from detector.lab.profile import stand_ins, what_if
from detector.lab.profile.base import Occasion, pin_choices
from detector.lab.session.passes import Prediction
from detector.lab.session.read import read_session
from tests.cli.command import detect_video, summary_of
from tests.conftest import CHECKOUT
from tests.lab.report.sessions import ran
from tests.session.documents import document

STREET = CHECKOUT / "videos/street.mp4"


def test_another_loop_gets_the_threads_and_requests_that_the_run_had():
    """A plain loop on its own would give one request all threads, and two things would have
    changed.
    """
    run = document(engine="ort", precision="fp32", engine_threads=1, concurrency=2)
    pinned = pin_choices(Config(), run).runtime
    assert (pinned.engine, pinned.precision, pinned.threads, pinned.concurrency) == (
        "ort",
        "fp32",
        1,
        2,
    )
    asked = replace(
        Config(), runtime=replace(Config().runtime, engine="openvino", precision="bf16")
    )
    pinned = pin_choices(asked, replace(run, engine="openvino")).runtime
    assert (pinned.engine, pinned.precision) == ("openvino", "bf16")


CHANGES = [
    "infer free",
    "read free",
    "write free",
    "overlap off",
    "batch 4",
    "one more core",
    "preprocess free",
]


def test_what_cannot_be_tried_is_not_and_the_rounds_are_interleaved(monkeypatch):
    """Rates that fall by the same factor in every round: the gains within a round do not."""
    tried, speed = (
        [],
        {"": 50.0, "infer": 100.0, "read": 55.0, "write": 75.0, "sync": 25.0, "batch": 60.0},
    )

    def rate(source, config, stage):
        name = "sync" if config.loop.sync else "batch" if config.runtime.batch == 4 else stage
        slower = 0.5 ** (len(tried) // 6)
        tried.append(name)
        return speed[name] * slower

    monkeypatch.setattr(stand_ins, "_rate", rate)
    predicted = [Prediction(change, 110.0, 1.2) for change in CHANGES]
    rows = stand_ins.prove("clip.mp4", Config(), predicted)
    assert tried == ["", "infer", "read", "write", "sync", "batch"] * 3
    assert [row.change for row in rows] == CHANGES[:5]
    infer = rows[0]
    assert (infer.measured_low, infer.measured_gain, infer.measured_high) == pytest.approx(
        (1.0, 1.0, 1.0)
    )
    assert (infer.measured_fps, infer.predicted_fps) == (50.0, 110.0)  # the middle round's
    for row in rows:
        assert row.off_by == pytest.approx((1 + row.predicted_gain) / (1 + row.measured_gain) - 1)
    assert stand_ins.list_unsteady(rows) == []


def test_a_measurement_that_contradicts_itself_is_said(monkeypatch):
    rates = iter([50.0, 100.0, 50.0, 60.0, 50.0, 90.0])
    monkeypatch.setattr(stand_ins, "_rate", lambda *_: next(rates))
    rows = stand_ins.prove("clip.mp4", Config(), [Prediction("infer free", 90.0, 0.8)])
    assert rows[0].off_by == pytest.approx(0.0)
    assert stand_ins.list_unsteady(rows) == [
        "infer free: the measured gain went from +20% to +100%"
    ]


@pytest.mark.slow
def test_a_cached_source_hands_out_as_many_frames_as_there_are_each_a_copy():
    with sources.open(str(STREET), frames=60) as source:
        cached = stand_ins.CachedSource(source)
    frames = []
    place = np.zeros((540, 960, 3), np.uint8)
    while (frame := cached.read(place)) is not None:
        frames.append(frame.index)
        assert frame.image is place
        place[:] = 0  # whoever draws on it spoils no later frame
    assert frames == list(range(60))
    first = stand_ins.KEPT - 1
    assert cached._kept[first].image.any()


@pytest.mark.slow
def test_the_pass_says_what_its_replay_stands_on(tmp_path):
    session = ran(tmp_path, frames=40)
    plain = read_session(session)
    occasion = Occasion(str(STREET), _config(plain.document), Session(session), plain)
    facts = what_if.predict_changes(occasion)
    libraries = plain.document.cpu.libraries
    assert libraries.unknown_s <= libraries.process_s
    read = facts.costs["read"]
    assert (read.beside.cpu_ms if read.beside else 0) + read.cpu_ms > 0
    changes = {row.change for row in facts.predictions}
    assert {"read free", "write free", "overlap off", "batch 4", "one more core"} <= changes
    assert "40 frames are few" in facts.doubts[-1]
    assert facts.no_batch_because is None


def _config(document) -> Config:
    base = Config()
    return replace(
        base,
        runtime=replace(base.runtime, engine=document.engine),
        input=replace(base.input, frames=document.frames.read),
        output=replace(base.output, save=("jsonl",), no_video=True),
    )


@pytest.mark.slow
def test_the_threads_of_a_real_run_are_known(tmp_path):
    """ONNX Runtime's second thread, FFmpeg's decoders, x264's slices."""
    if usable_cores() < 2:
        pytest.skip("machine: one core; libraries start no threads of their own")
    flags = {
        "engine": "ort",
        "device": "cpu",
        "threads": 2,
        "concurrency": 1,
        "save": "video",
        "no_video": False,
    }
    libraries = read_session(ran(tmp_path, **flags)).document.cpu.libraries
    assert {"infer", "read", "write"} <= libraries.stages.keys()
    for stage in libraries.stages.values():
        assert stage.threads >= 1
        assert 0 < stage.busiest_s <= stage.cpu_s <= libraries.process_s
    assert libraries.unknown_s < UNKNOWN * libraries.process_s


@pytest.mark.slow
def test_a_run_too_short_for_batches_says_so(tmp_path):
    done = detect_video(
        "profile",
        STREET,
        "--engine",
        "null",
        "--frames",
        12,
        "--no-video",
        "--run-dir",
        "run",
        "--only",
        "what_if",
        "--prove",
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    document = summary_of(done)
    assert {row["change"] for row in document["what_if_proofs"]} == {
        "infer free",
        "read free",
        "write free",
        "overlap off",
    }
    assert all(row["measured_fps"] > 0 for row in document["what_if_proofs"])
    assert any("12 frames are few" in doubt for doubt in document["what_if_doubts"])
    shown = detect_video("report", "run", "--format", "table", cwd=tmp_path).stdout
    # So short a run is often not held by its replay: predictions are then left out.
    if abs(document["what_if_replay_error"]) <= MISSES:
        assert "predicted is off by" in shown
        assert "unreliable: 12 frames are few" in shown
    else:
        assert "the replay does not hold this run" in shown
        assert "what if, measured" in shown


def measuring():
    place = CHECKOUT / "scripts/measuring/what_if.py"
    spec = importlib.util.spec_from_file_location("measuring_what_if", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_record_counts_predictions_by_their_median():
    record = measuring()
    documents = [
        {
            "fps": {"end_to_end": 100.0},
            "what_if_replay_error": error,
            "what_if_proofs": [
                {
                    "change": "infer free",
                    "predicted_gain": 0.6,
                    "measured_gain": 0.5,
                    "off_by": off,
                },
                {"change": "batch 4", "predicted_gain": 0.0, "measured_gain": 0.3, "off_by": -0.23},
            ],
        }
        for error, off in ((0.01, 0.07), (-0.06, 0.5), (0.02, -0.01))
    ]
    rows = [record.row_of(document) for document in documents]
    assert record.changes_of(rows) == ["infer free", "batch 4"]
    text = record.table("street ort", rows)
    assert "replay at 1x off by +1% [-6% .. +2%]" in text
    assert "+7% [-1% .. +50%]" in text
    assert record.verdict({"street ort": rows}) == (
        "1 of 2 predictions within 10% of what was measured, the worst off by -23.0%; replay at "
        "1x within 1.0%"
    )
